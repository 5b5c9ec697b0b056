"""Caps: the exact division by a search over the pace and the longest update.

With a cap on every stage's time and one on its update, stages meet in nothing but the blocks they
share out, and a dynamic program over them finds the least ramp. A box of caps costs at least its
lower corner's time and update and its upper corner's ramp; boxes are halved, the cheapest first.
The cost (`CapPrices`) grows in all three, and all figures are whole numbers, so that the answer is
exact.

Shapes: the times and updates that stages can have are ascending arrays; a box is a range of each.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from millrace.models.arrays import Ints
from millrace.planner.search.stages.holdings import frontier
from millrace.planner.search.stages.run_layout import StagePlace
from millrace.planner.search.stages.shape import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class CapPrices:
    """Costs of the figures of a choice: the step time in whole numbers, times `unit`.

    Attributes
    ----------
    stages : int
    slots : int
        Chunk-microbatches of a stage after its first.
    unit : int
    sent_ns : int
        Nanoseconds that a microbatch travels from stage to stage and back.
    in_turn : bool
        True if the pace is no less than the mean time with what is sent.
    """

    stages: int
    slots: int
    unit: int
    sent_ns: int
    in_turn: bool

    @classmethod
    def of(cls, pipeline: Pipeline) -> "CapPrices":
        """Prices of a pipeline's stages.

        Where rows of chunks wait for their longest, these are the least prices: those of stages
        that wait for the slowest.
        """
        # Costs are in shares of a chunk, and of a stage twice: ramps count `stages` times, and the
        # mean of the stages is taken of that.
        return cls(
            stages=pipeline.stages,
            slots=pipeline.microbatches * pipeline.interleave - 1,
            unit=pipeline.stages**2 * pipeline.interleave,
            sent_ns=pipeline.sent_ns,
            in_turn=pipeline.in_turn,
        )

    @property
    def per_time(self) -> int:
        """Cost of a nanosecond of the slowest stage."""
        return self.stages**2 * self.slots

    def cost(self, time: int, ramp: int, update: int, *, waiting: bool = True) -> int:
        """Cost of the slowest stage's time, all stages' ramps and the longest update."""
        pace = self.stages**2 * time
        if waiting and self.in_turn:
            pace = max(pace, ramp + self.stages * self.sent_ns)
        return self.slots * pace + self.stages * ramp + self.unit * (update + self.sent_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapSet:
    """One row per stage, with their longest time, their ramps' sum and their longest update."""

    rows: tuple[int, ...]
    time: int
    ramp: int
    update: int

    def cost(self, prices: CapPrices) -> int:
        """Cost of the choice."""
        return prices.cost(self.time, self.ramp, self.update)


class StageDynamicProgram:
    """Rows of a layout that fit, and the dynamic program over its stages.

    Parameters
    ----------
    places : list of StagePlace
    states : int
        The state behind the last stage.
    limits : tuple of int
        Bytes of each stage.
    longest : int
        Rows that take more time are left out.
    """

    def __init__(
        self, places: list[StagePlace], states: int, limits: tuple[int, ...], longest: int
    ) -> None:
        self.states = states
        stages = len(places)
        # A state with no way to it has this ramp: above any, and a sum over stages is no overflow.
        self.nowhere = 2**62 // (stages + 1)
        rows, makeups, of, pieces = [], [], [], []
        for alike in _alike(places):
            holdings = places[alike[0]].holdings
            inflight = np.array([places[stage].inflight for stage in alike])
            size = holdings.base + inflight @ holdings.keeps.T
            fits = size <= np.array([limits[stage] for stage in alike])[:, None]
            fits &= holdings.time <= longest
            which, row = np.nonzero(fits)
            makeup = holdings.makeup[row] + which * (int(holdings.makeup.max(initial=0)) + 1)
            figures = holdings.time[row], holdings.ramp[row], holdings.update[row]
            best = frontier(makeup, *figures)
            rows.append(row[best])
            makeups.append(holdings.makeup[row[best]])
            of.append(np.array(alike)[which[best]])
            pieces.append([figure[best] for figure in figures])
        self.rows, makeup, stage = (np.concatenate(arrays) for arrays in (rows, makeups, of))
        self.time, self.ramp, self.update = (
            np.concatenate(arrays) for arrays in zip(*pieces, strict=True)
        )
        new = np.ones(len(stage), bool)
        new[1:] = (stage[1:] != stage[:-1]) | (makeup[1:] != makeup[:-1])
        self.starts = np.flatnonzero(new)
        self.ends = np.append(self.starts[1:], len(stage))
        # Spots are indices of states' make-ups among the least ramps; the last is nowhere.
        makeup_at = np.stack([place.makeup_at for place in places])
        group = np.full((stages, int(makeup_at.max(initial=0)) + 2), -1)
        group[stage[self.starts], makeup[self.starts]] = np.arange(len(self.starts))
        self.spots = group[np.arange(stages)[:, None, None], makeup_at]

    def least_ramp(self, time: int, update: int) -> CapSet | None:
        """Choice of least ramp within caps on the time and update of every stage; None: none."""
        if not len(self.time):
            return None
        fits = (self.time <= time) & (self.update <= update)
        ramps = np.where(fits, self.ramp, self.nowhere)
        least = np.append(np.minimum.reduceat(ramps, self.starts), self.nowhere)
        steps = least[self.spots]
        stages, window, states = steps.shape
        reached = np.full((stages + 1, window - 1 + states), self.nowhere)
        reached[0, window - 1] = 0
        # Row w of a stage's view is the states before it, w units back.
        row, column = reached.strides
        before = np.lib.stride_tricks.as_strided(
            reached[:, window - 1 :], (stages, window, states), (row, -column, column)
        )
        for stage in range(stages):
            np.add(before[stage], steps[stage]).min(axis=0, out=reached[stage + 1, window - 1 :])
        if reached[stages, -1] >= self.nowhere:
            return None
        return self._traced(reached, steps, ramps)

    def _traced(self, reached: Ints, steps: Ints, ramps: Ints) -> CapSet:
        """Choice on the best way to the last state, read back from there."""
        stages, window = steps.shape[0], steps.shape[1]
        state = self.states
        picks = []
        for stage in range(stages - 1, -1, -1):
            before = reached[stage, window - 1 + state - np.arange(window)]
            width = int((before + steps[stage, :, state]).argmin())
            group = int(self.spots[stage, width, state])
            start, end = int(self.starts[group]), int(self.ends[group])
            picks.append(start + int(ramps[start:end].argmin()))
            state -= width
        picks.reverse()
        return CapSet(
            rows=tuple(self.rows[picks].tolist()),
            time=int(self.time[picks].max()),
            ramp=int(self.ramp[picks].sum()),
            update=int(self.update[picks].max()),
        )


