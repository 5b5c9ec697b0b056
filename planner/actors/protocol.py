"""The actor protocol of one rank as a sans-IO state machine: events in, fire commands out.

There is no clock, thread, socket or array here. A driver asks `start()` for the first commands,
carries each out in its own way and reports `issued` and `completed`; both return the commands that
have become possible. An actor fires when

* it is next in each of its queues,
* every input register holds the version it reads (firing // hold), and
* every output register has the slot of the version it writes (version mod slots) free, which means
  that every consumer has given back the version that was there before.

With one producer per register, versions read in production order and static queue orders this is
a marked graph, hence confluent: which slot a firing reads and writes does not depend on timing
(Lee and Messerschmitt, "Static scheduling of synchronous data flow programs", 1987; Commoner et
al., "Marked directed graphs", 1971).
"""

from typing import NamedTuple

from planner.actors.graph import Leave, Program
from planner.errors import ProtocolError


class Fire(NamedTuple):
    """Command: do firing `firing` of `actor` on these slots of its input and output ports."""

    actor: int
    firing: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Wait(NamedTuple):
    """Why the next actor of a queue cannot fire: `on` is the actor it waits for."""

    actor: int
    firing: int
    reason: str  # "input", "slot", "queue", "meeting"
    what: str  # name of the register or queue
    on: int


