"""Shard writer: writes what a rank saves, at once or in a thread of its own.

In the background every shard is copied into a buffer that was made before the run, so that steps
go on while it is written; the next save of that shard waits until it has been. A file system that
refuses takes a step's state from the run, and nothing else: the rank notes it and goes on.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from millrace.executor.errors import reason_of
from millrace.executor.values.manifest import mark_of, partial_folder
from millrace.executor.values.shard_files import sync_folder, write_shard, write_synced
from millrace.executor.values.unsaved import Unsaved, UnsavedNotes
from millrace.models.arrays import Array
from millrace.models.graph import to_json

Beat = Callable[[], None]


def no_beat() -> None:
    """Beat that nobody hears."""


@dataclass(slots=True)
class _Save:
    """A step that is being saved: shards that are still to come, and checksums of the others."""

    shards_left: int
    checksums: dict[str, str] = field(default_factory=dict)
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class _StagedShard:
    """A shard that has been copied and is to be written."""

    step: int
    file: str
    dtype: str


class ShardWriter:
    """Writer of the shards of one rank.

    Parameters
    ----------
    folder
        Where checkpoints lie.
    rank, files
        The rank, and how many shards it writes of a step.
    notes
        Where it notes what it cannot write.
    buffers
        In the background: a buffer for every shard, by file. None: write at once.
    beat
        Called after every piece that is written while the rank waits for it.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        files: int,
        notes: UnsavedNotes,
        buffers: Mapping[str, Array] | None = None,
        beat: Beat = no_beat,
    ) -> None:
        self._folder, self._rank, self._files, self._notes = folder, rank, files, notes
        self._buffers, self._beat = buffers, beat
        self._waiting = 0 if buffers is not None else 1
        self._saves: dict[int, _Save] = {}
        self._changed = threading.Condition()
        self._queue: deque[_StagedShard] = deque()
        self._staged: set[str] = set()
        self._error: BaseException | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._serve, name=f"rank {rank} writer", daemon=True)
        if buffers is not None:
            self._thread.start()

    def write(self, step: int, file: str, values: Array, dtype: str) -> None:
        """Write a shard of a step, or copy it to be written."""
        if self._buffers is None:
            with self._changed:
                self._write(step, file, values, dtype)
            return
        with self._changed:
            self._waiting += 1
            while file in self._staged and self._error is None:
                self._changed.wait()
            self._waiting -= 1
            self._raise()
        np.copyto(self._buffers[file], values)
        with self._changed:
            self._staged.add(file)
            self._queue.append(_StagedShard(step, file, dtype))
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is written."""
        if self._buffers is None:
            return
        with self._changed:
            self._ends = True
            self._waiting += 1
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        """Body of the thread."""
        assert self._buffers is not None
        try:
            while True:
                with self._changed:
                    while not (self._queue or self._ends):
                        self._changed.wait()
                    if not self._queue:
                        return
                    shard = self._queue.popleft()
                self._write(shard.step, shard.file, self._buffers[shard.file], shard.dtype)
                with self._changed:
                    self._staged.remove(shard.file)
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _written(self) -> None:
        """Take note that a piece is written."""
        if self._waiting:
            self._beat()

    def _write(self, step: int, file: str, values: Array, dtype: str) -> None:
        """Write a shard, and the mark behind the last one."""
        save = self._saves.setdefault(step, _Save(self._files))
        save.shards_left -= 1
        if not save.shards_left:
            del self._saves[step]
        if save.is_lost:
            return
        path = partial = partial_folder(self._folder, step)
        try:
            if not save.checksums:
                partial.mkdir(parents=True, exist_ok=True)
            path = partial / file
            save.checksums[file] = write_shard(path, values, dtype, self._written)
            if not save.shards_left:
                path = mark_of(partial, self._rank)
                draft = path.with_suffix(".draft")
                write_synced(draft, to_json(save.checksums))
                sync_folder(partial)
                draft.replace(path)
        except OSError as error:
            save.is_lost = True
            unsaved = Unsaved(step=step, path=str(path), reason=reason_of(error))
            self._notes.write(self._rank, unsaved)