def _alike(places: list[StagePlace]) -> list[list[int]]:
    """Groups of stages that share their holdings."""
    groups: dict[int, list[int]] = {}
    for stage, place in enumerate(places):
        groups.setdefault(id(place.holdings), []).append(stage)
    return list(groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """Best choice found, if any is better than the one to beat, and the least cost there is."""

    choice: CapSet | None
    bound: int


def search(program: StageDynamicProgram, prices: CapPrices, beat: int, max_gap: float) -> Capped:
    """Find the choice of least cost.

    Parameters
    ----------
    program : StageDynamicProgram
    prices : CapPrices
    beat : int
        A cost already had: only what is below it is of interest.
    max_gap : float
        Relative gap at which to stop.
    """
    times, updates = np.unique(program.time), np.unique(program.update)
    best: CapSet | None = None
    if not len(times):
        return Capped(choice=None, bound=beat)
    heap: list[tuple[int, int, _Box]] = []
    count = 0
    bound = beat
    top = _Box(0, len(times) - 1, 0, len(updates) - 1, None)
    for box in _solved(program, times, updates, [top]):
        heapq.heappush(heap, (box.bound(times, updates, prices), count, box))
    while heap:
        least, _, box = heapq.heappop(heap)
        corner = box.corner
        assert corner is not None, "boxes without one are left out"
        if corner.cost(prices) < beat:
            best, beat = corner, corner.cost(prices)
            bound = beat
        if near(least, beat, max_gap):
            bound = min(bound, least)
            break
        for part in _solved(program, times, updates, box.halves(times, updates, prices)):
            count += 1
            heapq.heappush(heap, (part.bound(times, updates, prices), count, part))
    return Capped(choice=best, bound=min(bound, beat))


def near(bound: int, cost: int, max_gap: float) -> bool:
    """True if a bound proves a cost within a relative gap; exactly, where there is to be none."""
    return bound >= cost or (max_gap > 0 and bound * (1 + max_gap) >= cost)


@dataclass(frozen=True, slots=True)
class _Box:
    """Caps from a lower to an upper corner, and the least ramp at the upper one."""

    time_from: int
    time_to: int
    update_from: int
    update_to: int
    corner: CapSet | None

    def bound(self, times: Ints, updates: Ints, prices: CapPrices) -> int:
        assert self.corner is not None
        time, update = int(times[self.time_from]), int(updates[self.update_from])
        return prices.cost(time, self.corner.ramp, update)

    def halves(self, times: Ints, updates: Ints, prices: CapPrices) -> list["_Box"]:
        """Two boxes for one, less what the corner's own choice makes superfluous."""
        assert self.corner is not None
        # Nothing in the box has less ramp than the corner's choice: it must save time or update.
        time_at = int(np.searchsorted(times, self.corner.time))
        update_at = int(np.searchsorted(updates, self.corner.update))
        time_cost = prices.per_time * int(times[time_at] - times[self.time_from])
        update_cost = prices.unit * int(updates[update_at] - updates[self.update_from])
        if time_cost >= update_cost:
            middle = (int(times[self.time_from]) + int(times[time_at])) // 2
            cut = int(np.searchsorted(times, middle, side="right")) - 1
            cut = min(max(cut, self.time_from), time_at - 1)
            lower = _Box(self.time_from, cut, self.update_from, self.update_to, None)
            upper = _Box(cut + 1, self.time_to, self.update_from, self.update_to, self.corner)
        else:
            middle = (int(updates[self.update_from]) + int(updates[update_at])) // 2
            cut = int(np.searchsorted(updates, middle, side="right")) - 1
            cut = min(max(cut, self.update_from), update_at - 1)
            lower = _Box(self.time_from, self.time_to, self.update_from, cut, None)
            upper = _Box(self.time_from, self.time_to, cut + 1, self.update_to, self.corner)
        return [lower, upper]


def _solved(
    program: StageDynamicProgram, times: Ints, updates: Ints, boxes: list[_Box]
) -> Iterator[_Box]:
    """Boxes with the choice at their upper corner; those that hold none are left out."""
    for box in boxes:
        if box.corner is not None:
            yield box
            continue
        corner = program.least_ramp(int(times[box.time_to]), int(updates[box.update_to]))
        if corner is not None:
            yield _Box(box.time_from, box.time_to, box.update_from, box.update_to, corner)
