"""One process per rank on this machine: started, watched, and ended without a trace.

Ranks are started by the `mpiexec` of this environment, in a session of their own. Whatever
happens (success, a rank that raises or is killed, Ctrl-C, SIGTERM), no process and no
shared-memory segment is left. Causes of failures travel in files, one per rank, since exit codes
of dead ranks are not reliable under MPICH.
"""

import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from types import FrameType

import msgspec

from millrace.executor.errors import ExecutorError
from millrace.planner.clusters import machine_cores
from millrace.planner.errors import InfeasibleError
from millrace.planner.worker_processes import end_with

POLL_S = 0.02
END_S_MAX = 5.0  # ranks are gone some 60 ms after mpiexec (MPICH 5.0, November 2026)
TOKEN = "MILLRACE_JOB"
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
LINE_NUMBER = 900
DONE = b"."  # A rank says this on its line when it has done its work.
# Ranks of one machine meet in shared memory: without this UCX listens on its outer address too.
LOCAL = {"UCX_TLS": "self,posix,sysv", "UCX_NET_DEVICES": "lo"}
# A rank takes so much besides its arena: Python, NumPy, mpi4py and MPICH's own segments, measured
# as the resident size of a worker with an empty arena (November 2026: 75 MB).
PROCESS_BYTES = 80_000_000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Report that a rank writes before it ends early."""

    rank: int
    actor: str | None
    cause: str
    at_ns: int
    details: str
    infeasible: bool = False  # the question was well-formed, and the answer is no


def report_failure(folder: Path, rank: int, actor: str | None, error: BaseException) -> None:
    """Write down in a rank why it cannot go on (the parent reads it when the rank has ended)."""
    infeasible = isinstance(error, InfeasibleError)
    if isinstance(error, ExecutorError):
        actor, cause = actor or error.actor, error.cause
    elif infeasible:
        cause = str(error)
    else:
        cause = f"{type(error).__name__}: {error}"
    failure = Failure(
        rank=rank,
        actor=actor,
        cause=cause,
        at_ns=perf_counter_ns(),
        details="".join(traceback.format_exception(error)),
        infeasible=infeasible,
    )
    draft = folder / f"failure.{rank}.draft"
    draft.write_bytes(msgspec.json.encode(failure))
    draft.replace(folder / f"failure.{rank}.json")


def open_line(folder: Path, rank: int) -> Callable[[], None]:
    """Open this rank's line to the parent; returns what says on it that the rank has done its work.

    The kernel closes it when the rank ends, however, and at the parent's side when the parent does,
    which ends this rank too, and removes the job's folder. It is given a high number: Linux closes
    the files of a process that ends from the highest number down, so the parent hears of the end
    before MPICH does, which then ends the others.
    """
    path = folder / f"line.{rank}"
    low, line = os.open(path, os.O_WRONLY | os.O_NONBLOCK), _line_number()
    os.dup2(low, line)  # in place of the one that was opened before Python started
    os.close(low)
    end_with(line, lambda: shutil.rmtree(folder, ignore_errors=True))

    def done() -> None:
        with suppress(OSError):
            os.write(line, DONE)

    return done


def _line_number() -> int:
    return min(LINE_NUMBER, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return machine_cores()


def cores_of(rank: int, ranks: int, cores: Sequence[int]) -> set[int]:
    """Cores that a rank is bound to: its even share of the job's, all where shares are not even.

    Threads of a rank that may run anywhere are moved to a core where another computes, and wait
    there while one is idle.

    Parameters
    ----------
    rank, ranks
        The rank and how many there are.
    cores
        Cores of the job, in their order.

    Examples
    --------
    >>> cores_of(3, 4, [0, 1])
    {1}
    >>> cores_of(1, 2, [0, 1, 2, 3])
    {2, 3}
    >>> cores_of(2, 3, [0, 1])
    {0, 1}
    """
    if ranks % len(cores) == 0:
        return {cores[rank % len(cores)]}
    if len(cores) % ranks:
        return set(cores)
    share = len(cores) // ranks
    return set(cores[rank * share : (rank + 1) * share])


def bind_to_cores(rank: int, ranks: int) -> None:
    """Bind this process, and the threads that it starts, to its share of the job's cores.

    Parameters
    ----------
    rank, ranks
        This rank and how many there are, one per process.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores_of(rank, ranks, sorted(os.sched_getaffinity(0))))


