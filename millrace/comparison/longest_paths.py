"""Longest paths: ends of a replay's steps where nothing slows a firing that has begun.

A firing then begins at the latest of times that are over before it, plus its lag, so that its time
is that of the longest path to it. What a step's firings wait for is the same in every step. They
are put into levels once: a firing waits for none of its own level. Every level of every step is one
computation on arrays.

Notes
-----
A replay takes time in proportion to the waits of all its firings (about five each), in as many
operations on arrays as the steps have levels: firings that follow one another on the longest chain,
not those of all ranks. The events of `millrace.simulator.kernel`, which come to the same times,
take some ten microseconds a firing.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

from millrace.comparison.measured_run import MeasuredRun, Table
from millrace.planner.actors.firing_waits import FiringWaits
from millrace.planner.actors.graph import Program
from millrace.planner.costs.launch_overhead import Pacing, launch_offsets

Nodes = NDArray[np.int64]
Waits = tuple[Nodes, Nodes, Nodes]  # who waits, for whom, and of how many steps before

NEVER_LATE_NS = -(1 << 62)  # as offset of what no launch holds back


class LongestPaths:
    """Waits of all firings of a step, in levels.

    A firing's node stands for its end, that of a meeting's member for its arrival; meetings have
    nodes of their own, behind those of all ranks.

    Parameters
    ----------
    run
        The measured run: its graph, and which actors meet.
    """

    def __init__(self, run: MeasuredRun) -> None:
        self._run = run
        sizes = [actor.firings for program in run.programs for actor in program.actors]
        sizes += [run.programs[r].actors[a].firings for r, a in self._first_members()]
        bases = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))])
        self._count, self._meetings = int(bases[-1]), bases[len(bases) - 1 - len(run.groups) : -1]
        firsts = np.cumsum([0, *(len(program.actors) for program in run.programs)])
        self._begins = [bases[low:high] for low, high in pairwise(firsts)]
        waits = (*self._waits_of_ranks(), *self._waits_of_meetings())
        waiting, awaited, before = (np.concatenate(c) for c in zip(*waits, strict=True))
        self._steps_before = int(before.max())
        same = before == 0
        levels = _levels(waiting[same], awaited[same], self._count)
        self._order = np.argsort(levels, kind="stable")  # the node at each place
        self._places = np.empty_like(self._order)
        self._places[self._order] = np.arange(self._count)
        by_place = np.argsort(self._places[waiting], kind="stable")
        self._awaited = self._places[awaited[by_place]] - self._count * before[by_place]
        places = np.arange(self._count + 1)
        self._firsts = np.searchsorted(self._places[waiting[by_place]], places)  # of their waits
        self._bounds = np.searchsorted(levels[self._order], np.arange(levels.max() + 2)).tolist()

    def step_ends_ns(
        self, work: Table, lags: Table, pacing: Pacing | None, steps: int
    ) -> list[int]:
        """End of each step on the slowest rank, in nanoseconds from the first one's begin.

        Parameters
        ----------
        work, lags : table
            As in `millrace.comparison.counterfactuals.Scenario`.
        pacing : Pacing, optional
            Launches that hold firings back; what is computed beside moving data is not slowed.
        steps : int
            Number of steps.
        """
        work_ns, lags_ns = self._work_ns(work), self._by_place(lags, self._meeting_zeros())
        launches = None if pacing is None else self._launches(pacing)
        levels = list(self._levels_with_waits())
        times = np.zeros((self._steps_before + steps) * self._count, np.int64)
        ends = []
        for step in range(steps):
            begin = (self._steps_before + step) * self._count
            awaited = self._awaited + begin
            duration, lag = work_ns[step % len(work_ns)], lags_ns[step % len(lags_ns)]
            if launches is not None:
                launched_after, offsets = launches
                launched = times[launched_after + begin - self._count] + offsets
            for low, high, first_wait, last_wait, firsts in levels:
                time = np.maximum.reduceat(times[awaited[first_wait:last_wait]], firsts)
                time += lag[low:high]
                if launches is not None:
                    np.maximum(time, launched[low:high], out=time)
                time += duration[low:high]
                times[begin + low : begin + high] = time
            ends.append(int(times[begin : begin + self._count].max()))
        return ends

    def _levels_with_waits(self) -> Iterator[tuple[int, int, int, int, Nodes]]:
        """Places of every level, its waits, and where among these each place has its first."""
        for low, high in pairwise(self._bounds):
            first = int(self._firsts[low])
            yield low, high, first, int(self._firsts[high]), self._firsts[low:high] - first

    def _first_members(self) -> list[tuple[int, int]]:
        return [group.members[0] for group in self._run.groups]

    def _waits_of_ranks(self) -> Iterator[Waits]:
        """Waits of every rank's firings for others of the rank, and for its meetings' ends."""
        run = self._run
        rows = [_program_waits(program) for program in run.graph.programs]
        ends = [begins.copy() for begins in self._begins]
        for group, node in zip(run.groups, self._meetings, strict=True):
            for rank, actor in group.members:
                ends[rank][actor] = node
        for rank in range(run.graph.ranks):
            waiting, firings, awaited, others, before, starts = rows[run.graph.program_of(rank)]
            nodes = np.where(starts, self._begins[rank][awaited], ends[rank][awaited])
            yield self._begins[rank][waiting] + firings, nodes + others, before

    def _waits_of_meetings(self) -> Iterator[Waits]:
        """Waits of meetings for their members' arrivals."""
        programs = self._run.programs
        for group, node in zip(self._run.groups, self._meetings, strict=True):
            for rank, actor in group.members:
                firings = np.arange(programs[rank].actors[actor].firings)
                yield node + firings, self._begins[rank][actor] + firings, np.zeros_like(firings)

    def _meeting_zeros(self) -> list[Nodes]:
        return [
            np.zeros((1, self._run.programs[rank].actors[actor].firings), np.int64)
            for rank, actor in self._first_members()
        ]

    def _work_ns(self, work: Table) -> Nodes:
        """Durations by step and place: a meeting's are those of its first member."""
        meetings = [work[rank][actor] for rank, actor in self._first_members()]
        rows = [list(row) for row in work]
        for group in self._run.groups:
            for rank, actor in group.members:
                rows[rank][actor] = np.zeros((1, work[rank][actor].shape[1]), np.int64)
        return self._by_place(rows, meetings)

    def _by_place(self, table: Table, meetings: Sequence[Nodes]) -> Nodes:
        """Times of a table and of meetings by step and place."""
        rows = [*(times for row in table for times in row), *meetings]
        steps = max(len(times) for times in rows)
        columns = [
            times if len(times) == steps else np.broadcast_to(times, (steps, times.shape[1]))
            for times in rows
        ]
        by_place: Nodes = np.concatenate(columns, axis=1)[:, self._order]
        return by_place

    def _launches(self, pacing: Pacing) -> tuple[Nodes, Nodes]:
        """Place in the step before after whose end each firing is launched, and how long after."""
        run = self._run
        offsets = [
            launch_offsets(program, row, pacing.host_ns)
            for program, row in zip(run.graph.programs, pacing.rows, strict=True)
        ]
        after = np.zeros(self._count, np.int64)
        offset_ns = np.full(self._count, NEVER_LATE_NS)
        for rank, program in enumerate(run.programs):
            row = offsets[run.graph.program_of(rank)]
            for actor, node in enumerate(program.actors):
                last = program.queues[node.queues[0]].order[-1]
                if node.meeting is None and program.actors[last].meeting is None:
                    nodes = self._begins[rank][actor] + np.arange(node.firings)
                    after[nodes] = self._begins[rank][last] + program.actors[last].firings - 1
                    offset_ns[nodes] = row[actor]
        return self._places[after[self._order]], offset_ns[self._order]


