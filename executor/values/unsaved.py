"""Unsaved steps: notes of the ranks on what they could not write, in files of the job's folder.

A disk that is full, or gone, ends no run that could go on, and may leave no room for a word on it:
so the notes lie where the job does, not where checkpoints do.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from millrace.models.graph import to_json


class Unsaved(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose state is not saved: the file or folder that was refused, and the reason."""

    step: int
    path: str
    reason: str

    @property
    def sentence(self) -> str:
        """Sentence on the step, without an end."""
        return f"step {self.step} is not saved: {self.reason} for `{self.path}`"


class UnsavedNotes:
    """Notes of all ranks in a job's folder.

    Parameters
    ----------
    folder
        The job's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: set[str] = set()

    def write(self, rank: int, unsaved: Unsaved) -> None:
        """Note a step that a rank could not save; nothing where there is no room for a note."""
        note = self._folder / f"unsaved.{rank}.{unsaved.step}.json"
        draft = note.with_suffix(".draft")
        with suppress(OSError):
            draft.write_bytes(to_json(unsaved))
            draft.replace(note)

    def read(self) -> list[Unsaved]:
        """Notes that have come since the last call."""
        paths = [
            path for path in self._folder.glob("unsaved.*.json") if path.name not in self._read
        ]
        self._read.update(path.name for path in paths)
        notes = [msgspec.json.decode(path.read_bytes(), type=Unsaved) for path in paths]
        return sorted(notes, key=lambda unsaved: unsaved.step)
