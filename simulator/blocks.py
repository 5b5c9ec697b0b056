"""Blocks: a coarser actor graph that runs in the same time with far fewer firings.

Actors of one block, forward or backward, that always follow each other in their queue become one
actor, as long as no other queue could notice: only the first of them may wait for a meeting (or any
other queue), and only the last may be waited for. What is lost is at which moment of the whole a
register is given back or its slot is taken, which matters only where another queue waits for just
that slot.
"""

from collections.abc import Sequence

import msgspec

from models.graph import Phase
from planner.actors.graph import Actor, ActorGraph, Port, Program, Queue
from planner.actors.pacing import Pacing, merged


def by_block(
    graph: ActorGraph, durations_ns: Sequence[Sequence[int]], pacing: Pacing | None = None
) -> tuple[ActorGraph, list[list[int]], Pacing | None]:
    """Return the coarser graph, the durations of its actors and what else holds them back.

    Parameters
    ----------
    graph
        A compiled actor graph.
    durations_ns
        One per program and actor; those of merged actors add up.
    pacing
        Of the graph; a merged actor is launched as often as its actors.
    """
    programs, table, paces = [], [], []
    for index, (program, row) in enumerate(zip(graph.programs, durations_ns, strict=True)):
        runs = _runs(program)
        programs.append(_merged(program, runs))
        table.append([sum(row[actor] for actor in run) for run in runs])
        if pacing is not None:
            own, host_ns = pacing.rows[index], pacing.host_ns
            paces.append(tuple(merged([(own[a], row[a]) for a in run], host_ns) for run in runs))
    if pacing is not None:
        pacing = pacing._replace(rows=tuple(paces))
    return msgspec.structs.replace(graph, programs=tuple(programs)), table, pacing


def _merged(program: Program, runs: Sequence[Sequence[int]]) -> Program:
    index_of = {run[0]: index for index, run in enumerate(runs)}
    return msgspec.structs.replace(
        program,
        actors=tuple(_joined(program, run) for run in runs),
        queues=tuple(
            Queue(
                name=queue.name,
                leave=queue.leave,
                order=tuple(index_of[actor] for actor in queue.order if actor in index_of),
            )
            for queue in program.queues
        ),
    )


def _joined(program: Program, run: Sequence[int]) -> Actor:
    """One actor that reads what the run reads from outside and writes what outside reads of it."""
    actors = [program.actors[index] for index in run]
    if len(actors) == 1:
        return actors[0]
    written = {port.register: port for actor in actors for port in actor.outputs}
    read = {port.register: port for actor in actors for port in actor.inputs}
    inside = {
        port.register for index in run for port in program.actors[index].inputs
    } & written.keys()
    outside = {
        port.register
        for index, actor in enumerate(program.actors)
        if index not in run
        for port in actor.inputs
    }
    return Actor(
        name=f"{actors[0].name} … {actors[-1].name}",
        kind="block",
        queues=actors[0].queues,
        inputs=tuple(Port(register=r, hold=p.hold) for r, p in read.items() if r not in written),
        outputs=tuple(
            Port(register=r, hold=p.hold)
            for r, p in written.items()
            if r in outside or r not in inside
        ),
        firings=actors[0].firings,
        phase=actors[0].phase,
        block=actors[0].block,
    )


def _runs(program: Program) -> list[list[int]]:
    """Partition the actors into runs, in the order of their first actors."""
    neighbours = _Neighbours(program)
    after = _always_after(program)
    runs: list[list[int]] = []
    taken: set[int] = set()
    order = [actor for queue in program.queues for actor in queue.order]
    for first in dict.fromkeys(order):
        if first in taken:
            continue
        run = [first]
        while run[-1] in after and neighbours.may_join(run, after[run[-1]]):
            run.append(after[run[-1]])
        taken.update(run)
        runs.append(run)
    return runs


def _always_after(program: Program) -> dict[int, int]:
    """Actor → the one that follows every firing of it, where there is one."""
    found: dict[int, int] = {}
    for queue in program.queues:
        follows: dict[int, set[int]] = {}
        for here, there in zip(queue.order, (*queue.order[1:], -1), strict=False):
            follows.setdefault(here, set()).add(there)
        for here, candidates in follows.items():
            (there, *others) = candidates
            if not others and there >= 0 and there != here:
                found[here] = there
    return found


def _place(actor: Actor) -> tuple[object, ...]:
    """What actors of one run have in common; the two halves of backward go together."""
    part = Phase.BACKWARD_INPUT if actor.phase == Phase.BACKWARD_WEIGHT else actor.phase
    return actor.queues, actor.firings, actor.block, part


class _Neighbours:
    """Who reads and who writes each register of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.readers: list[list[int]] = [[] for _ in program.registers]
        self.writer = [-1] * len(program.registers)
        for index, actor in enumerate(program.actors):
            for port in actor.inputs:
                self.readers[port.register].append(index)
            for port in actor.outputs:
                self.writer[port.register] = index

    def may_join(self, run: Sequence[int], index: int) -> bool:
        """Whether the actor may be merged with the run that it always follows."""
        actors = self.program.actors
        last, actor = actors[run[-1]], actors[index]
        if last.meeting is not None or actor.meeting is not None:
            return False
        if len(actor.queues) > 1 or _place(last) != _place(actor):
            return False
        heard = (r for port in last.outputs for r in self.readers[port.register])
        told = (self.writer[port.register] for port in actor.inputs)
        if any(other >= 0 and actors[other].queues != actor.queues for other in (*heard, *told)):
            return False
        return not self._turns_back(run, index)

    def _turns_back(self, run: Sequence[int], index: int) -> bool:
        """Whether a register would be read and written by the run in different versions."""
        actors, registers = self.program.actors, self.program.registers
        read = {port.register for member in run for port in actors[member].inputs}
        written = {port.register for member in run for port in actors[member].outputs}
        actor = actors[index]
        return any(port.register in read for port in actor.outputs) or any(
            port.register in written and registers[port.register].initial > 0
            for port in actor.inputs
        )
