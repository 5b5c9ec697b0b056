"""Versions: which firing of a step makes what another reads, and in which slots they lie.

Firings and versions are counted from the start of a step. Versions below a register's `initial`
are there when the step starts; what a step's firings make follows after them.
"""

from collections.abc import Iterator
from math import gcd, lcm
from typing import NamedTuple

from millrace.planner.actors.graph import Program

Slots = tuple[int, ...]


class Firing(NamedTuple):
    """One firing of an actor within a step."""

    actor: int
    firing: int


class Versions:
    """The makers and readers of every register of a program, version by version.

    Parameters
    ----------
    program
        The program, which `millrace.planner.actors.validate` has accepted: one maker per register,
        and every reader reads as many versions a step as are made.

    Attributes
    ----------
    period
        The least number of steps after which every firing has the slots of the first step again.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._maker: dict[int, tuple[int, int]] = {}  # register → actor and hold
        self._readers: dict[int, list[tuple[int, int]]] = {}
        for index, actor in enumerate(program.actors):
            for port in actor.outputs:
                self._maker[port.register] = index, port.hold
            for port in actor.inputs:
                self._readers.setdefault(port.register, []).append((index, port.hold))
        self.period = lcm(
            *(
                register.slots // gcd(register.slots, self.of_step(index))
                for index, register in enumerate(program.registers)
                if register.initial
            )
        )

    def of_step(self, register: int) -> int:
        """Number of versions of a register that a step makes."""
        if register not in self._maker:
            return 0
        actor, hold = self._maker[register]
        return self.program.actors[actor].firings // hold

    def slots(self, firing: Firing, step: int) -> tuple[Slots, Slots]:
        """Slots that a firing of step number `step` reads and writes."""
        actor = self.program.actors[firing.actor]
        return (
            tuple(self.slot(p.register, firing.firing // p.hold, step) for p in actor.inputs),
            tuple(
                self.slot(p.register, self.written_version(p.register, p.hold, firing.firing), step)
                for p in actor.outputs
            ),
        )

    def slot(self, register: int, version: int, step: int) -> int:
        """Slot of a version: what no step hands to the next begins every step in slot 0."""
        register_info = self.program.registers[register]
        before = step * self.of_step(register) if register_info.initial else 0
        return (before + version) % register_info.slots

    def written_version(self, register: int, hold: int, firing: int) -> int:
        """Version that a firing of a register's maker makes or adds to."""
        return self.program.registers[register].initial + firing // hold

    def maker(self, register: int, version: int) -> Firing | None:
        """Last firing that makes a version; None if the step starts with it."""
        step_version = version - self.program.registers[register].initial
        if step_version < 0 or register not in self._maker:
            return None
        actor, hold = self._maker[register]
        return Firing(actor, (step_version + 1) * hold - 1)

    def readers(self, register: int, version: int) -> Iterator[Firing]:
        """Last firing of every reader of a version."""
        for actor, hold in self._readers.get(register, ()):
            yield Firing(actor, (version + 1) * hold - 1)

    def needs(self, firing: Firing) -> Iterator[Firing]:
        """Firings of the step that must be complete before one begins, but for its queues.

        The makers of what it reads; and, for each slot it writes, those who read what was there.
        """
        actor = self.program.actors[firing.actor]
        for port in actor.inputs:
            maker = self.maker(port.register, firing.firing // port.hold)
            if maker is not None:
                yield maker
        for port in actor.outputs:
            slots = self.program.registers[port.register].slots
            before = self.written_version(port.register, port.hold, firing.firing) - slots
            if before >= 0:
                yield from self.readers(port.register, before)
