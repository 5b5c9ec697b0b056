"""Uniform loop: candidates of even layers in the order of their bounds, priced until closed.

Branches are taken by ascending bound, many at a time. Each asks for blocks at the prices at which
its columns so far leave most open (Kelley, "The cutting-plane method", 1960), until its bound
reaches the best plan or its columns leave nothing open. What was asked for one branch bounds all of
the same mesh and microbatch (`pricing.py`); the queue's lowest bound is the proof.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import counted
from millrace.planner.frameworks.capabilities import MODES
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.candidate_loop import CandidateLoop, Standing
from millrace.planner.search.candidates import INTERLEAVE_MAX, Candidate
from millrace.planner.search.evaluation import (
    NO_GAIN,
    Outcome,
    Pruned,
    Refused,
    Solved,
    SolvedPlan,
)
from millrace.planner.search.programs import Ask, Shape
from millrace.planner.search.search_log import BLOCKS, SHAPES, STAGES
from millrace.planner.search.stages.even_layers import (
    COLUMNS,
    EvenLayers,
    Slopes,
)
from millrace.planner.search.uniform.branches import Opened, PricedBranch
from millrace.planner.search.uniform.column_divider import ColumnDivider
from millrace.planner.search.uniform.pricing import best_multiplier, joined

SWEEPS = 8
FIRST_SHARE = 0.3  # that of the first programs where memory is short
DEARER = 8  # times the price before, where no column fits at that
DEAREST = 200.0  # a branch that does not fit at this share of the step has no plan
OTHERS = 0.02  # weight of every stage beside the fullest, so that no figure is free
SAME = 0.002  # of a step, within which a bound has reached what its columns cost
MANY = 16  # shapes from which all are priced at these shares of the step before any branch asks
SHAPE_SHARES = (0.3, 1.5)
TOGETHER, ROUNDS = 32, 6  # branches that ask together at least, and as a part of those open
CLOSED = 0.25  # share of the gap that was asked for, within which a branch has nothing to gain


class UniformLoop(CandidateLoop):
    """Loop over candidates of a request whose framework deals out equal layers.

    Parameters
    ----------
    *asked, **options
        As for `CandidateLoop`.
    """

    def __init__(self, *asked: Any, **options: Any) -> None:
        super().__init__(*asked, **options)
        evaluator, graph = self.evaluator, self.evaluator.graph
        self.blocks = {block: graph.templates[block] for block in graph.blocks}
        self.templates = tuple(dict.fromkeys(self.blocks.values()))
        self.counts = np.array([list(self.blocks.values()).count(t) for t in self.templates])
        self.main = int(self.counts.argmax())
        self.divider = ColumnDivider(evaluator, self.record, self.templates)
        self.asked: set[Ask] = set()
        self.opened: dict[Candidate, Opened] = {}
        self.refused: list[Refused] = []
        self.closed = 1 + evaluator.request.max_gap * CLOSED

    # -- the queue -----------------------------------------------------------------------------

    def rounds(self) -> Iterator[Standing]:
        """Price candidates, many at a time, until none may be better than the best plan so far."""
        self.tell(f"bounding {counted(len(self.candidates), 'candidates')}")
        with self.record.layer(SHAPES):
            self._open(self.candidates)
        self.record.count("bounded", len(self.candidates))
        yield self.standing
        while batch := self._batch():
            self.tell(str(self.standing.and_of(self.other)))
            with self.record.layer(BLOCKS):
                self._ask([(opened, *ask) for opened, branch in batch for ask in branch.asks])
            yield self.standing

    def open_bounds_ns(self) -> list[float]:
        """Bounds of candidates that may be better than the best plan."""
        return [opened.bound_ns for opened in self.opened.values() if self._lowest(opened)]

    def _cutoff_ns(self, opened: Opened) -> float:
        """Bound at which a branch of a candidate has nothing to gain."""
        return min(self.best_ns, opened.best_ns) / self.closed

    def _is_open(self, opened: Opened, branch: PricedBranch) -> bool:
        return branch.bound_ns < self._cutoff_ns(opened)

    def _batch(self) -> list[tuple[Opened, PricedBranch]]:
        """Branches of the lowest bounds that have something to ask; bounds follow their pools."""
        batch: list[tuple[Opened, PricedBranch]] = []
        queue = sorted(
            (
                (branch.bound_ns, number, place, opened, branch)
                for number, opened in enumerate(self.opened.values())
                for place, branch in enumerate(opened.branches)
                if not branch.done
            ),
            key=lambda entry: entry[:3],
        )
        together = max(TOGETHER, len(queue) // ROUNDS)
        with self.record.layer(STAGES):
            for first in range(0, len(queue), together):
                some = [(entry[3], entry[4]) for entry in queue[first : first + together]]
                if len(batch) >= together or queue[first][0] >= self.best_ns / self.closed:
                    break
                some = [pair for pair in some if self._tightened(*pair)]
                self.divider.read(some, self.best_ns)
                for opened, branch in some:
                    if self._is_open(opened, branch):
                        self._look(opened, branch)
                    if self._is_open(opened, branch) and not branch.done:
                        batch.append((opened, branch))
        return batch

    def _open(self, candidates: Sequence[Candidate]) -> None:
        """Bound candidates, by what blocks take at least and by one program of every shape."""
        evaluator, request = self.evaluator, self.evaluator.request
        bounds = evaluator.lower_bounds_ns(candidates, 0.0)  # without a sweep
        for candidate, bound in zip(candidates, bounds, strict=True):
            if isinstance(bound, InfeasibleError):
                self.refused.append(Refused(candidate, bound))
                continue
            pipeline = evaluator.sends.pipeline(candidate)
            try:
                even = EvenLayers(self.blocks, pipeline, request.runs.layers)
            except InfeasibleError as error:
                self.refused.append(Refused(candidate, error))
                continue
            limits = self.limit(candidate)
            besides = evaluator.sends.buffer_bytes(candidate)
            self.opened[candidate] = Opened(
                candidate=candidate,
                shape=evaluator.shape(candidate),
                pipeline=pipeline,
                even=even,
                limits=np.array([limits[kind] - besides for kind in pipeline.kinds]),
                besides=besides,
                branches=[
                    PricedBranch(modes=modes, way=way, bound_ns=bound)
                    for modes in self._branches()
                    for way in range(len(even.ways))
                ],
            )
        self._ask_shapes([self.opened[c] for c in candidates if c in self.opened])

    def _branches(self) -> list[tuple[str, ...]]:
        """Modes of recomputation that plans mix, in every way."""
        modes = self.evaluator.modes
        if self.evaluator.request.runs.recompute_some and modes[0] == MODES[0]:
            return [(MODES[0], MODES[-1]), *((mode,) for mode in modes if mode == "selective")]
        return [(mode,) for mode in modes]

    def _ask_shapes(self, every: Sequence[Opened]) -> None:
        """Ask one program of every shape, for time alone: its cut bounds all its candidates."""
        first = {opened.shape: opened for opened in reversed(every) if self._lowest(opened)}
        mode = self.evaluator.modes[0]
        self._ask([(opened, mode, self._shape_prices(opened, 0.0)) for opened in first.values()])
        if len(first) < MANY:
            return
        open_modes: dict[tuple[Shape, str], Opened] = {}
        for opened in every:
            for branch in opened.branches:
                if self._tightened(opened, branch):
                    open_modes |= {(opened.shape, each): opened for each in branch.modes}
        self._ask(
            [
                (opened, each, self._shape_prices(opened, share))
                for (_, each), opened in open_modes.items()
                for share in SHAPE_SHARES
            ]
        )

    def _lowest(self, opened: Opened) -> bool:
        return opened.bound_ns < self._cutoff_ns(opened)

    def _shape_prices(self, opened: Opened, share: float) -> Floats:
        """Prices [F, T] that bound any schedule of a shape: of the stage that holds most layers."""
        pipeline = opened.pipeline
        microbatches, stages = pipeline.microbatches, pipeline.stages
        prices = np.zeros((len(FIGURES), len(self.templates)))
        prices[[MICROBATCH, DEFERRABLE]] = microbatches
        prices[STEP] = 1
        byte = share * opened.bound_ns / max(int(opened.limits.min()), 1)
        byte *= stages / (pipeline.microbatches + stages - 1) * microbatches / stages
        prices[PERSISTENT] = byte
        prices[INFLIGHT] = byte * min(stages, microbatches)
        if stages > 1:  # others count in the ramp, of at most so many chunks
            others = np.arange(len(self.templates)) != self.main
            ramp = stages * microbatches / (INTERLEAVE_MAX * (microbatches + stages))
            prices[np.ix_([MICROBATCH, DEFERRABLE], others)] = ramp
            prices[STEP, others] = OTHERS
            prices[np.ix_([PERSISTENT, INFLIGHT], others)] = byte * OTHERS
        weighed: Floats = prices * self.counts
        return weighed

    # -- block programs ------------------------------------------------------------------------

    def _ask(self, wanted: Sequence[tuple[Opened, str, Floats]]) -> None:
        """Solve block programs together and note what they prove."""
        programs = self.evaluator.programs
        for mode in dict.fromkeys(mode for _, mode, _ in wanted):
            self._prepare(mode)
        asks = [self._ask_of(*each) for each in wanted]
        self.record.count("programs at prices", len(set(asks)))
        answers = programs.solve_many(asks, SWEEPS, SAME)
        for (_, _, prices), ask, answer in zip(wanted, asks, answers, strict=True):
            if ask not in self.asked:
                self.asked.add(ask)
                self.divider.pool(ask.shape, ask.mode).add(prices, answer)

    def _prepare(self, mode: str) -> None:
        """Price a mode for all shapes that are open at once: tables are made for many together."""
        shapes = dict.fromkeys(
            opened.shape for opened in self.opened.values() if self._lowest(opened)
        )
        self.evaluator.programs.rows([(mode, shape) for shape in shapes])

    def _ask_of(self, opened: Opened, mode: str, prices: Floats) -> Ask:
        each = tuple(map(tuple, (prices / self.counts).tolist()))
        return Ask(shape=opened.shape, mode=mode, prices=(), by_template=each)

    # -- branches ------------------------------------------------------------------------------

    def _answers(self, opened: Opened, branch: PricedBranch) -> int:
        """Number of cuts and columns that bound a branch."""
        pools = [self.divider.pool(opened.shape, mode) for mode in branch.modes]
        plain = self.divider.pool(opened.shape, self.evaluator.modes[0])
        return len(plain.least) + sum(len(pool.least) + len(pool.columns) for pool in pools)

    def _tightened(self, opened: Opened, branch: PricedBranch) -> bool:
        """True if a branch is open once its bound is raised by all cuts of its shape."""
        if self._is_open(opened, branch) and self._answers(opened, branch) != branch.seen:
            slopes = branch.slopes or self._slopes(opened, branch, None)
            branch.bound_ns = max(branch.bound_ns, self._proven_ns(opened, branch, slopes, []))
        return self._is_open(opened, branch)

    def _look(self, opened: Opened, branch: PricedBranch) -> None:
        """Divide the new columns of a branch's shape, and note what the branch asks next."""
        pools = [self.divider.pool(opened.shape, mode) for mode in branch.modes]
        plain = self.evaluator.modes[0]
        answers = self._answers(opened, branch)
        if answers == branch.seen:
            if branch.asks:  # its prices are known, and nothing came of them
                self._follow_order(opened, branch)
            return
        branch.seen = answers
        slopes = branch.slopes or self._slopes(opened, branch, None)
        if branch.ordered:
            self._divide(opened, branch)
            branch.done = True
            return
        if branch.modes[0] == plain and not branch.timed:  # a cut of time bounds all modes
            branch.timed = True
            self._divide(opened, branch)
            if points := opened.points_of(branch):
                fastest = min(points, key=lambda point: point.step_ns)
                slopes = self._slopes(opened, branch, fastest.block)
            branch.asks = [(plain, slopes.time)]
            if self._ask_of(opened, plain, slopes.time) not in self.asked:
                return
        if not any(pool.columns for pool in pools):
            dear = self._prices(opened, branch, slopes, FIRST_SHARE)
            branch.done = any(pool.least for pool in pools)  # nothing can be read off
            branch.asks = [(mode, dear) for mode in branch.modes]
            return
        self._divide(opened, branch)
        self._price(opened, branch)

    def _price(self, opened: Opened, branch: PricedBranch) -> None:
        """Raise a branch's bound at the price that its columns leave most open, and ask there."""
        points = opened.points_of(branch)
        steps = np.array([point.step_ns for point in points])
        over = np.array([point.over_bytes for point in points], float)
        multiplier, cost_ns = best_multiplier(steps, over)
        if np.isinf(multiplier):
            branch.slopes = slopes = self._slopes(opened, branch, points[int(over.argmin())].block)
            first = max(FIRST_SHARE, DEARER * branch.share)
            branch.share = DEARER * first
            branch.asks = [
                (mode, self._prices(opened, branch, slopes, share))
                for share in (first, branch.share)
                for mode in branch.modes
            ]
            branch.bound_ns = max(branch.bound_ns, self._proven_ns(opened, branch, slopes, []))
            branch.done = branch.share > DEAREST
            return
        branch.multiplier = multiplier
        branch.cheapest = points[int((steps + multiplier * over).argmin())].block
        self._raise(opened, branch, self._slopes(opened, branch, branch.cheapest))
        if branch.bound_ns >= cost_ns * (1 - SAME):
            self._follow_order(opened, branch)

    def _raise(self, opened: Opened, branch: PricedBranch, slopes: Slopes) -> None:
        """Raise a branch's bound by slopes at its multiplier, and ask there."""
        multiplier, branch.slopes = branch.multiplier, slopes
        proven_ns = self._proven_ns(opened, branch, slopes, [multiplier])
        branch.bound_ns = max(branch.bound_ns, proven_ns)
        modes = branch.modes if multiplier > 0 else branch.modes[:1]
        branch.asks = [(mode, slopes.time + multiplier * slopes.memory) for mode in modes]

    def _follow_order(self, opened: Opened, branch: PricedBranch) -> None:
        """Ask once along the longest path of the order, where the formula has nothing left."""
        evaluator, way, cheapest = self.evaluator, branch.way, branch.cheapest
        branch.done = branch.ordered or opened.pipeline.stages == 1
        if branch.done or cheapest is None or evaluator.overlap is None:
            branch.done = True
            return
        branch.ordered = True
        least_ns = evaluator.programs.least_block_times_ns(opened.shape, evaluator.modes[0])
        slopes = self._slopes(opened, branch, cheapest)
        path = opened.even.path_slopes(slopes, way, cheapest, least_ns, evaluator.overlap)
        self._raise(opened, branch, path)

    def _prices(self, opened: Opened, branch: PricedBranch, slopes: Slopes, share: float) -> Floats:
        """Prices at which all memory of a stage costs a share of the step."""
        byte = share * branch.bound_ns / max(int(opened.limits.min()), 1)
        prices: Floats = slopes.time + byte * slopes.memory
        return prices

    def _slopes(self, opened: Opened, branch: PricedBranch, block: Ints | None) -> Slopes:
        """Slopes of a branch where blocks have these figures; None: its main template's alone."""
        if block is None:
            block = np.zeros((len(self.templates), COLUMNS), np.int64)
            block[self.main] = 1
        return opened.even.slopes(branch.way, block, OTHERS)

    def _proven_ns(
        self, opened: Opened, branch: PricedBranch, slopes: Slopes, multipliers: list[float]
    ) -> float:
        """Least step of a branch by the cuts of its shape, at the best price of memory."""
        plain = self.divider.pool(opened.shape, self.evaluator.modes[0])
        pools = [self.divider.pool(opened.shape, mode) for mode in branch.modes]
        every = {0.0, *multipliers}
        every.update(m for pool in pools for m in pool.multipliers(slopes, self.main))
        prices = np.array(sorted(every))
        mode = self.evaluator.modes[0]
        least_ns = self.evaluator.programs.least_block_times_ns(opened.shape, mode)
        limit = float(opened.limits[slopes.stage])
        # Whatever is run again takes no less time than what is not.
        (time_ns,) = plain.proven_ns(slopes, np.zeros(1), 0.0, least_ns).tolist()
        return joined(
            [
                np.maximum(
                    pool.proven_ns(slopes, prices, limit, least_ns), time_ns - prices * limit
                )
                for pool in pools
            ]
        )

    # -- plans ---------------------------------------------------------------------------------

    def _divide(self, opened: Opened, branch: PricedBranch) -> None:
        """Divide the new columns of a branch."""
        self.divider.divide(opened, branch, self.best_ns)
        if not self.apart:
            self.best_ns = min(self.best_ns, opened.best_ns)

    def outcomes(self) -> list[Outcome]:
        """Best plans of candidates, and bounds of all."""
        return [*self.refused, *map(self._outcome, self.opened.values())]

    def _outcome(self, opened: Opened) -> Outcome:
        candidate, bound_ns = opened.candidate, opened.bound_ns
        if opened.best is not None:
            if bound_ns > opened.best.step_ns * (1 + 1e-9):
                self.record.count("false bounds")
            return SolvedPlan(
                candidate=candidate,
                division=opened.best,
                bound_ns=min(bound_ns, opened.best.step_ns),
                solved=tuple(
                    Solved(mode, self.divider.solution(opened, mode, options))
                    for mode, options in opened.columns
                ),
            )
        if self._lowest(opened) and opened.short is not None:
            return Refused(candidate, opened.short, bound_ns)
        return Pruned(candidate, bound_ns, NO_GAIN)
