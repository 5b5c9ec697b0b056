"""Links to the hosts of a run: agents are started there, heard, and told to end.

The command listens on one address, that on the way to its hosts (and on this machine's own for an
agent here), as long as agents are awaited; who comes must know a secret.
"""

import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

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
from millrace.executor.hosts.host_agent import Orders
from millrace.executor.hosts.host_list import HostRanks, Hosts, start_command
from millrace.executor.hosts.job_remains import Sweeper, named_segments
from millrace.executor.hosts.local_ranks import END_S_MAX, LOCAL, Event, PmiLine, RankEnded

ARRIVE_S_MAX = 60.0
OUTSIDE = "192.0.2.1"  # an address that is nobody's (RFC 5737), behind the default route
LAST_LINES = 3
# Variables that hosts get too: how ranks meet, and which kernels libraries choose, without which
# ranks of unlike environments would differ in their last bits.
WAYS = (
    *("UCX_", "MPIR_", "MPICH_", "FI_", "NCCL_", "MILLRACE_"),
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "NPY_DISABLE_CPU_FEATURES"),
)


@dataclass(slots=True, kw_only=True)
class HostLink:
    """Link to one host.

    Attributes
    ----------
    host
        Its name and ranks.
    launcher, program
        Process here that has started its agent, and perhaps others, and its name.
    output
        What that prints.
    line
        Connection to the agent; None before it has come.
    ended
        Ranks whose end was told.
    is_gone
        True once the agent has said that nothing is left, or has gone itself.
    """

    host: HostRanks
    launcher: subprocess.Popen[bytes]
    program: str
    output: Path
    line: FrameLine | None = None
    ended: set[int] = field(default_factory=set)
    is_gone: bool = False


