"""Settling: the best division of a candidate, by figures that were measured on its own plan.

A candidate is divided by figures of tables, in which nothing overlaps and no memory is shared. Its
plan is lowered, blocks are timed in the steady state of their chunks, stages are laid out; with
these figures it is divided again, until a division repeats. So what is known of a settled plan is
what the compiler lays out, and within a percent what a simulator says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Floats
from millrace.planner.block_times import (
    BEGIN,
    GATHER,
    NORM,
    PASSES,
    REDUCE,
    UPDATE,
    BlockTimes,
    Kind,
)
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.peak_memory import needed_memory
from millrace.planner.memory import StageMemory
from millrace.planner.plan import Plan
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Limits, SolvedPlan
from millrace.planner.search.placement_groups import usable_bytes
from millrace.planner.search.plan_writer import write_plan
from millrace.planner.search.ranking.outcomes import roomier
from millrace.planner.search.request import SearchRequest
from millrace.planner.search.stages import BlockRun, Division, VariantFigures, in_order
from millrace.planner.search.stages.measured_steps import measured_step_ns
from millrace.planner.search.stages.shape import peak_bytes, stage_bytes, step_time_ns

LAID_OUT = 4  # divisions that are laid out until one fits
DEAR = 0.003  # variants of less memory are looked for to save this share of a step; by eye
FILLED, SPARE = 3, 0.02  # divisions are laid out while that share of memory is left; by eye
LEAST_GAIN = 0.002  # another division is laid out and timed to gain this share of a step

BlockTimer = Callable[[Plan, Mapping[Kind, Floats]], BlockTimes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledPlan:
    """A candidate's plan with what is known of it.

    Attributes
    ----------
    solved_plan : SolvedPlan
        Its division, with the step by the tables and the bytes that are laid out.
    step_ns : float
        Its step by the times of its blocks where they were measured, else by the tables.
    memory : tuple of StageMemory
        Its memory as the compiler will lay it out.
    over_bytes : int
        Bytes that it lays out above its limit, on the stage with the least room left.
    expected_bytes : int
        Bytes that were expected there of this division before it was laid out.
    """

    solved_plan: SolvedPlan
    plan: Plan
    step_ns: float
    memory: tuple[StageMemory, ...]
    over_bytes: int
    expected_bytes: int

    @property
    def fits(self) -> bool:
        """True if every stage has room for what is laid out."""
        return self.over_bytes <= 0


def settle(
    evaluator: Evaluator, unsettled: SolvedPlan, block_times: BlockTimer | None
) -> SettledPlan:
    """Best plan of a candidate's solutions by measured figures.

    Parameters
    ----------
    evaluator : Evaluator
    unsettled : SolvedPlan
        The plan by the tables.
    block_times : callable, optional
        Times the blocks of a plan; without it their times are those of the tables.

    Returns
    -------
    SettledPlan
        The fastest that fits; the one that is least over its limit where none does.
    """
    limits = usable_bytes(evaluator.request, unsettled.candidate)
    if len(limits) > 1:
        block_times = None  # blocks take another time on another kind of device
    measures = _Measures(evaluator, unsettled, block_times)
    if evaluator.request.plan_only:
        return measures.written(unsettled.division)
    best = measures.laid_out(unsettled.division)
    left = limits
    for _ in range(LAID_OUT):
        if best.fits or not (division := measures.smaller(left, unsettled.division.step_ns)):
            break
        other = measures.laid_out(division)
        best = min(best, other, key=_rank)
        # What gives room at one moment takes some at another: as much again is left free.
        left = tuple(limit - other.over_bytes for limit in limits)
    best = measures.filled(best, limits)
    if not best.fits or block_times is None:
        return best
    best = measures.timed(best)
    division = measures.divided(limits)
    if division is None or measures.gain(division, best.solved_plan.division) < LEAST_GAIN:
        return best
    other = measures.laid_out(division)
    return min(best, measures.timed(other), key=_rank) if other.fits else best


def _rank(settled: SettledPlan) -> tuple[int, float]:
    return max(settled.over_bytes, 0), settled.step_ns


class _LaidOut(NamedTuple):
    """Bytes laid out at the moment that dividing counts, those above the limit, and the step."""

    usual_bytes: int
    over_bytes: int
    step_ns: float
    chunks: tuple[tuple[tuple[str, int], ...], ...]


class _Measures:
    """Measured figures of a candidate's variants so far, and runs that have these figures."""

    def __init__(
        self, evaluator: Evaluator, unsettled: SolvedPlan, block_times: BlockTimer | None
    ) -> None:
        self.evaluator = evaluator
        self.solved_plan = unsettled
        self.pipeline = evaluator.sends.pipeline(unsettled.candidate)
        self._block_times = block_times
        self._tables = evaluator.runs(unsettled.candidate, unsettled.solved)
        self._runs = self._tables
        self._times: BlockTimes | None = None
        self._measured_ns: dict[Kind, Floats] = {}  # by template and number of the solution
        self._solved = unsettled.solved
        # Bytes that are laid out beyond what the figures of blocks say.
        self._more_bytes = evaluator.sends.buffer_bytes(unsettled.candidate)
        self._uneven_bytes = 0  # bytes alive at another moment than the one that dividing counts
        self._known_sizes: list[_LaidOut] = []

    def written(self, division: Division) -> SettledPlan:
        """The plan of a division, its step by the tables; nothing is said of its memory."""
        evaluator = self.evaluator
        step_ns = step_time_ns(division.chunks, self._tables, self.pipeline)
        division = in_order(
            replace(division, step_ns=step_ns), self._tables, self.pipeline, evaluator.overlap
        )
        step_ns = division.step_ns
        divided = replace(
            self.solved_plan, division=division, bound_ns=min(self.solved_plan.bound_ns, step_ns)
        )
        return SettledPlan(
            solved_plan=divided,
            plan=write_plan(evaluator, divided),
            step_ns=step_ns,
            memory=(),
            over_bytes=0,
            expected_bytes=0,
        )

    def laid_out(self, division: Division) -> SettledPlan:
        """The plan of a division with its memory; its step by the tables."""
        request, settled = self.evaluator.request, self.written(division)
        divided, memory = settled.solved_plan, needed_memory(settled.plan)
        division = divided.division
        counted = division.chunks, self._tables, self.pipeline
        peak, usual = peak_bytes(*counted), stage_bytes(*counted)
        expected_bytes = max(peak) + self._more_bytes
        stage_totals = _laid_out_bytes(request, memory)
        self._more_bytes = max(a - b for a, b in zip(stage_totals, peak, strict=True))
        self._uneven_bytes = max(a - b for a, b in zip(peak, usual, strict=True))
        size, limit = fullest(request, divided.candidate, memory)
        taken = _LaidOut(max(usual), size - limit, settled.step_ns, division.chunks)
        self._known_sizes.append(taken)
        return replace(
            settled,
            solved_plan=replace(divided, division=replace(division, memory_bytes=size)),
            memory=memory,
            over_bytes=size - limit,
            expected_bytes=expected_bytes,
        )

    def filled(self, best: SettledPlan, limits: Limits) -> SettledPlan:
        """The best division between one that fits, with memory left over, and one that does not.

        By regula falsi: bytes above the limit rise with those at the moment that dividing counts.
        """
        for _ in range(FILLED):
            sizes = sorted(self._known_sizes, key=lambda size: size.over_bytes)
            fits = next((size for size in reversed(sizes) if size.over_bytes <= 0), None)
            short = next((size for size in sizes if size.over_bytes > 0), None)
            if short is None or fits is None or len(limits) > 1:
                break
            dear = fits.step_ns > (1 + DEAR) * short.step_ns
            if not dear or -fits.over_bytes < SPARE * limits[0]:
                break
            share = -fits.over_bytes / (short.over_bytes - fits.over_bytes)
            room = round(fits.usual_bytes + share * (short.usual_bytes - fits.usual_bytes))
            division = self._within((room,))
            if division is None or any(
                division.chunks == size.chunks for size in self._known_sizes
            ):
                break
            best = min(best, self.laid_out(division), key=_rank)
        return best

    def timed(self, settled: SettledPlan) -> SettledPlan:
        """The plan with its step by the times of its blocks."""
        assert self._block_times is not None
        division = settled.solved_plan.division
        if any(kind not in self._measured_ns for row in self._kinds(division) for kind in row):
            self._time(settled.plan, division)
        step_ns = self.step_ns(division)
        assert step_ns is not None, "all variants of a measured plan are known"
        return replace(settled, step_ns=step_ns)

    def divided(self, limits: Limits) -> Division | None:
        """The best division by all that is known so far; None where nothing fits."""
        return self._within(self._left(limits))

    def _within(self, limits: Limits) -> Division | None:
        """The best division by figures of blocks that come to no more than this."""
        try:
            with self.evaluator.dividing():
                solved = self.solved_plan.solved
                return self.evaluator.divide(solved, self._runs, self.pipeline, limits)
        except InfeasibleError:
            return None

    def smaller(self, limits: Limits, step_ns: float) -> Division | None:
        """The best division, of more variants where those that are known lose much of a step."""
        division = self.divided(limits)
        if self.solved_plan.solved == self._solved and (
            division is None or division.step_ns > (1 + DEAR) * step_ns
        ):
            self._squeeze(self._left(limits))
            division = self.divided(limits)
        return division

    def _left(self, limits: Limits) -> Limits:
        """Bytes that figures of blocks may come to, per site."""
        return tuple(limit - self._more_bytes - self._uneven_bytes for limit in limits)

    def _squeeze(self, limits: Limits) -> None:
        """Mix variants that need less memory too."""
        if smaller := roomier(self.evaluator, self.solved_plan, limits):
            self.solved_plan = smaller
            self._tables = self.evaluator.runs(smaller.candidate, smaller.solved)
            self._measure()

    def step_ns(self, division: Division) -> float | None:
        """The step of a division whose variants all are measured, else None."""
        kinds = self._kinds(division)
        if self._times is None or any(
            kind not in self._measured_ns for row in kinds for kind in row
        ):
            return None
        times = replace(self._times, blocks=self._measured_ns)
        return measured_step_ns(kinds, self.pipeline, times)

    def gain(self, division: Division, other: Division) -> float:
        """Share of a step that one division saves over another, by all that is known so far."""
        step_ns, other_step_ns = self.step_ns(division), self.step_ns(other)
        if step_ns is None or other_step_ns is None:
            step_ns, other_step_ns = (
                step_time_ns(either.chunks, self._runs, self.pipeline)
                for either in (division, other)
            )
        return 1 - step_ns / other_step_ns

    def _kinds(self, division: Division) -> list[list[Kind]]:
        templates = self.evaluator.graph.templates
        return [
            [(templates[block], solution) for block, solution in chunk] for chunk in division.chunks
        ]

    def _time(self, plan: Plan, division: Division) -> None:
        """Time the blocks of a plan, and keep times by the numbers of solutions."""
        assert self._block_times is not None
        templates = self.evaluator.graph.templates
        numbers = {
            (templates[block], choice.variant): (templates[block], solution)
            for chunk, choices in zip(division.chunks, plan.chunks, strict=True)
            for (block, solution), choice in zip(chunk, choices.blocks, strict=True)
        }
        known_times = {
            kind: self._measured_ns[number]
            for kind, number in numbers.items()
            if number in self._measured_ns
        }
        times = self._block_times(plan, known_times)
        self._measured_ns |= {number: times.blocks[kind] for kind, number in numbers.items()}
        # What chunks take besides was measured beside blocks that were not known.
        self._times = self._times or times
        self._measure()

    def _measure(self) -> None:
        """Give the runs the figures that are known."""
        self._runs = tuple(
            replace(run, variants=tuple(_measured(run, self._measured_ns))) for run in self._tables
        )


