"""Worker line: the server's end of a process that is started when asked, and can be killed."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import msgspec

from millrace.serving.refusals import RefusedError

Progress = Callable[[str], None]


class WorkerEndedError(Exception):
    """A worker was ended before it answered."""


class WorkerLine:
    """A worker process and the line to it; one question at a time.

    Parameters
    ----------
    niceness : int
        By how much its priority is lower than this process's.
    """

    def __init__(self, niceness: int = 0) -> None:
        self._niceness = niceness
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection[Any, Any] | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the process where there is none."""
        with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            self._close()
            self._line, theirs = Pipe()
            with theirs:
                descriptor = theirs.fileno()
                arguments = [str(descriptor), str(self._niceness)]
                command = [sys.executable, "-m", "millrace.serving.worker", *arguments]
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[descriptor],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=_environment(),
                )

    def ask(
        self, message: Mapping[str, Any], limit_s: float, progress: Progress | None = None
    ) -> Any:
        """Answer to a message.

        Parameters
        ----------
        message : mapping
            `task` and its arguments.
        limit_s : float
            Seconds after which the process is killed.
        progress : callable, optional
            Called with sentences about how far the task is.

        Raises
        ------
        RefusedError
            There is no answer, or none in time.
        WorkerEndedError
            The process was ended meanwhile.
        """
        self.start()
        line = self._line
        assert line is not None
        deadline = monotonic() + limit_s
        try:
            line.send_bytes(msgspec.json.encode(message))
            while True:
                if not line.poll(max(deadline - monotonic(), 0.0)):
                    self.end()
                    raise RefusedError(
                        f"no answer within {limit_s:.0f} s, which is all that a page may take: ask "
                        f"for fewer devices, pin more, or use the command line",
                        status=422,
                    )
                reply = msgspec.json.decode(line.recv_bytes())
                if "progress" not in reply:
                    break
                if progress is not None:
                    progress(reply["progress"])
        except (EOFError, OSError):
            raise WorkerEndedError from None
        if "refused" in reply:
            raise RefusedError(reply["refused"], reply["status"], reply["field"])
        return reply["answer"]

    def end(self) -> None:
        """Kill the process; whoever waits for it gets `WorkerEndedError`."""
        process = self._process
        if process is not None:
            with suppress(OSError):
                process.kill()
            process.wait()

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _environment() -> dict[str, str]:
    """Environment of a worker: its package is this one, wherever that was imported from."""
    import millrace

    folder = os.path.dirname(os.path.dirname(os.path.abspath(millrace.__file__)))
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
