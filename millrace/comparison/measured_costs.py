"""Measured costs: what ops, meetings, waits and lags of a run come to in a typical step.

An op's cost is the median over the steps that count, of what it computes (the time in which its
thread had a core, where that is known), apart for firings beside which data moves. How much slower
a rank is than others is a factor by which most of its kinds of ops are: of every kind, measured
over predicted time on this rank against the rank that is lowest but for half of them, and of these
ratios the median, weighted by time. So one kind that is off on all ranks makes nobody a straggler,
and ranks of different stages compare. Waits and lags are seldom and long: means of the middle half
of the steps by step time count, which leaves out exceptional steps and adds up to typical ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from millrace.comparison.measured_run import MeasuredRun, Table, Times

LAUNCH_NS_MAX = 200_000  # What begins later had something else to wait for.

Medians = list[list[float]]  # by rank and actor; NaN where there is none


class OpCosts:
    """Costs of the local actors of every rank; tables have meetings as predicted.

    Parameters
    ----------
    run
        The measured run.
    predicted
        Predicted nanoseconds by rank and actor, [1, firings].

    Attributes
    ----------
    alone, beside
        Medians of firings beside which nothing moves, and of the others.
    factors
        How many times as long each rank takes as the reference.
    """

    def __init__(self, run: MeasuredRun, predicted: Table) -> None:
        self._run, self._predicted = run, predicted
        self._counted = list(run.counted)
        self._mostly_beside = [
            [moving[self._counted].mean(axis=0) > 0.5 for moving in row] for row in run.beside
        ]
        self.alone, self.beside = self._medians(False), self._medians(True)
        self.factors = self._factors()

    def without_overlap(self) -> Table:
        """Cost that an op has on the reference rank while nothing moves beside it."""
        fleet, beside = self._fleet(self.alone), self._fleet(self.beside)
        ratios = self._kind_ratios()
        rows: Table = []
        for rank, program in enumerate(self._run.programs):
            row = []
            for actor, node in enumerate(program.actors):
                predicted = self._predicted[rank][actor]
                if node.meeting is not None:
                    row.append(predicted)
                    continue
                cost = fleet[rank][actor]
                if np.isnan(cost):
                    # All its firings are beside something: it is off as its kind is elsewhere,
                    # and no slower than it was.
                    cost = float(predicted[0, 0]) * ratios.get(node.kind, np.inf)
                    cost = min(cost, beside[rank][actor])
                row.append(np.full_like(predicted, round(cost)))
            rows.append(row)
        return rows

    def with_overlap(self, alone: Table) -> Table:
        """Cost on the reference rank, of firings beside moving data their own."""
        return self._by_firing(alone, self._fleet(self.beside))

    def by_rank(self, reference: Table) -> Table:
        """Cost on each rank by itself; where it has none, that of the reference by its factor."""
        scaled = [
            [
                times if node.meeting else np.round(times * self.factors[rank]).astype(np.int64)
                for node, times in zip(program.actors, row, strict=True)
            ]
            for rank, (program, row) in enumerate(zip(self._run.programs, reference, strict=True))
        ]
        alone = [
            [
                times if np.isnan(cost) else np.full_like(times, round(cost))
                for times, cost in zip(*rows, strict=True)
            ]
            for rows in zip(scaled, self.alone, strict=True)
        ]
        mixed = self._by_firing(alone, self.beside)
        return [
            [
                np.where(mostly & np.isnan(cost), times, costs)
                for times, costs, mostly, cost in zip(*rows, strict=True)
            ]
            for rows in zip(scaled, mixed, self._mostly_beside, self.beside, strict=True)
        ]

    def _by_firing(self, alone: Table, beside: Medians) -> Table:
        return [
            [
                np.where(mostly & ~np.isnan(cost), np.nan_to_num(np.round(cost)), times).astype(
                    np.int64
                )
                for times, cost, mostly in zip(*rows, strict=True)
            ]
            for rows in zip(alone, beside, self._mostly_beside, strict=True)
        ]

    def _medians(self, beside: bool) -> Medians:
        run, counted = self._run, self._counted
        rows = []
        for rank, program in enumerate(run.programs):
            row = []
            for actor, node in enumerate(program.actors):
                if node.meeting is not None:
                    row.append(np.nan)
                    continue
                near = run.beside[rank][actor][counted]
                samples = run.work[rank][actor][counted][near == beside]
                row.append(float(np.median(samples)) if len(samples) else np.nan)
            rows.append(row)
        return rows

    def _factors(self) -> list[float]:
        """Factor of every rank against the reference."""
        measured: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for rank, program in enumerate(self._run.programs):
            for actor, node in enumerate(program.actors):
                cost = self.alone[rank][actor]
                cost = self.beside[rank][actor] if np.isnan(cost) else cost
                if node.meeting is None and self._predicted[rank][actor].any():
                    measured[rank, node.kind][0] += cost * node.firings
                    measured[rank, node.kind][1] += float(self._predicted[rank][actor].sum())
        ratios: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        for (rank, kind), (cost, predicted) in measured.items():
            ratios[kind][rank] = cost / predicted, cost
        factors = []
        for rank in range(len(self._run.programs)):
            rows = [
                (row[rank][0] / max(median_low(ratio for ratio, _ in row.values()), 1e-9), weight)
                for row in ratios.values()
                if rank in row and len(row) > 1
                for _, weight in (row[rank],)
            ]
            factors.append(weighted_median(rows))
        reference = median_low(factors)
        return [factor / reference for factor in factors]

    def _fleet(self, medians: Medians) -> Medians:
        """Medians of each actor over the ranks of its program, as on the reference rank."""
        run = self._run
        by_program: dict[tuple[int, int], float] = {}
        programs = [run.graph.program_of(rank) for rank in range(run.graph.ranks)]
        for index, program in enumerate(run.graph.programs):
            for actor in range(len(program.actors)):
                costs = [
                    medians[rank][actor] / self.factors[rank]
                    for rank in program.ranks
                    if not np.isnan(medians[rank][actor])
                ]
                by_program[index, actor] = float(np.median(costs)) if costs else np.nan
        return [
            [by_program[index, actor] for actor in range(len(row))]
            for index, row in zip(programs, medians, strict=True)
        ]

    def _kind_ratios(self) -> dict[str, float]:
        """Measured over predicted time by kind, of what was measured alone."""
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for rank, program in enumerate(self._run.programs):
            for actor, node in enumerate(program.actors):
                cost = self.alone[rank][actor]
                if node.meeting is None and not np.isnan(cost):
                    sums[node.kind][0] += cost / self.factors[rank]
                    sums[node.kind][1] += float(self._predicted[rank][actor][0, 0])
        return {kind: cost / predicted for kind, (cost, predicted) in sums.items() if predicted}


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float:
    """Value with half of the weight below it; 1 without any.

    Examples
    --------
    >>> weighted_median([(1.0, 5.0), (2.0, 3.0), (9.0, 1.0)])
    1.0
    """
    rows = sorted(pairs)
    half = sum(weight for _, weight in rows) / 2
    for value, weight in rows:
        half -= weight
        if half <= 0:
            return value
    return 1.0


def meeting_waits(run: MeasuredRun) -> list[Times]:
    """Time of every meeting, from its last arrival, in which a member's thread had no core."""
    return [
        np.minimum(np.max([run.waits[rank][actor] for rank, actor in g.members], axis=0), met - m)
        for g, m, met in zip(run.groups, run.moves, run.met, strict=True)
    ]


