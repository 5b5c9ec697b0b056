"""Progress: lines that rank 0 writes after every step, and their reader."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from millrace.executor.recording import Totals

Progress = Callable[[int, float], None]
FILE = "progress"
_LINE = re.compile(rb"^([0-9]+) (\S+) (\S+)$", re.MULTILINE)  # what a full disk cut off is none


def write_progress(lines: IO[bytes], step: int, totals: Totals) -> None:
    """Write the line of a step; on a full disk training goes on untold.

    Parameters
    ----------
    lines
        The file, unbuffered.
    step
        Counted from 0 over all runs.
    totals
        Of the step: sum of losses, valid tokens, and sum of squares of the gradient.
    """
    loss, norm = mean_loss(totals), gradient_norm(totals)
    with suppress(OSError):
        lines.write(f"{step} {loss!r} {norm!r}\n".encode())


def mean_loss(totals: Totals) -> float:
    """Mean loss per valid token of a step."""
    loss, count, _ = totals
    return loss / max(count, 1.0)


def gradient_norm(totals: Totals) -> float:
    """Norm of the mean gradient of a step."""
    _, count, squares = totals
    return float(squares**0.5 / max(count, 1.0))


class ProgressReader:
    """Reader of the lines of a job.

    Parameters
    ----------
    folder
        The job's folder.
    tell
        Called with a step and its loss.

    Attributes
    ----------
    figures
        Loss and norm of the gradient by step, both counted from 0 over all runs.
    """

    def __init__(self, folder: Path, tell: Progress | None) -> None:
        self._path, self._tell, self._read = folder / FILE, tell, 0
        self.figures: dict[int, tuple[float, float]] = {}

    def read(self) -> None:
        """Pass on the steps that have ended since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            lines.seek(self._read)
            text = lines.read()
        full_lines = text[: text.rfind(b"\n") + 1]
        self._read += len(full_lines)
        for number, loss, norm in _LINE.findall(full_lines):
            step = int(number)
            self.figures[step] = float(loss), float(norm)
            if self._tell is not None:
                try:
                    self._tell(step, float(loss))
                except OSError:  # who listened has gone, or its disk is full: training goes on
                    self._tell = None