def _program_waits(program: Program) -> tuple[Nodes, Nodes, Nodes, Nodes, Nodes, Nodes]:
    """Waits of one step's firings: actor and firing, of either, steps before, and for its start."""
    spans = [1]
    for maker in program.actors:
        for port in maker.outputs:
            slots = program.registers[port.register].slots
            spans.append(ceil(slots * port.hold / maker.firings))
    steps = max(spans) + 2  # the last of so many waits for nothing before the first
    waits = FiringWaits(program, steps)
    columns: list[list[Nodes]] = [[] for _ in range(6)]
    for actor, node in enumerate(program.actors):
        for wait in waits.waits[actor]:
            others = wait.firings[-node.firings :]
            firings = np.flatnonzero(others >= 0)
            steps_after, others = np.divmod(others[firings], program.actors[wait.actor].firings)
            size = len(firings)
            for column, entries in zip(
                columns,
                (
                    np.full(size, actor),
                    firings,
                    np.full(size, wait.actor),
                    others,
                    steps - 1 - steps_after,
                    np.full(size, wait.starts),
                ),
                strict=True,
            ):
                column.append(entries)
    actors, firings, awaited, others, before, starts = map(np.concatenate, columns)
    return actors, firings, awaited, others, before, starts


def _levels(waiting: Nodes, awaited: Nodes, count: int) -> Nodes:
    """Level of every node: one more than that of the last that it waits for.

    Notes
    -----
    Kahn, "Topological sorting of large networks", 1962, a level at a time.
    """
    left = np.bincount(waiting, minlength=count)
    by_awaited = np.argsort(awaited, kind="stable")
    waiting = waiting[by_awaited]
    firsts = np.searchsorted(awaited[by_awaited], np.arange(count + 1))
    levels = np.full(count, -1)
    ready, level = np.flatnonzero(left == 0), 0
    while len(ready):
        levels[ready] = level
        lengths = firsts[ready + 1] - firsts[ready]
        before = np.cumsum(lengths) - lengths
        reached = waiting[np.repeat(firsts[ready] - before, lengths) + np.arange(lengths.sum())]
        np.subtract.at(left, reached, 1)
        ready, level = np.unique(reached[left[reached] == 0]), level + 1
    assert levels.min() >= 0, "firings wait for one another"
    return levels
