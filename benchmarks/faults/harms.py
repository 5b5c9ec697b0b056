"""Faults: what is done to a run, who is to be named, and how it is expected to end."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from benchmarks.executor.namespaces import NetworkHost

SLOW_STOPPED_S, SLOW_RUNNING_S = 0.09, 0.01  # a tenth of its speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Run that is harmed.

    Attributes
    ----------
    command
        Process id of the command.
    pids
        Process ids of its ranks.
    rank
        The rank that is harmed.
    agent
        Process id of the agent of the rank's host, where there are hosts.
    host
        The rank's host.
    disk
        Folder on a small disk of its own, where checkpoints are.
    """

    command: int
    pids: Mapping[int, int]
    rank: int
    agent: int | None = None
    host: NetworkHost | None = None
    disk: Path | None = None


Undo = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFault:
    """Kind of fault.

    Attributes
    ----------
    harm
        Does it; returns what undoes it once the run has ended.
    names
        What the message must hold one of; nothing where nobody can be named.
    ends
        True if the run is to end, or to go on from a checkpoint.
    stalls
        True if only silence tells of it, for which there is a longer deadline.
    of_hosts
        True if it befalls hosts alone.
    """

    harm: Callable[[Target], Undo]
    names: tuple[str, ...]
    ends: bool = True
    stalls: bool = False
    of_hosts: bool = False


def _signalled(number: signal.Signals) -> Callable[[Target], Undo]:
    def harm(target: Target) -> Undo:
        with suppress(ProcessLookupError):
            os.kill(target.pids[target.rank], number)
        return lambda: None

    return harm


def _fill(target: Target) -> Undo:
    assert target.disk is not None
    filler = target.disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    return lambda: filler.unlink(missing_ok=True)


def _cut(target: Target) -> Undo:
    assert target.host is not None
    target.host.cut()
    return target.host.mend


def _slow(target: Target) -> Undo:
    ended = threading.Event()
    pid = target.pids[target.rank]

    def throttle() -> None:
        with suppress(ProcessLookupError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                sleep(SLOW_STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                sleep(SLOW_RUNNING_S)

    thread = threading.Thread(target=throttle)
    thread.start()

    def undo() -> None:
        ended.set()
        thread.join()

    return undo


def _kill_command(target: Target) -> Undo:
    with suppress(ProcessLookupError):
        os.kill(target.command, signal.SIGKILL)
    return lambda: None


def _kill_agent(target: Target) -> Undo:
    assert target.agent is not None
    with suppress(ProcessLookupError):
        os.kill(target.agent, signal.SIGKILL)
    return lambda: None


RANK = "millrace: rank {rank}"  # how the message that ends a run begins
MOVED = "on rank {rank} moved most"  # what is said of a slow one

KINDS = {
    "killed": RunFault(harm=_signalled(signal.SIGKILL), names=(RANK,)),
    "stopped": RunFault(harm=_signalled(signal.SIGSTOP), names=(RANK,), stalls=True),
    "exception": RunFault(harm=_signalled(signal.SIGINT), names=(RANK,)),
    "full disk": RunFault(harm=_fill, names=("no space left on device",), ends=False),
    "cut link": RunFault(harm=_cut, names=("host `{host}`",), stalls=True, of_hosts=True),
    "slow rank": RunFault(harm=_slow, names=(MOVED, RANK), ends=False),
    "command": RunFault(harm=_kill_command, names=()),
    "launcher": RunFault(harm=_kill_agent, names=("host `{host}`",), of_hosts=True),
}