class HostLinks:
    """Processes of the ranks of several hosts.

    Parameters
    ----------
    hosts
        How something is started there.
    used
        The hosts that are used and their ranks.
    module
        Module that every rank runs.
    folder
        The job's folder on this machine: what hosts write in theirs appears here, and the other
        way round.
    job
        Token of the job's processes.
    environment
        This command's variables, of which hosts get those that begin as `WAYS` do.
    listening
        Called with the sentence that says where this listens.
    """

    def __init__(
        self,
        hosts: Hosts,
        used: Sequence[HostRanks],
        module: str,
        folder: Path,
        job: str,
        environment: Mapping[str, str],
        listening: Callable[[str], None] | None = None,
    ) -> None:
        self._module, self._folder, self._job = module, folder, job
        self._size = sum(len(host.ranks) for host in used)
        handed_on = {name: value for name, value in environment.items() if name.startswith(WAYS)}
        self._environment = {**(LOCAL if len(used) == 1 else {}), **handed_on}
        self._token = secrets.token_hex(16)
        self._arriving: list[FrameLine] = []
        self._links: list[HostLink] = []
        self._link_by_rank: dict[int, HostLink] = {}
        # Hosts get the job, and which step is to be saved; what hosts write is never sent back.
        self._mirror = FolderMirror(folder, lambda name: not name.startswith("launcher."))
        self._started = False
        self._began_s = self._mirrored_s = monotonic()
        self._beating = Beating()
        self._sweeper = Sweeper(folder, job, named_segments())
        self._listener = _listener(hosts)
        try:
            if listening is not None:
                address, port = self._listener.getsockname()[:2]
                listening(f"listening on {address}:{port} for the hosts of the run")
            self._start_agents(hosts, used)
        except BaseException:
            self.end()
            raise

    @property
    def running(self) -> bool:
        """True while there is a rank whose end was not told."""
        return any(len(link.ended) < len(link.host.ranks) for link in self._links)

    def serve(self, wait_s: float) -> list[Event]:
        """Events since the last call."""
        waits: list[FrameLine | socket.socket] = [
            link.line for link in self._links if link.line and self._is_there(link)
        ]
        if not self._started:
            waits += [*self._arriving, self._listener]
        wait_for_any(waits, wait_s)
        if not self._started:
            self._welcome()
            if (missing := self._missing()) is not None:
                return [missing]
        now_s = monotonic()
        if self._started and now_s - self._mirrored_s > MIRROR_S:
            self._mirrored_s = now_s
            self._send_all(list(self._mirror.changes()))
        return [event for link in self._links for event in self._heard(link)]

    def reply(self, rank: int, line: str) -> None:
        """Send a line to a rank's MPI."""
        link = self._link_by_rank[rank]
        if link.line is not None:
            link.line.send(Pmi(rank, line))

    def end(self) -> None:
        """End what still runs on all hosts, and wait until it has gone, or the host has."""
        for link in self._links:
            if link.line is not None:
                link.line.send(End())
        deadline = monotonic() + END_S_MAX + SILENT_S_MAX
        while monotonic() < deadline and any(self._is_there(link) for link in self._links):
            lines = [link.line for link in self._links if self._is_there(link) and link.line]
            wait_for_any(lines, 0.1)
            for link in self._links:
                self._heard(link)
        self._beating.close()
        for link in self._links:
            if link.line is not None:
                link.line.close()
            with suppress(ProcessLookupError):
                link.launcher.terminate()
        for link in self._links:
            try:
                link.launcher.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                link.launcher.kill()
                link.launcher.wait()
        for line in self._arriving:
            line.close()
        self._listener.close()
        self._sweeper.close()

    def _start_agents(self, hosts: Hosts, used: Sequence[HostRanks]) -> None:
        address, port = self._listener.getsockname()[:2]
        orders = Orders(
            address=address,
            port=port,
            token=self._token,
            hosts=tuple(host.name for host in used),
        )
        text = msgspec.json.encode(orders) + b"\n"
        for numbers, command in start_command(hosts, used, _agent_command()):
            output = self._folder / f"launcher.{numbers[0]}"
            with output.open("wb") as sink:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,
                )
            for number in numbers:
                link = HostLink(
                    host=used[number], launcher=process, program=command[0], output=output
                )
                self._links.append(link)
                self._link_by_rank |= dict.fromkeys(link.host.ranks, link)
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.write(text)
                process.stdin.close()

    def _welcome(self) -> None:
        """Take in agents that have come, and start the ranks when all have."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(True)
                self._arriving.append(FrameLine(connection))
        for line in tuple(self._arriving):
            for frame in line.receive():
                if (
                    isinstance(frame, Hello)
                    and secrets.compare_digest(frame.token, self._token)
                    and 0 <= frame.host < len(self._links)
                    and self._links[frame.host].line is None
                ):
                    self._links[frame.host].line = line
                    self._beating.add(line)
                else:
                    line.close()
                self._arriving.remove(line)
                break
            else:
                if line.is_closed:
                    self._arriving.remove(line)
                    line.close()
        if all(link.line is not None for link in self._links):
            self._started = True
            self._listener.close()
            self._send_all(list(self._mirror.changes()))
            for link in self._links:
                assert link.line is not None
                start = Start(
                    module=self._module,
                    job=self._job,
                    ranks=link.host.ranks,
                    size=self._size,
                    environment=self._environment,
                )
                link.line.send(start)

    def _send_all(self, parts: list[FilePart]) -> None:
        for link in self._links:
            if link.line is not None and parts:
                link.line.send(*parts)

    def _missing(self) -> RankEnded | None:
        """End of the first rank of a host whose agent does not come."""
        late = monotonic() - self._began_s > ARRIVE_S_MAX
        for link in self._links:
            code = link.launcher.poll()
            if link.line is None and not self._started and (late or code is not None):
                how = (
                    f"no agent has come from it in {ARRIVE_S_MAX:.0f} s"
                    if code is None
                    else f"`{link.program}` ended with code {code}"
                )
                return self._lost(link, f"{how}{_last_lines(link.output)}")
        return None

    def _heard(self, link: HostLink) -> list[Event]:
        """Events of one host; what its folder holds is written here."""
        events: list[Event] = []
        if link.line is None or link.is_gone:
            return events
        for frame in link.line.receive():
            if isinstance(frame, FilePart):
                self._mirror.receive(frame)
            elif isinstance(frame, Pmi):
                events.append(PmiLine(frame.rank, frame.line))
            elif isinstance(frame, Ended):
                link.ended.add(frame.rank)
                events.append(RankEnded(frame.rank, frame.code, frame.is_done))
            elif isinstance(frame, End):
                link.is_gone = True
        silent_s = monotonic() - link.line.heard_s
        if link.line.is_closed or silent_s > SILENT_S_MAX:
            was_running = len(link.ended) < len(link.host.ranks)
            link.is_gone = True
            if was_running:
                how = (
                    "its agent has gone"
                    if link.line.is_closed
                    else f"it has not answered for {silent_s:.0f} s"
                )
                events.append(self._lost(link, f"{how}{_last_lines(link.output)}"))
        return events

    def _is_there(self, link: HostLink) -> bool:
        return link.line is not None and not link.is_gone and not link.line.is_closed

    def _lost(self, link: HostLink, how: str) -> RankEnded:
        ranks = link.host.ranks
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        cause = f"host `{link.host.name}`, which has {which}, is lost: {how}"
        return RankEnded(ranks[0], None, False, cause, link.host.name)


def _agent_command() -> list[str]:
    """Command that is an agent, on a host that has this environment at the same place."""
    root = str(Path(__file__).absolute().parents[3])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); "
        "from millrace.executor.hosts.host_agent import main; main()"
    )
    return [sys.executable, "-P", "-c", code]


def _listener(hosts: Hosts) -> socket.socket:
    """Socket on the address by which hosts reach this machine."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((hosts.address or _own_address(hosts.names), 0))
    listener.listen(len(hosts.names) + 8)
    listener.setblocking(False)
    return listener


def _own_address(hosts: Sequence[str]) -> str:
    """Address of this machine on the way to the first host that is another machine.

    Where no name is known here (ssh may know it), on the way to the world.
    """
    address = None
    for host in (*hosts, OUTSIDE):
        if host == OUTSIDE and address is not None:
            break
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((host, 9))  # nothing is sent
            address = str(way.getsockname()[0])
            if not address.startswith("127."):
                return address
    return address or "127.0.0.1"


def _last_lines(output: Path) -> str:
    with suppress(OSError):
        lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return f"; it says: {' | '.join(lines[-LAST_LINES:])}"
    return ""