class Protocol:
    """State of one rank that runs `program` for `steps` steps."""

    def __init__(self, program: Program, steps: int = 1) -> None:
        actors, registers = program.actors, program.registers
        self.program = program
        self.steps = steps
        self._fired = [0] * len(actors)
        self._done = [0] * len(actors)
        self._total = [actor.firings * steps for actor in actors]
        self._left = sum(self._total)
        self._produced = [register.initial for register in registers]
        # Per register, the number of versions that each consumer has given back.
        self._released: list[list[int]] = [[] for _ in registers]
        self._producer = [-1] * len(registers)
        self._consumers: list[list[int]] = [[] for _ in registers]
        # Ports as (register, hold, slots, initial versions | index among the register's consumers).
        self._inputs: list[list[tuple[int, int, int, int]]] = []
        self._outputs: list[list[tuple[int, int, int, int]]] = []
        for index, actor in enumerate(actors):
            ports = []
            for port in actor.inputs:
                r = port.register
                ports.append((r, port.hold, registers[r].slots, len(self._released[r])))
                self._released[r].append(0)
                self._consumers[r].append(index)
            self._inputs.append(ports)
            self._outputs.append(
                [
                    (p.register, p.hold, registers[p.register].slots, registers[p.register].initial)
                    for p in actor.outputs
                ]
            )
            for port in actor.outputs:
                self._producer[port.register] = index
        self._queues = [list(queue.order) for queue in program.queues]
        self._head = [0] * len(program.queues)
        self._length = [len(queue.order) * steps for queue in program.queues]
        # Whose turn it is in each queue, -1 at its end.
        self._turn = [queue.order[0] if queue.order else -1 for queue in program.queues]
        self._issue_queues = [self._leaving(a.queues, Leave.ISSUED) for a in actors]
        self._done_queues = [self._leaving(a.queues, Leave.COMPLETED) for a in actors]
        self._member = [actor.queues for actor in actors]
        # Most attempts fail on the turn in the first queue, so that is looked up before the call.
        self._lane = [actor.queues[0] for actor in actors]

    def _leaving(self, queues: tuple[int, ...], leave: Leave) -> tuple[int, ...]:
        return tuple(q for q in queues if self.program.queues[q].leave is leave)

    @property
    def finished(self) -> bool:
        """True once every firing of every step has completed."""
        return self._left == 0

    def start(self) -> list[Fire]:
        """Return the commands that are possible before any event."""
        commands: list[Fire] = []
        for actor in self._turn:
            if actor >= 0:
                self._try(actor, commands)
        return commands

    def issued(self, actor: int) -> list[Fire]:
        """Take note that `actor` was handed over; return the commands that makes possible."""
        commands: list[Fire] = []
        for queue in self._issue_queues[actor]:
            self._advance(queue, commands)
        return commands

    def completed(self, actor: int) -> list[Fire]:
        """Take note that `actor`'s current firing is done; return what it makes possible.

        Raises
        ------
        ProtocolError
            The actor has no firing under way.
        """
        firing = self._done[actor]
        if firing >= self._fired[actor]:
            name = self.program.actors[actor].name
            raise ProtocolError(f"actor `{name}` completed firing {firing} before it was fired")
        self._done[actor] = firing + 1
        self._left -= 1
        commands: list[Fire] = []
        for queue in self._done_queues[actor]:
            self._advance(queue, commands)
        turn, lane = self._turn, self._lane
        done = firing + 1
        for register, hold, _, consumer in self._inputs[actor]:
            if hold == 1 or done % hold == 0:
                self._released[register][consumer] += 1
                producer = self._producer[register]
                if producer >= 0 and turn[lane[producer]] == producer:
                    self._try(producer, commands)
        for register, hold, _, _ in self._outputs[actor]:
            if hold == 1 or done % hold == 0:
                self._produced[register] += 1
                for index in self._consumers[register]:
                    if turn[lane[index]] == index:
                        self._try(index, commands)
        return commands

    def _advance(self, queue: int, commands: list[Fire]) -> None:
        """Leave a queue to its next actor."""
        head = self._head[queue] = self._head[queue] + 1
        if head < self._length[queue]:
            order = self._queues[queue]
            actor = self._turn[queue] = order[head % len(order)]
            self._try(actor, commands)
        else:
            self._turn[queue] = -1

    def _try(self, actor: int, commands: list[Fire]) -> None:
        """Fire `actor` if nothing holds it back."""
        firing = self._fired[actor]
        if firing != self._done[actor]:
            return
        turn = self._turn
        for queue in self._member[actor]:
            if turn[queue] != actor:
                return
        produced = self._produced
        reads = []
        for register, hold, slots, _ in self._inputs[actor]:
            version = firing // hold
            if version >= produced[register]:
                return
            reads.append(version % slots)
        writes = []
        for register, hold, slots, initial in self._outputs[actor]:
            version = firing // hold + initial
            if version >= slots:
                before = version - slots + 1
                for released in self._released[register]:
                    if released < before:
                        return
            writes.append(version % slots)
        self._fired[actor] = firing + 1
        commands.append(Fire(actor, firing, tuple(reads), tuple(writes)))

    def under_way(self) -> list[tuple[int, int]]:
        """Actors that were fired and have not completed, each with its firing."""
        return [(a, self._done[a]) for a, f in enumerate(self._fired) if f > self._done[a]]

    def waits(self, queue: int | None = None) -> list[Wait]:
        """What the actors at the heads of the queues, or of one, wait for."""
        found: list[Wait] = []
        for index in range(len(self._queues)) if queue is None else (queue,):
            order, head = self._queues[index], self._head[index]
            if head < self._length[index]:
                found.extend(self.reasons(order[head % len(order)]))
        return list(dict.fromkeys(found))

    def reasons(self, actor: int) -> list[Wait]:
        """What holds back the next firing of one actor."""
        firing = self._fired[actor]
        if firing != self._done[actor] or firing >= self._total[actor]:
            return []
        names = self.program.registers
        found = []
        for queue in self._member[actor]:
            order = self._queues[queue]
            head = order[self._head[queue] % len(order)]
            if head != actor:
                what = self.program.queues[queue].name
                found.append(Wait(actor, firing, "queue", what, head))
        for register, hold, _, _ in self._inputs[actor]:
            if firing // hold >= self._produced[register]:
                what, on = names[register].name, self._producer[register]
                found.append(Wait(actor, firing, "input", what, on))
        for register, hold, slots, initial in self._outputs[actor]:
            before = firing // hold + initial - slots + 1
            for consumer, released in zip(
                self._consumers[register], self._released[register], strict=True
            ):
                if released < before:
                    found.append(Wait(actor, firing, "slot", names[register].name, consumer))
        return found
