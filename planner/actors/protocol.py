"""The actor protocol of one rank as a sans-IO state machine: events in, fire commands out.

There is no clock, thread, socket or array here. A driver asks `start()` for the first commands,
carries each out in its own way and reports `issued` and `completed`; both return the commands that
have become possible. An actor fires when

* it is next in each of its queues,
* every input register that is written holds the version it reads (firing // hold), and
* every output register has the slot of the version it writes (version mod slots) free, which means
  that every consumer has given back the version that was there before.

With one producer per register, versions read in production order and static queue orders this is
a marked graph, hence confluent: which slot a firing reads and writes does not depend on timing
(Lee and Messerschmitt, "Static scheduling of synchronous data flow programs", 1987; Commoner et
al., "Marked directed graphs", 1971).
"""

from collections.abc import Iterable
from itertools import chain, repeat
from typing import NamedTuple

from millrace.planner.actors.graph import Leave, Port, Program
from millrace.planner.errors import ProtocolError


class Fire(NamedTuple):
    """Command: do firing `firing` of `actor` on these slots of its input and output ports."""

    actor: int
    firing: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Wait(NamedTuple):
    """Reason why the next actor of a queue cannot fire; `on` is the actor it waits for."""

    actor: int
    firing: int
    reason: str  # "input", "slot", "queue", "meeting"
    what: str  # name of the register or queue
    on: int


