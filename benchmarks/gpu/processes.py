"""Items in processes of their own: one that crashes, hangs or breaks its context spoils no other.

An item is a function that returns figures. Its process writes their line itself, and one before
whenever there is something that should not be lost (`hand_over`); whoever started it writes how it
ended where it could not.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.gpu.lines import DETAILS, Line, append, folded, lines_file, log_file, read

Figures = dict[str, object]
OPTIONAL = {"torch", "triton"}  # modules that we do not depend on
PR_SET_PDEATHSIG = 1  # linux/prctl.h
KILLED_S = 2.0  # from being asked to end to being killed


def hand_over(name: str, figures: Figures) -> None:
    """Write down what an item has found so far: all that is left of it, should it not end."""
    append(name, None, figures=figures)


def run_here(name: str, item: Callable[[], Figures]) -> int:
    """Run an item in this process, write its line and return the exit code.

    What needs a library that we can do without, and that is not installed, is no failure.
    """
    began = time.monotonic()
    try:
        line: Line = {"ok": True, "figures": item()}
    except ModuleNotFoundError as missing:
        absent = (missing.name or "").partition(".")[0] in OPTIONAL
        line = {"ok": None if absent else False, "error": str(missing)}
    except BaseException as caught:
        traceback.print_exc()
        line = {"ok": False, "error": f"{type(caught).__name__}: {caught}"}
        line["details"] = traceback.format_exc()[-DETAILS:]
    append(name, line.pop("ok"), seconds=round(time.monotonic() - began, 2), **line)
    return 0


def run_apart(
    name: str,
    limit_s: float,
    module: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Line:
    """Run `python -m MODULE --item NAME` within a limit of time; return what its lines come to.

    Of one that is not done in time, or was killed, there is what it had handed over, and `late` or
    how it ended as its `error`.
    """
    if limit_s < 1:
        append(name, None, late=True, error="no time was left")
        return {"name": name, "ok": None, "late": True, "error": "no time was left"}
    start, said = size_of(lines_file()), size_of(log_file())
    command = [sys.executable, "-m", module, "--item", name, *arguments]
    began, stop, late = time.monotonic(), None, False
    process = started(command, environment or {})
    try:
        how = f"it ended: {in_words(process.wait(limit_s))}"
    except subprocess.TimeoutExpired:
        late, how = True, f"not done after {limit_s:.0f} s"
    except SystemExit as asked:
        stop, how = asked, str(asked.code)
    finally:
        ended(process)
    line = folded(read(lines_file(), start)).get(name, {"name": name, "ok": None})
    if late or "seconds" not in line:
        more = {"late": late, "seconds": round(time.monotonic() - began, 2), "error": how}
        append(name, False, **more, details=printed(said))
        line |= {"ok": False, **more}
    if stop is not None:
        raise stop
    return line


def started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that prints to the log, as the first of a session of its own."""
    with log_file().open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=partial(end_with, os.getpid()),
        )


def end_with(parent: int) -> None:
    """Ask the kernel to ask this process to end when the one that started it is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it went before the kernel was asked
        os._exit(1)


def unwind_when_asked_to_end() -> None:
    """Let SIGTERM unwind the stack, once, so that whoever has started processes ends them."""

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(f"stopped by {signal.Signals(number).name}")

    signal.signal(signal.SIGTERM, on_sigterm)


def ended(process: subprocess.Popen[bytes], killed_s: float = KILLED_S) -> None:
    """End a process and all that it has started; those that are asked and do not, are killed."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(killed_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def in_words(code: int) -> str:
    """Ending of a process in words, from its exit code.

    Examples
    --------
    >>> in_words(-11), in_words(3)
    ('SIGSEGV', 'exit code 3')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def printed(start: int) -> str:
    """Text that was printed to the log from a byte on: of much, the beginning and the end."""
    path = log_file()
    text = path.read_bytes()[start:].decode(errors="replace") if path.exists() else ""
    half = DETAILS // 2
    return text if len(text) <= DETAILS else f"{text[:half]}\n...\n{text[-half:]}"
