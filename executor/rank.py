"""One rank's share of a run: its arena, its kernels, and the arrays of each firing."""

from collections.abc import Callable

import numpy as np

from millrace.executor.arena import Arena
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import Kernel, RunState, make_kernel
from millrace.executor.shards import RankValues
from millrace.executor.transport.communicator import Exchange, exchanges_of
from millrace.models.arrays import Array
from millrace.planner.actors.graph import Actor, ActorGraph
from millrace.planner.actors.protocol import Fire

Slots = tuple[int, ...]
Fired = Callable[[int, int], None]


class RankMemory(RankValues):
    """A program and a rank bound to an arena: the arrays of every firing and meeting.

    Parameters
    ----------
    graph, rank
        The actor graph and which of its ranks this is.
    block
        The bytes in which to lay out the arena; None: memory of this process.

    Attributes
    ----------
    exchanges
        The exchange of every part of every meeting actor, by actor index.
    """

    def __init__(
        self,
        graph: ActorGraph,
        rank: int,
        block: Array | None = None,
        run: RunState | None = None,
    ) -> None:
        super().__init__(graph, rank, run)
        self.arena = Arena(self.program, block)
        self.exchanges: dict[int, tuple[Exchange, ...]] = exchanges_of(graph, rank)
        # The slots of a port cycle, so the arrays of a firing are looked up, never made.
        self._arrays: list[dict[tuple[Slots, Slots], tuple[list[Array], list[Array]]]] = [
            {} for _ in self.program.actors
        ]

    def arrays(self, fire: Fire) -> tuple[list[Array], list[Array]]:
        """Arrays that a firing reads and writes."""
        arrays_by_slots = self._arrays[fire.actor]
        slots = (fire.reads, fire.writes)
        arrays = arrays_by_slots.get(slots)
        if arrays is None:
            actor, views = self.program.actors[fire.actor], self.arena.views
            # What a meeting only waits for comes behind what it reads.
            reads = [views[p.register][s] for p, s in zip(actor.read, fire.reads, strict=False)]
            writes = [views[p.register][s] for p, s in zip(actor.outputs, fire.writes, strict=True)]
            arrays = arrays_by_slots[slots] = (
                [writes[0], *reads] if actor.reads_first_output else reads,
                writes,
            )
        return arrays

    def name(self, fire: Fire) -> str:
        """Name of the actor that a command fires."""
        return self.program.actors[fire.actor].name

    def write(self, register: int, slot: int, values: Array) -> None:
        """Write this rank's shard into a slot."""
        np.copyto(self.arena.views[register][slot], values)

    def value(self, register: int, slot: int) -> Array:
        """Shard of this rank in a slot, as a view."""
        return self.arena.views[register][slot]


class RankState(RankMemory):
    """A rank's memory and the kernels of its local actors.

    Parameters
    ----------
    graph, rank
        The actor graph and which of its ranks this is.
    run
        What the kernels of this rank share.
    block
        The bytes in which to lay out the arena; None: memory of this process.

    Attributes
    ----------
    fired
        Called as `fired(actor, firing)` when a local actor has run (to save checkpoints).
    """

    def __init__(
        self, graph: ActorGraph, rank: int, run: RunState, block: Array | None = None
    ) -> None:
        super().__init__(graph, rank, block, run)
        self.fired: Fired | None = None
        self._kernels = [self._kernel(actor) for actor in self.program.actors]

    def run(self, fire: Fire) -> None:
        """Carry out one firing of a local actor."""
        inputs, outputs = self.arrays(fire)
        kernel = self._kernels[fire.actor]
        if kernel is None:
            raise ExecutorError("met without a communicator", rank=self.rank, actor=self.name(fire))
        kernel(fire.firing, inputs, outputs)
        if self.fired is not None:
            self.fired(fire.actor, fire.firing)

    def _kernel(self, actor: Actor) -> Kernel | None:
        if actor.meeting is not None:
            return None
        views = self.arena.views
        return make_kernel(
            self.context(
                actor,
                self.run_state,
                state=tuple(views[register][0] for register in actor.state),
                buffer=None if actor.buffer is None else views[actor.buffer][0],
            )
        )
