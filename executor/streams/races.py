"""Races: a proof that no two commands of a buffer get in each other's way in the arena.

Of every byte, the commands that read or write it are gone through in the host's order. A write must
come after the write before it and after all reads since; a read after the write before it, and that
write must have made the version that is to be read. What "after" means, streams and waits alone say
(`vector_clocks.py`). Because "after" carries over, neighbours are enough to compare: this is how
FastTrack finds races (Flanagan and Freund, "FastTrack: efficient and precise dynamic race
detection", 2009, section 3). It holds for every timing, not for the one that was tried.

What ranks order by meeting each other is left out, so that the proof needs nothing of the
transport. A collective reads an input per part; further ones are only waited for.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace.executor.streams.commands import Command, CommandBuffer
from millrace.executor.streams.vector_clocks import Clocks
from millrace.executor.streams.versions import Firing, Versions
from millrace.planner.actors.graph import HOST, ActorGraph

FROM_BEFORE = -1  # made before the step
NOTHING = -2  # there is no version yet
ANYTHING = -3  # overwritten whatever it was


class Access(NamedTuple):
    """Read or write of one slot of a register by a command.

    `expects` is the command whose write it must find there. After the last command come reads by
    the next step, of what it is to find; their command is the number of commands.
    """

    command: int
    writes: bool
    register: int
    slot: int
    expects: int = ANYTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two commands of one rank that share bytes of its arena as they must not.

    Parameters
    ----------
    rank, step
        Where, and in which step of the period.
    commands
        The two, as they are issued; one where bytes are read that nobody wrote.
    registers
        Names of the registers they access there.
    start_bytes, end_bytes
        Bytes of the arena; `host` says of which one.
    host
        Whether that is the arena in the memory of the node.
    message
        All of it in words.
    """

    rank: int
    step: int
    commands: tuple[int, ...]
    registers: tuple[str, ...]
    start_bytes: int
    end_bytes: int
    host: bool
    message: str


def find_races(graph: ActorGraph, buffer: CommandBuffer) -> list[Race]:
    """Races: the pairs of accesses to common bytes that are not ordered, or ordered wrongly.

    Parameters
    ----------
    graph, buffer
        What was compiled, and the commands made of it.

    Returns
    -------
    list of Race
        None is the proof. One entry per pair of commands and registers, ranks and steps in order.
    """
    return [
        race
        for step, commands in enumerate(buffer.steps)
        for rank, names in zip(buffer.ranks, buffer.streams, strict=True)
        for race in _Search(graph, rank, step, commands, len(names)).races()
    ]


Bytes = tuple[int, int]  # from, up to
Conflict = tuple[str, Access | None, Access]