def _measured(run: BlockRun, known_times: dict[Kind, Floats]) -> Sequence[VariantFigures]:
    """A run's variants with measured times, and those not measured yet scaled like the others."""
    pairs = [
        (figures.microbatch_ns, float(known_times[run.template, solution][PASSES].sum()))
        for solution, figures in enumerate(run.variants)
        if (run.template, solution) in known_times
    ]
    scale = sum(b for _, b in pairs) / max(sum(a for a, _ in pairs), 1) if pairs else 1.0
    return [
        _with_times(figures, known_times[run.template, solution])
        if (run.template, solution) in known_times
        else replace(
            figures,
            microbatch_ns=round(scale * figures.microbatch_ns),
            deferrable_ns=round(scale * figures.deferrable_ns),
        )
        for solution, figures in enumerate(run.variants)
    ]


def _with_times(figures: VariantFigures, times: Floats) -> VariantFigures:
    passes = np.maximum(times[PASSES], 0)
    once = times[[BEGIN, GATHER, REDUCE, NORM, UPDATE]].sum()
    deferrable = passes[2] or min(figures.deferrable_ns, passes.sum())
    return replace(
        figures,
        microbatch_ns=round(float(passes.sum())),
        deferrable_ns=round(float(deferrable)),
        step_ns=max(round(float(once)), 0),
    )


def _laid_out_bytes(request: SearchRequest, memory: Sequence[StageMemory]) -> list[int]:
    """Bytes of every stage that a limit on what is laid out counts."""
    return [request.laid_out_bytes(sum(stage.by_kind.values())) for stage in memory]


def fullest(
    request: SearchRequest, candidate: Candidate, memory: Sequence[StageMemory]
) -> tuple[int, int]:
    """Bytes laid out on the stage with the least room left, and what it may lay out.

    Parameters
    ----------
    request : SearchRequest
    candidate : Candidate
    memory : sequence of StageMemory
        That of every stage, as the compiler will lay it out.
    """
    limits = usable_bytes(request, candidate)
    sizes = _laid_out_bytes(request, memory)
    pairs = (
        (size, limits[kind]) for size, kind in zip(sizes, candidate.pipeline.kinds, strict=True)
    )
    return max(pairs, key=lambda pair: pair[0] - pair[1])
