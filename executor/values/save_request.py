"""Save request: the step after which ranks save beside those of the plan, in eight bytes of a file.

The parent asks for a step that is so far ahead that every rank looks before it comes. A rank that
looks too late saves nothing of that step, so that no checkpoint is made of it, and none is harmed.
"""

import os
from contextlib import suppress
from pathlib import Path

FILE = "save_request"
REQUEST_BYTES = 8


class SaveRequest:
    """Request that lies in a job's folder; there need be none.

    Parameters
    ----------
    folder
        The job's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def write(self, step: int) -> None:
        """Ask for the state after a step, counted over all runs; nothing where the disk is full."""
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(file, step.to_bytes(REQUEST_BYTES, "little"), 0)
            finally:
                os.close(file)

    @property
    def step(self) -> int:
        """The step that is asked for; 0 where none is."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return 0
        return int.from_bytes(content, "little") if len(content) == REQUEST_BYTES else 0