def check_capacity(arena_bytes: Sequence[int]) -> None:
    """Refuse ranks that this machine cannot hold.

    Parameters
    ----------
    arena_bytes
        Bytes of each rank's arena.

    Raises
    ------
    InfeasibleError
        There is not enough memory, or there are too many processes; says by how much.
    """
    ranks = len(arena_bytes)
    needed = sum(arena_bytes) + ranks * PROCESS_BYTES
    available = available_memory_bytes()
    if needed > available:
        raise InfeasibleError(
            f"{ranks} ranks need {needed / 2**30:.1f} GiB of memory on this machine, and "
            f"{available / 2**30:.1f} GiB are available ({(needed - available) / 2**30:.1f} GiB "
            f"short): use fewer ranks, fewer steps or a smaller model"
        )
    allowed = _processes_allowed()
    if ranks > allowed:
        raise InfeasibleError(
            f"{ranks} ranks are {ranks} processes, and this machine allows {allowed} more: use "
            f"fewer ranks"
        )


def available_memory_bytes() -> int:
    """Bytes of memory that new processes may take without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), flags=re.MULTILINE)
        if match:
            available = int(match[1]) * 1024
            return min(available, _control_group("memory.max", "memory.current", available))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processes_allowed() -> int:
    """Number of processes that may still be started (each rank has about five threads)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = soft if soft != resource.RLIM_INFINITY else 1 << 22
    return min(limit, _control_group("pids.max", "pids.current", limit)) // 5


def _control_group(limit: str, used: str, default: int) -> int:
    """Amount that the container's control group leaves; `default` where it sets no limit."""
    root = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        return int((root / limit).read_text()) - int((root / used).read_text())
    return default


def run_ranks(
    module: str, ranks: int, folder: Path, *, watch: Callable[[], None] = lambda: None
) -> None:
    """Run `python -m module folder` as `ranks` processes that MPI joins, to their end.

    Parameters
    ----------
    module
        The module that every rank runs.
    folder
        The job's folder; its path is the module's argument.
    watch
        Called every 20 ms while the ranks run.

    Raises
    ------
    ExecutorError
        A rank failed or died; names the rank, the actor and the cause as far as they are known.
    InfeasibleError
        A rank found that its device cannot hold it.
    """
    token = f"{os.getpid()}-{perf_counter_ns()}"
    segments = _segments()
    output = folder / "output"
    ends = _Ends(folder, ranks)
    with _interruptible(), output.open("wb") as sink:
        process = subprocess.Popen(
            _command(module, ranks, folder),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=_environment(ranks, token),
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                ends.look()
                watch()
                sleep(POLL_S)
            watch()
        finally:
            with _uninterruptible():
                ends.look()
                _end(process, token)
                ends.look()
                ends.close()
                _remove_segments(segments)
    failed = process.returncode != 0 or list(folder.glob("failure.*.json"))
    if failed and not ends.all_done:  # what befalls ranks that are done takes nothing away
        raise failure_of(folder, process.returncode, ends.first)


class _Ends:
    """Ends of the ranks, the first above all: MPICH, clearing the others away, names any of them.

    Every rank holds a line (a named pipe) to this process. The kernel reports lines in the order
    in which they were closed. A rank that has said that its work is done has not failed.
    """

    def __init__(self, folder: Path, ranks: int) -> None:
        self._first: int | None = None
        self._closed = self._done = 0
        self._poll = select.epoll()
        self._ranks: dict[int, int] = {}
        for rank in range(ranks):
            path = folder / f"line.{rank}"
            os.mkfifo(path)
            line = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            self._ranks[line] = rank
            self._poll.register(line, select.EPOLLHUP)

    def look(self) -> None:
        """Take note of the ranks that have ended since the last call."""
        while closed := self._poll.poll(0, 1):
            line = closed[0][0]
            self._poll.unregister(line)
            self._closed += 1
            if os.read(line, len(DONE)) == DONE:
                self._done += 1
            elif self._first is None:
                self._first = self._ranks[line]

    @property
    def first(self) -> int | None:
        """Rank that ended first, all having ended; None where one died before it had a line."""
        return self._first if self._closed == len(self._ranks) else None

    @property
    def all_done(self) -> bool:
        """True if every rank has said that its work is done."""
        return self._done == len(self._ranks)

    def close(self) -> None:
        """Close the lines."""
        self._poll.close()
        for line in self._ranks:
            os.close(line)


def _command(module: str, ranks: int, folder: Path) -> list[str]:
    """Command that starts the ranks.

    `-m mpi4py` ends all ranks when one raises; without it the others would wait for ever. Where
    there is a shell that can, it opens a rank's line before Python starts, for reading too, so as
    not to wait for a parent that has ended.
    """
    launcher = [_mpiexec(), "-launcher", "fork", "-n", str(ranks)]
    rank = [sys.executable, "-P", "-m", "mpi4py", "-m", module, str(folder)]
    shell = shutil.which("bash")
    if shell is not None:
        script = f'exec "$@" {_line_number()}<>"$0/line.$PMI_RANK"'
        launcher += [shell, "-p", "-c", script, str(folder)]
    return [*launcher, *rank]


def _mpiexec() -> str:
    """Launcher of the environment in use, before any other on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise ExecutorError("no `mpiexec` beside the interpreter or on PATH: pip install mpich")
    return mpiexec


def _environment(ranks: int, token: str) -> dict[str, str]:
    """Environment of the ranks: our packages first, one share of the cores for BLAS."""
    # A command that itself runs under MPI hands down variables that would confuse ours.
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "HYDI_"))
    }
    root = str(Path(__file__).absolute().parents[2])  # the folder that millrace/ lies in
    threads = str(max(1, usable_cores() // ranks))
    return {
        **LOCAL,
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, inherited.get("PYTHONPATH")))),
        "PYTHONSAFEPATH": "1",
        BLAS_THREADS: threads,
        "OMP_NUM_THREADS": threads,
        TOKEN: token,
    }


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM unwind the stack like Ctrl-C, so that ranks are ended."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def terminated(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _uninterruptible() -> Iterator[None]:
    """Finish cleaning up even when Ctrl-C is pressed again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes], token: str) -> None:
    """End mpiexec and every process that it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    deadline, patience = monotonic() + END_S_MAX, monotonic() + 0.5
    while (left := processes_of(token)) and monotonic() < deadline:
        if monotonic() > patience:
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        sleep(POLL_S)


def processes_of(token: str) -> list[int]:
    """Ids of the processes that carry a job's token in their environment."""
    mark = f"{TOKEN}={token}".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids


def _segments() -> set[Path]:
    return set(Path("/dev/shm").glob("mpich_*"))


def _remove_segments(before: set[Path]) -> None:
    """Remove what a job left that ended while MPI was starting.

    Ranks remove the names of their segments themselves as soon as all have them mapped. What is
    left is new, ours, and mapped by no process that still runs.
    """
    fresh = {path for path in _segments() - before if path.exists()}
    if not fresh:
        return
    mapped = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped += path.read_text()
    for path in fresh:
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and str(path) not in mapped:
                path.unlink()


def failure_of(folder: Path, code: int, first: int | None) -> ExecutorError | InfeasibleError:
    """Error that tells what went wrong: the first failure that a rank wrote, or how one died.

    Parameters
    ----------
    folder
        The job's folder.
    code
        How mpiexec ended.
    first
        The rank that ended first. Where it has written nothing, what others wrote came of that.
    """
    failures = [
        msgspec.json.decode(path.read_bytes(), type=Failure)
        for path in folder.glob("failure.*.json")
    ]
    if failures and (first is None or any(failure.rank == first for failure in failures)):
        earliest = min(failures, key=lambda failure: failure.at_ns)
        error: ExecutorError | InfeasibleError
        if earliest.infeasible:
            error = InfeasibleError(earliest.cause)
        else:
            error = ExecutorError(earliest.cause, rank=earliest.rank, actor=earliest.actor)
        error.add_note(earliest.details)
        return error
    output = (folder / "output").read_text(errors="replace")
    cause, rank = _end_of(output, code, first)
    return ExecutorError(cause, rank=rank)


def _end_of(output: str, code: int, first: int | None) -> tuple[str, int | None]:
    """Cause of the end of a job whose ranks have written nothing, and the rank that it was."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"mpiexec, which had started the ranks, was ended by {name}", None
    how = re.search(r"EXIT STRING: (.+)", output)
    if how:
        whose = "the process ended" if first is not None else "the process of a rank ended"
        return f"{whose}: {how[1]}", first
    if "assert (!closed) failed" in output:
        return "mpiexec lost hydra_pmi_proxy, the process by which it holds the ranks", None
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("=")]
    return f"mpiexec ended with code {code}; last lines: {' | '.join(lines[-5:])}", first
