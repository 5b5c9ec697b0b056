"""Host agent: the process on every host that starts the ranks there, looks at them, and ends them.

It is started by ssh, by Slurm or by whatever else starts a process on a host, and told on its
standard input where the command listens. It listens nowhere. When the command has gone or has been
silent for too long, it ends its ranks and removes what is theirs.
"""

import fcntl
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NoReturn

import msgspec

from millrace.executor.hosts.folder_mirror import MIRROR_S, FolderMirror
from millrace.executor.hosts.frames import (
    SILENT_S_MAX,
    Beating,
    End,
    Ended,
    FilePart,
    FrameLine,
    Hello,
    Pmi,
    Start,
    wait_for_any,
)
from millrace.executor.hosts.local_ranks import (
    POLL_S,
    LocalRanks,
    PmiLine,
    rank_environment,
)

SIOCGIFADDR = 0x8915  # asks for the address of an interface (linux/sockios.h)
CONNECT_S_MAX = 30.0


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """First line on an agent's standard input.

    Attributes
    ----------
    address, port
        Where the command listens.
    token
        Secret by which the command knows its agents.
    hosts
        Names of the hosts, in their order.
    """

    address: str
    port: int
    token: str
    hosts: tuple[str, ...]


class HostAgent:
    """Agent of one host.

    Parameters
    ----------
    line
        Connection to the command.
    host
        Number of this host.
    folder
        Folder for the job's files.
    """

    def __init__(self, line: FrameLine, host: int, folder: Path) -> None:
        self._line, self._host, self._folder = line, host, folder
        self._mirror = FolderMirror(folder)
        self._ranks: LocalRanks | None = None
        self._is_ending = False

    def serve(self) -> None:
        """Do what the command says until it says the end, or is gone."""
        mirrored_s = monotonic()
        while not self._is_ending:
            self._hear()
            now_s = monotonic()
            if self._line.is_closed or now_s - self._line.heard_s > SILENT_S_MAX:
                return
            if self._ranks is None:
                wait_for_any([self._line], POLL_S)
                continue
            if now_s - mirrored_s > MIRROR_S:
                self._line.send(*self._mirror.changes())
                mirrored_s = now_s
            self._tell(self._ranks)

    def end(self) -> None:
        """End the ranks, and say that they have gone."""
        if self._ranks is not None:
            self._ranks.end()
            if self._is_ending:  # else nobody is there to take it
                self._line.send(*self._mirror.changes())
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._is_ending:
            self._line.send(End())
        self._line.close()

    def _hear(self) -> None:
        for frame in self._line.receive():
            if isinstance(frame, Start):
                self._start(frame)
            elif isinstance(frame, FilePart):
                self._mirror.receive(frame)
            elif isinstance(frame, Pmi) and self._ranks is not None:
                self._ranks.reply(frame.rank, frame.line)
            elif isinstance(frame, End):
                self._is_ending = True

    def _start(self, start: Start) -> None:
        # The ranks' own token tells them from this process, and from those of another host.
        environment = {
            **_network(self._line.address),
            **rank_environment(f"{start.job}@{self._host}", len(start.ranks)),
            **start.environment,
        }
        self._ranks = LocalRanks(
            start.module,
            self._folder,
            start.ranks,
            start.size,
            environment,
            self._folder / f"output.{self._host}",
        )

    def _tell(self, ranks: LocalRanks) -> None:
        """Hand on what ranks have said; with an end, all that was written before."""
        for event in ranks.serve(POLL_S):
            if isinstance(event, PmiLine):
                self._line.send(Pmi(event.rank, event.line))
            else:
                self._line.send(*self._mirror.changes())
                self._line.send(Ended(event.rank, event.code, event.is_done))


def _network(address: str) -> dict[str, str]:
    """Settings with which UCX meets other hosts on the interface of an address, and no other."""
    interface = _interface(address)
    devices = {} if interface is None else {"UCX_NET_DEVICES": interface}
    return {"UCX_TLS": "tcp,self", **devices}


def _interface(address: str) -> str | None:
    """Network interface that has an address; None where that cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _connected(orders: Orders) -> socket.socket:
    """Connection to the command."""
    try:
        return socket.create_connection((orders.address, orders.port), CONNECT_S_MAX)
    except OSError as error:
        raise SystemExit(
            f"this host does not reach the command at {orders.address}:{orders.port}: "
            f"{error.strerror or error}; --address names another of its addresses"
        ) from None


def host_number(orders: Orders, name: str | None) -> int:
    """Number of this host: by the name that its launcher has for it, or by its host name.

    Parameters
    ----------
    orders
        Has the names of all hosts.
    name
        What the launcher calls it; None: what Slurm calls it, or it itself.
    """
    if name is not None and name in orders.hosts:
        return orders.hosts.index(name)
    names = [os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()]
    short = [host.partition(".")[0] for host in orders.hosts]
    for called in names:
        if called in orders.hosts:
            return orders.hosts.index(called)
        if called.partition(".")[0] in short:
            return short.index(called.partition(".")[0])
    raise SystemExit(f"this host is `{names[-1]}`, and the hosts are {', '.join(orders.hosts)}")


def main() -> NoReturn:
    """Be the agent of this host; its name may be the first argument."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    number = host_number(orders, sys.argv[1] if len(sys.argv) > 1 else None)
    line = FrameLine(_connected(orders))
    line.send(Hello(orders.token, number))
    folder = Path(tempfile.mkdtemp(prefix="millrace-"))
    beating = Beating()
    beating.add(line)
    agent = HostAgent(line, number, folder)

    def unwind(signal_number: int, frame: object) -> None:
        raise SystemExit(128 + signal_number)

    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, unwind)
    try:
        agent.serve()
    finally:
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, signal.SIG_IGN)
        agent.end()
    sys.exit(0)


if __name__ == "__main__":
    main()