class _Search:
    """The accesses of one rank in one step, and what of them is in no order."""

    def __init__(
        self, graph: ActorGraph, rank: int, step: int, commands: Sequence[Command], streams: int
    ) -> None:
        self.rank, self.step, self.commands = rank, step, commands
        self.program = graph.programs[graph.program_of(rank)]
        self.versions = Versions(self.program)
        self.clocks = Clocks(streams)
        self.numbers: dict[Firing, int] = {}
        for number, command in enumerate(commands):
            if command.rank == rank:
                self.clocks.issue(number, command.stream, command.waits)
                self.numbers[Firing(command.actor, command.firing)] = number

    def races(self) -> Iterator[Race]:
        """Races in the device's arena and in the host's."""
        arenas: dict[bool, dict[Bytes, list[Access]]] = {False: {}, True: {}}
        for access in self._accesses():
            register = self.program.registers[access.register]
            start = register.start_bytes(access.slot)
            arena = arenas[register.memory_kind == HOST]
            arena.setdefault((start, start + register.slot_bytes), []).append(access)
        for host, places in arenas.items():
            bytes_by_conflict: dict[Conflict, Bytes] = {}
            for (start, end), accesses in _intervals(places):
                for conflict in self._conflicts(accesses):
                    first, _ = bytes_by_conflict.get(conflict, (start, end))
                    bytes_by_conflict[conflict] = first, end
            for (why, before, access), (start, end) in bytes_by_conflict.items():
                yield self._race(why, before, access, start, end, host)

    def _accesses(self) -> Iterator[Access]:
        """Accesses of every command, reads first; then the reads of the next step."""
        for firing, number in self.numbers.items():
            actor, command = self.program.actors[firing.actor], self.commands[number]
            for port, slot in zip(actor.read, command.reads, strict=False):  # no waits
                maker = self._write_of(port.register, firing.firing // port.hold)
                yield Access(number, False, port.register, slot, maker)
            for port, slot in zip(actor.outputs, command.writes, strict=True):
                if firing.firing % port.hold:  # adds to what the firing before left
                    before = self.numbers[Firing(firing.actor, firing.firing - 1)]
                    yield Access(number, False, port.register, slot, before)
                elif port in actor.updates:
                    version = (
                        self.versions.written_version(port.register, port.hold, firing.firing) - 1
                    )
                    before = self._write_of(port.register, version)
                    yield Access(number, False, port.register, slot, before)
                yield Access(number, True, port.register, slot)
            for register in actor.state:
                first = FROM_BEFORE if self.program.registers[register].initial else NOTHING
                last = self.numbers.get(Firing(firing.actor, firing.firing - 1), first)
                yield Access(number, False, register, 0, last)
                yield Access(number, True, register, 0)
            if actor.buffer is not None:
                yield Access(number, True, actor.buffer, 0)
        yield from self._carried_reads()

    def _carried_reads(self) -> Iterator[Access]:
        """Reads of versions and states that the next step finds."""
        end = len(self.commands)
        states = {index for actor in self.program.actors for index in actor.state}
        for index, register in enumerate(self.program.registers):
            version_count = self.versions.of_step(index)
            for version in (
                range(version_count, version_count + register.initial)
                if index not in states
                else ()
            ):
                slot = self.versions.slot(index, version, self.step)
                yield Access(end, False, index, slot, self._write_of(index, version))
        for actor_index, actor in enumerate(self.program.actors):
            for index in actor.state:
                last = self.numbers[Firing(actor_index, actor.firings - 1)]
                yield Access(end, False, index, 0, last)

    def _write_of(self, register: int, version: int) -> int:
        maker = self.versions.maker(register, version)
        if maker is None:
            return FROM_BEFORE if version >= 0 else NOTHING
        return self.numbers[maker]

    def _conflicts(self, accesses: Sequence[Access]) -> Iterator[Conflict]:
        """Conflicts in bytes that all these accesses have in common."""
        write: Access | None = None
        reads: dict[int, list[Access]] = {}  # since that write, the latest command of each stream
        for access in accesses:
            last = access.command == len(self.commands)
            stream = -1 if last else self.commands[access.command].stream
            if write is not None and not self._after(write, access):
                yield "race", write, access
            elif not access.writes and access.expects != self._content(write):
                yield "content", write, access
            if access.writes:
                for some in reads.values():
                    yield from (
                        ("race", read, access) for read in some if not self._after(read, access)
                    )
                write, reads = access, {}
            elif stream in reads and reads[stream][0].command == access.command:
                reads[stream].append(access)
            else:
                reads[stream] = [access]

    def _content(self, write: Access | None) -> int:
        """Command that made what bytes hold; what was there before the step is nobody's."""
        return FROM_BEFORE if write is None else write.command

    def _after(self, first: Access, second: Access) -> bool:
        """True if the second access comes after the first; one command may update in place."""
        if second.command == len(self.commands):
            return True
        if first.command == second.command:
            return first[2:4] == second[2:4]
        return self.clocks.before(first.command, second.command)

    def _race(
        self, why: str, before: Access | None, access: Access, start: int, end: int, host: bool
    ) -> Race:
        pair = (access,) if before is None else (before, access)
        if why == "race":
            cause = "neither streams nor waits order them"
        elif access.expects == NOTHING:
            cause = "there is no version yet that it could read"
        else:
            cause = f"expected there: what {self._maker(access.expects)} made"
        where = f"bytes {start} to {end} of the {'host' if host else 'device'}'s arena"
        told = " and ".join(map(self._access_text, pair))
        return Race(
            rank=self.rank,
            step=self.step,
            commands=tuple(party.command for party in pair),
            registers=tuple(self.program.registers[party.register].name for party in pair),
            start_bytes=start,
            end_bytes=end,
            host=host,
            message=f"rank {self.rank}: {told}, {where}: {cause}",
        )

    def _access_text(self, access: Access) -> str:
        register = self.program.registers[access.register].name
        verb = "writes" if access.writes else "reads"
        name = self._maker(access.command)
        return f"{name} {verb} slot {access.slot} of `{register}`"

    def _maker(self, command: int) -> str:
        if command == FROM_BEFORE:
            return "the step before"
        if command == len(self.commands):
            return "the step after"
        maker = self.commands[command]
        return f"`{self.program.actors[maker.actor].name}` firing {maker.firing}"


def _intervals(
    places: dict[Bytes, list[Access]],
) -> Iterator[tuple[Bytes, list[Access]]]:
    """Cut the arena where places begin or end; per piece, all accesses in the host's order."""
    bounds = sorted({bound for place in places for bound in place})
    over: list[list[Bytes]] = [[] for _ in bounds]
    for place in sorted(places):
        for piece in range(bisect_left(bounds, place[0]), bisect_left(bounds, place[1])):
            over[piece].append(place)
    for piece, some in enumerate(over):
        if len(some) == 1:
            yield (bounds[piece], bounds[piece + 1]), places[some[0]]
        elif some:
            # Sorting keeps each command's reads before its writes.
            accesses = [access for place in some for access in places[place]]
            accesses.sort(key=lambda access: access[:2])
            yield (bounds[piece], bounds[piece + 1]), accesses
