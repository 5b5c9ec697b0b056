"""Measured run: the times of every firing of a trace as arrays, and what can be read off them.

Beside begins and ends these are: when a meeting's data began to move (its last member came) and
when its first member was done; how long a firing's thread had no core; whether a meeting moved data
beside it; and its lag, from when it could begin until it did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from millrace.comparison.trace_steps import counted_steps, step_of, traced_steps
from millrace.planner.actors.firing_waits import FiringWaits
from millrace.planner.actors.graph import ActorGraph, Program
from millrace.planner.actors.trace import Trace

Times = NDArray[np.int64]
Table = list[list[Times]]  # by rank and actor: one entry per step and firing, [steps, firings]
BESIDE = 0.1  # the share of a firing beside moving data from which it counts as beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingGroup:
    """Actors that meet, as rank and actor, and what the meeting is called."""

    name: str
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """Steps of a measured trace, from `begin_ns`.

    Attributes
    ----------
    graph
        The actor graph that ran.
    first
        The first step, numbered as in the trace; the step before the first that counts, if that
        has spans.
    counted
        The steps that count, numbered from `first`.
    begin_ns, until_ns
        When they could begin, and the end of the step before (0: there is none).
    starts, ends, cpu, queued
        Nanoseconds by rank and actor, [steps, firings], as in a `Span`.
    """

    graph: ActorGraph
    first: int
    counted: tuple[int, ...]
    begin_ns: int
    until_ns: int
    starts: Table
    ends: Table
    cpu: Table
    queued: Table

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.counted[-1] + 1

    @property
    def programs(self) -> list[Program]:
        """Program of every rank."""
        return [self.graph.programs[self.graph.program_of(r)] for r in range(self.graph.ranks)]

    @cached_property
    def times_cores(self) -> bool:
        """True if it is known how long firings had a core."""
        return any(bool(times.any()) for row in self.cpu for times in row)

    @cached_property
    def groups(self) -> tuple[MeetingGroup, ...]:
        """Meetings, in the order of their first members."""
        members: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}
        names = {}
        for rank, program in enumerate(self.programs):
            for actor, node in enumerate(program.actors):
                if node.meeting is not None:
                    ranks = self.graph.members(rank, node.meeting)
                    key = node.meeting.key, tuple(sorted(ranks))
                    members.setdefault(key, []).append((rank, actor))
                    names[key] = link_name(node.meeting.kind, ranks, node.meeting.peer is not None)
        return tuple(
            MeetingGroup(name=names[key], members=tuple(group)) for key, group in members.items()
        )

    @cached_property
    def moves(self) -> list[Times]:
        """Times at which the data of every meeting began to move, [steps, firings] each."""
        return [
            np.max([self.starts[rank][actor] for rank, actor in group.members], axis=0)
            for group in self.groups
        ]

    @cached_property
    def met(self) -> list[Times]:
        """Times at which the first member of every meeting was done."""
        return [
            np.maximum(np.min([self.ends[rank][actor] for rank, actor in group.members], axis=0), m)
            for group, m in zip(self.groups, self.moves, strict=True)
        ]

    @cached_property
    def waits(self) -> Table:
        """Time of every firing in which its thread had no core, 0 where that is not known."""
        return [
            [
                np.where(cpu > 0, np.clip(ends - starts - cpu, 0, None), 0)
                for starts, ends, cpu in zip(*rows, strict=True)
            ]
            for rows in zip(self.starts, self.ends, self.cpu, strict=True)
        ]

    @cached_property
    def work(self) -> Table:
        """Time of every firing in which its thread had a core; all of it where that is unknown."""
        return [
            [np.where(cpu > 0, cpu, ends - starts) for starts, ends, cpu in zip(*rows, strict=True)]
            for rows in zip(self.starts, self.ends, self.cpu, strict=True)
        ]

    @cached_property
    def beside(self) -> list[list[NDArray[np.bool_]]]:
        """True for firings beside which a meeting of their rank moves data."""
        moving: list[list[tuple[Times, Times]]] = [[] for _ in self.starts]
        for group, moves, met in zip(self.groups, self.moves, self.met, strict=True):
            for rank in {rank for rank, _ in group.members}:
                moving[rank].append((moves.ravel(), met.ravel()))
        rows = []
        for intervals, starts, ends in zip(moving, self.starts, self.ends, strict=True):
            edges, passed = _merged(intervals)
            rows.append(
                [
                    np.interp(until, edges, passed) - np.interp(since, edges, passed)
                    > BESIDE * np.maximum(until - since, 1)
                    for since, until in zip(starts, ends, strict=True)
                ]
            )
        return rows

    @cached_property
    def lags(self) -> Table:
        """Time of every firing between the moment at which it could begin and its begin.

        A meeting ends for all its members when its first is done; what others take longer is lag
        of what waits for them.
        """
        return [
            [
                np.clip(begun - since, 0, None)
                for begun, since in zip(starts, self._ready(rank, self.met), strict=True)
            ]
            for rank, starts in enumerate(self.starts)
        ]

    @cached_property
    def core_lags(self) -> Table:
        """Part of every lag in which the firing's thread, or one that it waits for, had no core."""
        rows: Table = []
        for rank, lags in enumerate(self.lags):
            late = list(self.met)
            for index, actor in self._meetings[rank]:
                met = self.met[index]
                behind = np.clip(self.ends[rank][actor] - met, 0, None)
                late[index] = met + np.minimum(behind, self.waits[rank][actor])
            ready, ready_late = self._ready(rank, self.met), self._ready(rank, late)
            rows.append(
                [
                    np.minimum(lag, after - before + queued)
                    for lag, before, after, queued in zip(
                        lags, ready, ready_late, self.queued[rank], strict=True
                    )
                ]
            )
        return rows

    @cached_property
    def resumed(self) -> list[Times]:
        """Time from each meeting's last arrival until what it held back longest began.

        A mean over the firings that waited for it longer than for anything else; -1: none did.
        """
        waited = [np.zeros((2, *times.shape), np.int64) for times in self.met]
        over = [np.full_like(times, self.begin_ns) for times in self.met]
        for rank, program in enumerate(self.programs):
            groups = {actor: index for index, actor in self._meetings[rank]}
            ready, alone = self._ready(rank, self.met), self._ready(rank, over)
            waits = self._firing_waits[self.graph.program_of(rank)].waits
            for actor in range(len(program.actors)):
                begun = self.starts[rank][actor].ravel()
                late = (ready[actor] > alone[actor]).ravel()
                for wait in waits[actor]:
                    if wait.starts or wait.actor not in groups or not late.any():
                        continue
                    met, moves = (t[groups[wait.actor]].ravel() for t in (self.met, self.moves))
                    last = late & (wait.firings >= 0)
                    last &= met[wait.firings] == ready[actor].ravel()
                    if last.any():
                        firings = wait.firings[last]
                        sums, counts = waited[groups[wait.actor]].reshape(2, -1)
                        sums[firings] += np.maximum(begun[last], met[firings]) - moves[firings]
                        counts[firings] += 1
        return [np.where(n > 0, total // np.maximum(n, 1), -1) for total, n in waited]

    @cached_property
    def driver_waits(self) -> Table:
        """Time from which a firing could begin until its thread was woken; -1 behind meetings."""
        over = [np.full_like(times, self.begin_ns) for times in self.met]
        rows: Table = []
        for rank, starts in enumerate(self.starts):
            ended = list(self.met)
            for index, actor in self._meetings[rank]:
                ended[index] = self.ends[rank][actor]
            rows.append(
                [
                    np.where(ready == alone, np.maximum(begun - ready - queued, 0), -1)
                    for begun, queued, ready, alone in zip(
                        starts,
                        self.queued[rank],
                        self._ready(rank, ended),
                        self._ready(rank, over),
                        strict=True,
                    )
                ]
            )
        return rows

    def _ready(self, rank: int, met: Sequence[Times]) -> list[Times]:
        """Time from which each firing of a rank could begin, were its meetings over at these."""
        until = list(self.ends[rank])
        for index, actor in self._meetings[rank]:
            until[actor] = met[index]
        ready = self._firing_waits[self.graph.program_of(rank)].ready_ns(
            [times.ravel() for times in self.starts[rank]],
            [times.ravel() for times in until],
            self.begin_ns,
        )
        return [
            np.reshape(times, begun.shape)
            for times, begun in zip(ready, self.starts[rank], strict=True)
        ]

    @cached_property
    def _meetings(self) -> list[list[tuple[int, int]]]:
        """Groups that each rank is in, by index, and the actor that it has there."""
        rows: list[list[tuple[int, int]]] = [[] for _ in self.starts]
        for index, group in enumerate(self.groups):
            for rank, actor in group.members:
                rows[rank].append((index, actor))
        return rows

    @cached_property
    def _firing_waits(self) -> list[FiringWaits]:
        """Waits of the firings of every program."""
        return [FiringWaits(program, self.steps) for program in self.graph.programs]

    @cached_property
    def typical(self) -> tuple[int, ...]:
        """Counted steps of the middle half by step time, not the first of all if there are more."""
        steps = [step for step in self.counted if step > 0] or list(self.counted)
        steps.sort(key=self._durations.__getitem__)
        quarter = len(steps) // 4
        return tuple(sorted(steps[quarter : len(steps) - quarter]))

    @cached_property
    def median_step(self) -> int:
        """Counted step whose time is next to the median."""
        middle = median(self._durations[step] for step in self.counted)
        return min(self.counted, key=lambda step: abs(self._durations[step] - middle))

    @cached_property
    def _durations(self) -> list[int]:
        """Times of all steps on the slowest rank."""
        ends = np.max(
            [np.max([times.max(axis=1) for times in row], axis=0) for row in self.ends if row],
            axis=0,
        )
        durations: list[int] = np.diff(np.concatenate([[self.until_ns], ends])).tolist()
        return durations


def link_name(kind: str, ranks: Sequence[int], transfer: bool) -> str:
    """Name of a meeting by its kind and who takes part, `recv 0 → 1` for a transfer.

    Parameters
    ----------
    kind : str
        Kind of the meeting, as either end has it.
    ranks : sequence of int
        Its members; of a transfer the sender first.
    transfer : bool
        True: between two stages, named after the receiver's end.
    """
    if transfer:
        return f"recv {ranks[0]} → {ranks[1]}"
    members = sorted(ranks)
    if len(members) > 2 and members == list(range(members[0], members[-1] + 1)):
        return f"{kind} of ranks {members[0]} to {members[-1]}"
    return f"{kind} of ranks {', '.join(map(str, members))}"


def measured_run(graph: ActorGraph, trace: Trace) -> MeasuredRun | None:
    """Steps of a measured trace as arrays; None where it does not have every firing of a step.

    Parameters
    ----------
    graph : ActorGraph
        The graph that ran.
    trace : Trace
        As the executor writes it.
    """
    lanes = {lane.rank: lane for lane in trace.lanes}
    counts = [[a.firings for a in graph.programs[graph.program_of(r)].actors] for r in lanes]
    if sorted(lanes) != list(range(graph.ranks)) or counts != [
        list(lane.firings) for lane in trace.lanes
    ]:
        return None
    traced = traced_steps(trace)
    earliest = min(step_of(span, lanes[span.rank]) for span in trace.spans)
    first = max(earliest, traced.start - 1)
    steps = traced.stop - first
    tables: list[Table] = [
        [
            [np.full((steps, count), -1, np.int64) for count in lanes[rank].firings]
            for rank in range(graph.ranks)
        ]
        for _ in range(4)
    ]
    starts, ends, cpu, queued = tables
    for span in trace.spans:
        count = lanes[span.rank].firings[span.actor]
        step, firing = divmod(span.firing, count)
        if first <= step < traced.stop:
            starts[span.rank][span.actor][step - first, firing] = span.start_ns
            ends[span.rank][span.actor][step - first, firing] = span.end_ns
            cpu[span.rank][span.actor][step - first, firing] = span.cpu_ns
            queued[span.rank][span.actor][step - first, firing] = span.queued_ns
    if any(bool((times < 0).any()) for row in ends for times in row):
        return None
    step_ends = [max(column) for column in zip(*trace.step_end_ns, strict=True)]
    until_ns = step_ends[first - 1] if first else 0
    begun_ns = min(int(times[0].min()) for row in starts for times in row)
    return MeasuredRun(
        graph=graph,
        first=first,
        counted=tuple(step - first for step in counted_steps(trace) if step >= traced.start),
        begin_ns=min(begun_ns, until_ns),
        until_ns=until_ns,
        starts=starts,
        ends=ends,
        cpu=cpu,
        queued=queued,
    )


def _merged(
    intervals: Sequence[tuple[Times, Times]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Edges of the union of intervals, and how much of it lies before each edge."""
    nothing = np.zeros(1, np.int64)
    since = np.concatenate([row for row, _ in intervals] or [nothing])
    until = np.concatenate([row for _, row in intervals] or [nothing])
    order = np.argsort(since, kind="stable")
    since, until = since[order], np.maximum.accumulate(until[order])
    apart = since[1:] > until[:-1]
    first, last = since[np.append(True, apart)], until[np.append(apart, True)]
    edges = np.stack([first, last], axis=1).ravel()
    passed = np.zeros(len(edges), np.int64)
    passed[1::2] = np.cumsum(last - first)
    passed[2::2] = passed[1:-1:2]
    return edges, passed
