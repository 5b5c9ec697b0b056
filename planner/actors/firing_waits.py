"""Firing waits: the earlier firings that each firing of a program waits for, as in `ActorProtocol`.

A firing may begin when the maker of every input has ended, when the readers of what its output
slots held before have ended, and when it is next in each of its queues. It begins at the latest of
these times or after it; the last of them is the next on a critical path that is walked backwards.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.planner.actors.graph import Leave, Program

Times = NDArray[np.int64]


class Blocker(NamedTuple):
    """Firing that another waited for, and when that wait was over."""

    actor: int
    firing: int
    time_ns: int


class FiringWait(NamedTuple):
    """Firings of `actor` that another's firings wait for, -1: none; for their starts or ends."""

    actor: int
    firings: Times
    starts: bool


class FiringWaits:
    """Waits of every firing of some steps of a program; what came before them is over.

    Parameters
    ----------
    program
        With the orders of its queues.
    steps
        Number of steps.

    Attributes
    ----------
    waits
        By actor, whose firings wait.
    """

    def __init__(self, program: Program, steps: int) -> None:
        self.program = program
        self._firings = [np.arange(actor.firings * steps) for actor in program.actors]
        self.waits: list[list[FiringWait]] = [[] for _ in program.actors]
        for index, firings in enumerate(self._firings):
            self.waits[index].append(FiringWait(index, firings - 1, starts=False))
        self._wait_for_versions()
        self._wait_for_turns(steps)

    def ready_ns(
        self, starts: Sequence[Times], ends: Sequence[Times], since_ns: int = 0
    ) -> list[Times]:
        """Time from which each firing could begin.

        Parameters
        ----------
        starts, ends : sequence of arrays
            Nanoseconds by actor and firing.
        since_ns : int
            Time from which firings could begin that wait for none of these.

        Returns
        -------
        list of arrays
            Nanoseconds by actor and firing.
        """
        ready = []
        for waits, firings in zip(self.waits, self._firings, strict=True):
            latest = np.full(len(firings), since_ns)
            for wait in waits:
                times = starts[wait.actor] if wait.starts else ends[wait.actor]
                np.maximum(
                    latest, np.where(wait.firings >= 0, times[wait.firings], since_ns), out=latest
                )
            ready.append(latest)
        return ready

    def last(
        self, actor: int, firing: int, starts: Sequence[Times], ends: Sequence[Times]
    ) -> "Blocker | None":
        """Firing that a firing waited for the longest; None where it waited for none.

        Parameters
        ----------
        actor, firing : int
            The firing that waits.
        starts, ends : sequence of arrays
            Nanoseconds by actor and firing.
        """
        blocker: Blocker | None = None
        for wait in self.waits[actor]:
            other = int(wait.firings[firing])
            if other >= 0:
                times = starts[wait.actor] if wait.starts else ends[wait.actor]
                if blocker is None or times[other] > blocker.time_ns:
                    blocker = Blocker(wait.actor, other, int(times[other]))
        return blocker

    def _wait_for_versions(self) -> None:
        """Add the makers of inputs, and for outputs the readers of what their slots held."""
        program, registers = self.program, self.program.registers
        makers = {
            port.register: (index, port.hold)
            for index, actor in enumerate(program.actors)
            for port in actor.outputs
        }
        for index, actor in enumerate(program.actors):
            for port in actor.inputs:
                if port.register not in makers:
                    continue  # there for good
                register, (maker, hold) = registers[port.register], makers[port.register]
                version = self._firings[index] // port.hold - register.initial
                written = np.where(version >= 0, (version + 1) * hold - 1, -1)
                self.waits[index].append(FiringWait(maker, written, starts=False))
                taken = self._firings[maker] // hold + register.initial - register.slots + 1
                read = np.where(taken > 0, taken * port.hold - 1, -1)
                self.waits[maker].append(FiringWait(index, read, starts=False))

    def _wait_for_turns(self, steps: int) -> None:
        """Add the firing before in every queue."""
        for queue in self.program.queues:
            numbers = [0] * len(self.program.actors)
            slots = []
            for actor in queue.order * steps:
                slots.append((actor, numbers[actor]))
                numbers[actor] += 1
            rows: dict[tuple[int, int], Times] = {}
            for (before, earlier), (actor, firing) in pairwise(slots):
                key = actor, before
                if key not in rows:
                    rows[key] = np.full(len(self._firings[actor]), -1)
                rows[key][firing] = earlier
            issued = queue.leave is Leave.ISSUED
            for (actor, before), row in rows.items():
                self.waits[actor].append(FiringWait(before, row, starts=issued))
