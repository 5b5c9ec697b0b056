"""Firings: one step of a coarse graph as nodes, each with the nodes that it waits for.

Compute orders and slots are fixed and nothing but lanes is shared, so a node begins when the last
of those it waits for has ended: a longest path. A meeting is one node for all its members. Beyond
the nodes, number `count` stands for what ended before the step, and `count + 1 + i` for what came
before it on the compute queue of program i. Waiting for one's turn on a lane or on the compute
queue is kept apart (`before`), for a lane's order follows from the times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from millrace.planner.actors.graph import Program
from millrace.planner.compile.slots import Timetable
from millrace.planner.compile.stage_ir import BEGIN
from millrace.planner.costs.launch_overhead import Pacing, launch_offsets
from millrace.simulator.chunks.chunk_graph import CoarseGraph

Nodes = NDArray[np.int64]

NEVER = 1 << 62  # the end of what has not been reached
FIRST, LAST = -(1 << 40), 1 << 40  # ranks before and after all microbatches


@dataclass(slots=True, kw_only=True)
class FiringGroup:
    """An actor's firings, or those of the actors that meet: the nodes from `base` on.

    `members` are programs and actors; `waits` holds columns of nodes for each of them.
    """

    base: int
    count: int
    duration_ns: int
    lane: object
    members: list[tuple[int, int]] = field(default_factory=list)
    waits: list[list[Nodes]] = field(default_factory=list)

    @property
    def nodes(self) -> Nodes:
        """Nodes of its firings, in order."""
        return np.arange(self.base, self.base + self.count)


class StepNodes:
    """The nodes of one step.

    Parameters
    ----------
    coarse
        The graph, with slots and compute orders.
    table
        Its timetable: the times there rank the nodes, so that few are looked at in vain.
    """

    def __init__(self, coarse: CoarseGraph, table: Timetable) -> None:
        self.coarse = coarse
        self.programs = coarse.graph.programs
        self.count = 0
        named: dict[object, FiringGroup] = {}
        self.group_of = [
            [self._group(named, index, actor) for actor in range(len(program.actors))]
            for index, program in enumerate(self.programs)
        ]
        self.groups = list(named.values())
        self.before = np.full(self.count, self.count)
        self.ranks = np.full(self.count, NEVER)
        for index, program in enumerate(self.programs):
            self._queue(index, program, table.times[index])
        for index, program in enumerate(self.programs):
            self._waits(index, program)
        self._rank_meetings()
        self.durations = np.repeat(
            [group.duration_ns for group in self.groups], [group.count for group in self.groups]
        )
        for (index, actor), row in coarse.firings_ns.items():
            self.durations[self.group_of[index][actor].nodes] = row
        self.work = self.durations  # where `durations` follow from what moves meanwhile
        self.launched = self._launched(coarse.pacing)
        rows = [self._rows(group) for group in self.groups]
        self.waits = np.concatenate([row.ravel() for row in rows])
        widths = np.repeat([row.shape[1] for row in rows], [group.count for group in self.groups])
        self.offsets = np.cumsum(widths) - widths  # of each node's row in `waits`
        self.widths = widths
        self.lanes = self._lanes()

    def ends(self, updated_ns: Sequence[int], floors_ns: Nodes | None = None) -> Nodes | None:
        """End of every node; None where they wait for one another.

        Parameters
        ----------
        updated_ns
            When the compute queue of each program is free; all else is free at 0.
        floors_ns
            Per node, before when it does not begin.
        """
        earlier_ends = np.asarray([0, *updated_ns])
        floors = np.zeros(self.count, np.int64) if floors_ns is None else floors_ns
        ranks = np.append(self.ranks, np.full(len(earlier_ends), FIRST - 1))
        latest = np.maximum(
            ranks[self.before], np.maximum.reduceat(ranks[self.waits], self.offsets)
        )
        if (latest < self.ranks).all():
            return self._by_rank(floors, earlier_ends)
        return self._in_turn(floors, earlier_ends)

    def _by_rank(self, floors: Nodes, earlier_ends: Nodes) -> Nodes:
        """Ends, computed for the nodes of one rank at a time: none of them waits for another."""
        order, place, turns, waits, ranks = self._ranked
        waits[turns] = place[self.before[order]]
        floors, durations = floors[order], self.durations[order]
        ends = np.append(np.empty(self.count, np.int64), earlier_ends)
        for nodes, rows, offsets in ranks:
            begin = np.maximum.reduceat(ends[waits[rows]], offsets)
            np.maximum(begin, floors[nodes], out=begin)
            np.add(begin, durations[nodes], out=ends[nodes])
        return ends[place]

    @cached_property
    def _ranked(self) -> tuple[Nodes, Nodes, Nodes, Nodes, list[tuple[slice, slice, Nodes]]]:
        """Nodes by rank, their places there, and what they wait for, by these places.

        A row of `waits` begins, at `turns`, with a place for the node before it in turn. A rank is
        a slice of nodes, one of `waits`, and where in that the nodes' rows begin.
        """
        order = np.argsort(self.ranks, kind="stable")
        ranks, widths = self.ranks[order], self.widths[order]
        place = np.arange(self.count + 1 + len(self.programs))
        place[order] = np.arange(self.count)
        turns = np.cumsum(widths + 1) - widths - 1
        firsts = turns - np.arange(self.count)  # of rows without the node before
        positions = np.arange(len(self.waits)) + np.repeat(self.offsets[order] - firsts, widths)
        waits = np.insert(place[self.waits[positions]], firsts, 0)
        bounds = [0, *(np.flatnonzero(ranks[1:] != ranks[:-1]) + 1).tolist(), self.count]
        begins = [*turns[bounds[:-1]].tolist(), len(waits)]
        slices = [
            (slice(low, high), slice(first, last), turns[low:high] - first)
            for (low, high), (first, last) in zip(pairwise(bounds), pairwise(begins), strict=True)
        ]
        return order, place, turns, waits, slices

    def _in_turn(self, floors: Nodes, earlier_ends: Nodes) -> Nodes | None:
        """Ends, computed node by node; a node that is looked at too early is looked at again."""
        low, before, durations = floors.tolist(), self.before.tolist(), self.durations.tolist()
        waits, offsets = self.waits.tolist(), [*self.offsets.tolist(), len(self.waits)]
        rows = [waits[first:last] for first, last in pairwise(offsets)]
        ends: list[int] = [NEVER] * self.count + earlier_ends.tolist()
        pending: list[int] = np.argsort(self.ranks, kind="stable").tolist()
        while pending:
            later = []
            for node in pending:
                begin = max(low[node], ends[before[node]])
                for other in rows[node]:
                    if ends[other] > begin:
                        begin = ends[other]
                if begin < NEVER:
                    ends[node] = begin + durations[node]
                else:
                    later.append(node)
            if len(later) == len(pending):
                return None
            pending = later
        return np.asarray(ends)

    def ready(self, ends: Nodes) -> Nodes:
        """Time at which each node could begin if its turn had come."""
        return np.asarray(np.maximum.reduceat(ends[self.waits], self.offsets))

    def set_order(self, nodes: Nodes) -> None:
        """Let the nodes of a lane follow one another."""
        self.before[nodes[1:]] = nodes[:-1]
        self.before[nodes[0]] = self.count

    def _group(self, named: dict[object, FiringGroup], program: int, actor: int) -> FiringGroup:
        """The group of an actor: that of those it meets, or one of its own."""
        graph_actor = self.programs[program].actors[actor]
        meeting = graph_actor.meeting
        lane: object = None
        key: object = (program, actor)
        if meeting is not None:
            lane = program, self.coarse.drafts[program].actors[actor].lane
            if meeting.world:
                key = lane = meeting.key
            elif meeting.peer is not None:
                ends = (program, meeting.peer)
                lane = "transfer", *(ends if meeting.kind == "send" else ends[::-1])
                key = meeting.key, lane
        if key not in named:
            named[key] = FiringGroup(
                base=self.count,
                count=graph_actor.firings,
                duration_ns=self.coarse.durations_ns[program][actor],
                lane=lane,
            )
            self.count += graph_actor.firings
        named[key].members.append((program, actor))
        return named[key]

    def _queue(self, index: int, program: Program, times: Sequence[int]) -> None:
        """Order and rank what runs on a compute queue: `times` are the ends of its slots."""
        order = np.asarray(program.queues[0].order)
        nodes = np.empty(len(order), np.int64)
        of = self.group_of[index]
        nodes[np.argsort(order, kind="stable")] = np.concatenate(
            [of[actor].nodes for actor in np.unique(order).tolist()]
        )
        self.before[nodes[1:]] = nodes[:-1]
        self.before[nodes[0]] = self.count + 1 + index
        early = np.array(
            [draft_actor.section == BEGIN for draft_actor in self.coarse.drafts[index].actors]
        )
        begun = int(early[order].sum())
        slots = slice(begun, begun + len(times))
        self.ranks[nodes[:begun]] = FIRST
        self.ranks[nodes[slots]] = 2 * np.asarray(times)
        rest = nodes[slots.stop :]
        self.ranks[rest] = LAST + 3 * np.arange(1, len(rest) + 1)

    def _waits(self, index: int, program: Program) -> None:
        """Collect what each actor's firings wait for beside their turn: inputs and slots."""
        makers: dict[int, tuple[FiringGroup, int]] = {}
        readers: dict[int, list[tuple[FiringGroup, int]]] = {}
        for group, actor in zip(self.group_of[index], program.actors, strict=True):
            makers.update({port.register: (group, port.hold) for port in actor.outputs})
            for port in actor.inputs:
                readers.setdefault(port.register, []).append((group, port.hold))
        for group, actor in zip(self.group_of[index], program.actors, strict=True):
            firings = np.arange(group.count)
            columns: list[Nodes] = []
            for port in actor.inputs:
                if port.register not in makers:
                    continue  # there for good
                maker, hold = makers[port.register]
                version = firings // port.hold - program.registers[port.register].initial
                columns.append(self._done(maker, (version + 1) * hold - 1))
            for port in actor.outputs:
                register = program.registers[port.register]
                freed = firings // port.hold + register.initial - register.slots
                for reader, hold in readers.get(port.register, ()):
                    columns.append(self._done(reader, (freed + 1) * hold - 1))
            if actor.meeting is not None:
                columns.append(self._done(group, firings - 1))
            group.waits.append([column for column in columns if (column < self.count).any()])

    def _done(self, group: FiringGroup, firings: Nodes) -> Nodes:
        """The nodes of a group's firings; those of the step before are over."""
        return np.where(firings >= 0, group.base + firings, self.count)

    def _rows(self, group: FiringGroup) -> Nodes:
        """A row of waits per node; none is empty."""
        columns = [column for member_waits in group.waits for column in member_waits]
        return np.stack(columns or [np.full(group.count, self.count)], axis=1)

    def _launched(self, pacing: Pacing | None) -> list[tuple[Nodes, Nodes]]:
        """Nodes of every program that the host launches, and when after their step's begin."""
        launches = []
        for index, program in enumerate(self.programs if pacing is not None else ()):
            assert pacing is not None
            offsets = launch_offsets(program, pacing.rows[index], pacing.host_ns)
            pairs = zip(self.group_of[index], offsets, strict=True)
            computed = [(group.nodes, np.asarray(row)) for group, row in pairs if row]
            nodes, rows = zip(*computed, strict=True)
            launches.append((np.concatenate(nodes), np.concatenate(rows)))
        return launches

    def floors(self, begun_ns: Sequence[int]) -> Nodes:
        """Launch time of every node in a step that begins at a time per program."""
        floors_ns = np.zeros(self.count, np.int64)
        for (nodes, offsets), begin_ns in zip(self.launched, begun_ns, strict=False):
            floors_ns[nodes] = begin_ns + offsets
        return floors_ns

    def _rank_meetings(self) -> None:
        """Rank every meeting right after what its members wait for."""
        ranks = np.append(self.ranks, FIRST)
        for _ in range(3):  # begin, gathered, sent; or the last backward, reduced, sent
            for group in self.groups:
                columns = [
                    c
                    for member_waits in group.waits
                    for c in member_waits
                    if (ranks[c] < NEVER).all()
                ]
                if group.lane is not None and columns:
                    ranks[group.nodes] = 1 + ranks[np.stack(columns)].max(axis=0)
        self.ranks = ranks[: self.count]

    def _lanes(self) -> list[Nodes]:
        """Order every lane by rank; return those that several groups share."""
        lanes: dict[object, list[FiringGroup]] = {}
        for group in self.groups:
            if group.lane is not None:
                lanes.setdefault(group.lane, []).append(group)
        shared = []
        for groups in lanes.values():
            nodes = np.concatenate([group.nodes for group in groups])
            nodes = nodes[np.argsort(self.ranks[nodes], kind="stable")]
            self.set_order(nodes)
            turns = np.arange(len(nodes))  # of equal ranks one comes first
            self.ranks[nodes] = np.maximum.accumulate(self.ranks[nodes] - turns) + turns
            if len(groups) > 1:
                shared.append(nodes)
        return shared
