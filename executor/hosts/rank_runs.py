"""Rank runs: one process per rank, started, watched, and ended without a trace.

Whatever happens (success, a rank that raises or is killed, Ctrl-C, SIGTERM), no process and no
shared-memory segment is left. Causes of failures travel in files, one per rank.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from types import FrameType

from millrace.executor.hosts.host_links import HostLinks
from millrace.executor.hosts.host_list import HostRanks, Hosts, placed
from millrace.executor.hosts.local_ranks import (
    LOCAL,
    POLL_S,
    LocalRanks,
    PmiLine,
    RankEnded,
    RankProcesses,
    rank_environment,
)
from millrace.executor.hosts.pmi_server import PmiServer
from millrace.executor.hosts.rank_failures import failure_of


def run_ranks(
    module: str,
    ranks: int,
    folder: Path,
    *,
    watch: Callable[[], None] = lambda: None,
    hosts: Hosts | None = None,
    ranks_per_node: int = 1,
    listening: Callable[[str], None] | None = None,
) -> None:
    """Run `python -m module folder` as `ranks` processes that MPI joins, to their end.

    Parameters
    ----------
    module
        The module that every rank runs.
    ranks
        How many there are.
    folder
        The job's folder; its path is the module's argument.
    watch
        Called every 20 ms while the ranks run; what it raises ends them.
    hosts
        Where they run; None: on this machine.
    ranks_per_node
        Ranks of a host, where there are several.
    listening
        Called with the sentence that says where this process listens, if it does.

    Raises
    ------
    RankFailedError
        A rank failed or died; names the rank, the actor and the cause as far as they are known.
    InfeasibleError
        A rank found that its device cannot hold it, or there are not hosts enough.
    """
    token = f"{os.getpid()}-{perf_counter_ns()}"
    used = (
        (HostRanks(name="", ranks=tuple(range(ranks))),)
        if hosts is None
        else placed(hosts, ranks, ranks_per_node)
    )
    pmi = PmiServer([len(host.ranks) for host in used])
    with _interruptible():
        processes: RankProcesses
        if hosts is None:
            environment = {**LOCAL, **rank_environment(token, ranks)}
            output = folder / "output"
            processes = LocalRanks(module, folder, range(ranks), ranks, environment, output)
        else:
            processes = HostLinks(hosts, used, module, folder, token, os.environ, listening)
        try:
            failed = _watched(processes, pmi, watch)
        finally:
            with _uninterruptible():
                processes.end()
    if failed is not None:
        raise failure_of(folder, failed)


def _watched(
    processes: RankProcesses, pmi: PmiServer, watch: Callable[[], None]
) -> RankEnded | None:
    """First rank that ended before its work was done; None when all have done theirs."""
    while processes.running:
        for event in processes.serve(POLL_S):
            if isinstance(event, PmiLine):
                for rank, line in pmi.request(event.rank, event.line):
                    processes.reply(rank, line)
                if pmi.aborted:  # its process waits to be ended
                    return RankEnded(pmi.aborted[0], 1, False)
            elif not event.is_done and event.code != 0:
                return event
        watch()
    watch()
    return None


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