def meeting_costs(run: MeasuredRun, waits: Sequence[Times]) -> list[Times]:
    """Median time of every meeting's firings from the last arrival, [1, firings], without waits."""
    counted = list(run.counted)
    return [
        rounded(np.median((met - moves - waited)[counted], axis=0))
        for moves, met, waited in zip(run.moves, run.met, waits, strict=True)
    ]


def meeting_means(run: MeasuredRun, waits: Sequence[Times]) -> list[Times]:
    """Mean time of every meeting's firings from the last arrival, [1, firings], without waits."""
    return [
        typical_mean(run, met - moves - waited)
        for moves, met, waited in zip(run.moves, run.met, waits, strict=True)
    ]


def launch_ns(run: MeasuredRun) -> float:
    """Mean time that passes before a local firing while nothing but its driver holds it back.

    What a firing's thread waits for a core is no part of it; firings behind meetings do not count.
    """
    typical = list(run.typical)
    waits = [np.zeros(0, np.int64)]
    for rank, program in enumerate(run.programs):
        for actor, node in enumerate(program.actors):
            if node.meeting is None:
                waits.append(run.driver_waits[rank][actor][typical].ravel())
    every = np.concatenate(waits)
    short = every[(every >= 0) & (every < LAUNCH_NS_MAX)]
    return float(short.mean()) if len(short) else 0.0


def meeting_resumptions(run: MeasuredRun) -> list[float]:
    """Mean time from every meeting's last arrival until what it held back longest begins.

    NaN for meetings that held nothing back in half of their firings: these are over while their
    ranks compute.
    """
    means = []
    for resumed in run.resumed:
        times = resumed[list(run.typical)].ravel()
        holding = times[times >= 0]
        means.append(float(holding.mean()) if 2 * len(holding) > len(times) else np.nan)
    return means


def typical_mean(run: MeasuredRun, times: Times) -> Times:
    """Mean of each firing's times over the typical steps, [1, firings]."""
    return rounded(times[list(run.typical)].mean(axis=0))


def rounded(times: NDArray[np.float64]) -> Times:
    """Times in whole nanoseconds, as one row."""
    return np.round(times).astype(np.int64)[None, :]