class ActorProtocol:
    """State of one rank that runs `program` for `steps` steps.

    Every condition of an actor's next firing is a place that holds tokens (versions to read, slots
    to write, its turn in a queue), and `_short` counts those of its places that are empty: a firing
    is due when none is. So an event touches only what it changes.
    """

    def __init__(self, program: Program, steps: int = 1) -> None:
        actors = program.actors
        self.program = program
        self.steps = steps
        self._fired = [0] * len(actors)
        self._done = [0] * len(actors)
        self._total = [actor.firings * steps for actor in actors]
        self._left = sum(self._total)
        self._short = [0] * len(actors)
        self._tokens: list[int] = []
        # An actor takes from places at every firing, or at one of several (place, how many), and
        # fills others when it is done (place, who takes from it, at one of how many).
        self._takes: list[list[int]] = [[] for _ in actors]
        self._rarely: list[list[tuple[int, int]]] = [[] for _ in actors]
        self._fills: list[list[tuple[int, int, int]]] = [[] for _ in actors]
        self._connect()
        # `_turn` is the actor whose turn it is in each queue, -1 at its end; `_coming` those after.
        self._coming = [chain.from_iterable(repeat(queue.order, steps)) for queue in program.queues]
        self._turn = [next(coming, -1) for coming in self._coming]
        self._member = [actor.queues for actor in actors]
        issued, completed = (
            {queues: self._leaving(queues, leave) for queues in set(self._member)}
            for leave in (Leave.ISSUED, Leave.COMPLETED)
        )
        self._issue_queues = [issued[queues] for queues in self._member]
        self._done_queues = [completed[queues] for queues in self._member]
        for index, actor in enumerate(actors):
            self._short[index] += sum(self._turn[queue] != index for queue in actor.queues)

    def _connect(self) -> None:
        """Make the places: per reader of a register its versions and, for the writer, its slots."""
        actors, registers, fills = self.program.actors, self.program.registers, self._fills
        writer: dict[int, tuple[int, int]] = {}
        outputs = [[(port.register, port.hold) for port in actor.outputs] for actor in actors]
        for index, rows in enumerate(outputs):
            for number, hold in rows:
                writer[number] = index, hold
        readers: dict[int, list[tuple[int, int]]] = {number: [] for number in writer}
        for index, actor in enumerate(actors):
            for port in actor.inputs:
                number, hold = port.register, port.hold
                if number not in writer:
                    continue  # it is there for good
                register, (maker, maker_hold) = registers[number], writer[number]
                readers[number].append((self._place(index, hold, register.initial), index))
                free = self._place(maker, maker_hold, register.slots - register.initial)
                fills[index].append((free, maker, hold))
        for filled, rows in zip(fills, outputs, strict=True):
            for number, hold in rows:
                for versions, reader in readers[number]:
                    filled.append((versions, reader, hold))

    def _place(self, actor: int, hold: int, tokens: int) -> int:
        """Add a place that an actor takes from once in `hold` firings."""
        place = len(self._tokens)
        self._tokens.append(tokens)
        self._short[actor] += tokens <= 0
        if hold == 1:
            self._takes[actor].append(place)
        else:
            self._rarely[actor].append((place, hold))
        return place

    def _leaving(self, queues: tuple[int, ...], leave: Leave) -> tuple[int, ...]:
        return tuple(q for q in queues if self.program.queues[q].leave is leave)

    @property
    def finished(self) -> bool:
        """True if every firing of every step has completed."""
        return self._left == 0

    def start(self) -> list[Fire]:
        """Fire what is possible before any event; return the commands."""
        return [self.command(actor) for actor in self.begin()]

    def issued(self, actor: int) -> list[Fire]:
        """Take note that `actor` was handed over; return the commands that makes possible."""
        return [self.command(other) for other in self.leave(actor)]

    def completed(self, actor: int) -> list[Fire]:
        """Take note that `actor`'s current firing is done; return what it makes possible.

        Raises
        ------
        ProtocolError
            The actor has no firing under way.
        """
        return [self.command(other) for other in self.finish(actor)]

    def firing(self, actor: int) -> int:
        """The firing of an actor that is under way, by its number."""
        return self._done[actor]

    def command(self, actor: int) -> Fire:
        """The firing of an actor that is under way, with its slots."""
        registers, definition = self.program.registers, self.program.actors[actor]
        firing = self._done[actor]
        return Fire(
            actor,
            firing,
            tuple(firing // p.hold % registers[p.register].slots for p in definition.inputs),
            tuple(
                (firing // p.hold + registers[p.register].initial) % registers[p.register].slots
                for p in definition.outputs
            ),
        )

    def begin(self) -> list[int]:
        """Fire as `start` does; return only the actors that fire."""
        due: list[int] = []
        for actor in self._turn:
            if actor >= 0 and not self._short[actor]:
                self._fire(actor, due)
        return due

    def leave(self, actor: int) -> list[int]:
        """Take note as `issued` does; return only the actors that fire."""
        due: list[int] = []
        for queue in self._issue_queues[actor]:
            self._advance(actor, queue, due)
        return due

    def finish(self, actor: int) -> list[int]:
        """Take note as `completed` does; return only the actors that fire."""
        firing = self._done[actor]
        if firing >= self._fired[actor]:
            name = self.program.actors[actor].name
            raise ProtocolError(f"actor `{name}` completed firing {firing} before it was fired")
        self._done[actor] = done = firing + 1
        self._left -= 1
        short, tokens = self._short, self._tokens
        short[actor] -= 1
        due: list[int] = []
        for queue in self._done_queues[actor]:
            self._advance(actor, queue, due)
        for place, other, hold in self._fills[actor]:
            if hold == 1 or done % hold == 0:
                token_count = tokens[place] = tokens[place] + 1
                if token_count == 1:
                    left = short[other] = short[other] - 1
                    if not left:
                        self._fire(other, due)
        return due

    def _advance(self, actor: int, queue: int, due: list[int]) -> None:
        """Leave a queue to its next actor."""
        short = self._short
        short[actor] += 1
        after = self._turn[queue] = next(self._coming[queue], -1)
        if after >= 0:
            left = short[after] = short[after] - 1
            if not left:
                self._fire(after, due)

    def _fire(self, actor: int, due: list[int]) -> None:
        """Take what a firing needs; while it is under way its actor is short of one more thing."""
        self._fired[actor] = fired = self._fired[actor] + 1
        tokens, short = self._tokens, 1
        for place in self._takes[actor]:
            token_count = tokens[place] = tokens[place] - 1
            if not token_count:
                short += 1
        for place, hold in self._rarely[actor]:
            if fired % hold == 0:
                token_count = tokens[place] = tokens[place] - 1
                if not token_count:
                    short += 1
        self._short[actor] = short
        due.append(actor)

    def under_way(self) -> list[tuple[int, int]]:
        """Actors that were fired and have not completed, each with its firing."""
        return [(a, self._done[a]) for a, f in enumerate(self._fired) if f > self._done[a]]

    def waits(self, queue: int | None = None) -> list[Wait]:
        """Waits of the actors at the heads of the queues, or of one queue."""
        waits: list[Wait] = []
        for actor in self._turn if queue is None else (self._turn[queue],):
            if actor >= 0:
                waits.extend(self.reasons(actor))
        return list(dict.fromkeys(waits))

    def reasons(self, actor: int) -> list[Wait]:
        """Waits that hold back the next firing of one actor."""
        firing = self._fired[actor]
        if firing != self._done[actor] or firing >= self._total[actor]:
            return []
        names = self.program.registers
        waits = []
        for queue in self._member[actor]:
            head = self._turn[queue]
            if head != actor:
                what = self.program.queues[queue].name
                waits.append(Wait(actor, firing, "queue", what, head))
        for register, hold in self._ports(self.program.actors[actor].inputs):
            maker, versions = self._producer_and_versions(register)
            if maker >= 0 and firing // hold >= versions:
                waits.append(Wait(actor, firing, "input", names[register].name, maker))
        for register, hold in self._ports(self.program.actors[actor].outputs):
            initial, slots = names[register].initial, names[register].slots
            before = firing // hold + initial - slots + 1
            for consumer, reader in enumerate(self.program.actors):
                for other, reader_hold in self._ports(reader.inputs):
                    if other == register and self._done[consumer] // reader_hold < before:
                        waits.append(Wait(actor, firing, "slot", names[register].name, consumer))
        return waits

    def _ports(self, ports: Iterable[Port]) -> list[tuple[int, int]]:
        return [(port.register, port.hold) for port in ports]

    def _producer_and_versions(self, register: int) -> tuple[int, int]:
        """Actor that writes a register (-1: none), and number of versions that there have been."""
        initial = self.program.registers[register].initial
        for index, actor in enumerate(self.program.actors):
            for port in actor.outputs:
                if port.register == register:
                    return index, initial + self._done[index] // port.hold
        return -1, initial
