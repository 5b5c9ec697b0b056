"""State of a GPU while it is measured: how busy others have it, and the clocks at which it runs.

The driver's `nvidia-smi` says both; where it is missing, or does not say, nothing is known.
"""

import subprocess
from contextlib import suppress
from statistics import median
from types import TracebackType

TOOL = "nvidia-smi"  # comes with the driver
ANSWER_S = 10.0
EVERY_MS = 500


def bus_id(index: int) -> str:
    """Place on its bus of a GPU that this process sees, by its number; no context is made on it."""
    from cupy.cuda import runtime

    return str(runtime.deviceGetPCIBusId(index))


def busy_share(place: str, tool: str = TOOL) -> float | None:
    """Share of the last moments in which a GPU computed; None where that is not known.

    Asked before this process computes, it is what others take.

    Parameters
    ----------
    place
        The GPU's on its bus, as `bus_id` gives it (`0000:1B:00.0`).
    tool
        The program that is asked.
    """
    asked = _command(tool, place, "utilization.gpu")
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        answered = subprocess.run(
            asked, capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
        return float(answered.stdout.split()[0]) / 100
    return None


class ClockWatch:
    """Readings of a GPU's clocks, twice a second for as long as its context is open.

    Parameters
    ----------
    place, tool
        As for `busy_share`.
    """

    def __init__(self, place: str, tool: str = TOOL) -> None:
        self._asked = [*_command(tool, place, "clocks.sm,clocks.max.sm"), "-lms", str(EVERY_MS)]
        self._process: subprocess.Popen[str] | None = None
        self._shares: list[float] = []

    def __enter__(self) -> "ClockWatch":
        with suppress(OSError):
            self._process = subprocess.Popen(
                self._asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            text, _ = self._process.communicate()
            self._shares = clock_shares(text)
            self._process = None

    @property
    def share(self) -> float | None:
        """Share of its highest clock at which the GPU ran, the median of the readings."""
        return median(self._shares) if self._shares else None


def clock_shares(text: str) -> list[float]:
    r"""Shares of the highest clock in lines of `now, highest`; lines that do not say it are left.

    Examples
    --------
    >>> clock_shares("990, 1980\n[N/A], 1980\n1980, 1980\n19")
    [0.5, 1.0]
    """
    shares = []
    for line in text.splitlines():
        with suppress(ValueError, ZeroDivisionError):
            now, highest = map(float, line.split(","))
            shares.append(now / highest)
    return shares


def _command(tool: str, place: str, fields: str) -> list[str]:
    return [tool, f"--id={place}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
