"""Uniform loop: candidates of even layers in the order of their bounds, priced until closed.

Branches are taken by ascending bound, many at a time. Each asks for blocks at the prices at which
its columns so far leave most open (Kelley, "The cutting-plane method", 1960), until its bound
reaches the best plan or its columns leave nothing open. What was asked for one branch bounds all of
the same mesh and microbatch (`pricing.py`); the queue's lowest bound is the proof.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import counted, duration
from millrace.planner.frameworks.capabilities import MODES
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.blocks.solver import Solution
from millrace.planner.search.candidates import INTERLEAVE_MAX, Candidate
from millrace.planner.search.evaluation import (
    NO_GAIN,
    Evaluator,
    Limits,
    Outcome,
    Pruned,
    Refused,
    Solved,
    SolvedPlan,
)
from millrace.planner.search.placement_groups import usable_bytes
from millrace.planner.search.programs import Ask, FiguresKey, Shape
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.search_log import BLOCKS, SHAPES, STAGES, SearchLog
from millrace.planner.search.stages import Division, in_order
from millrace.planner.search.stages.even_layers import COLUMNS, EvenLayers, Slopes, variant_rows
from millrace.planner.search.uniform.branches import Opened, Point, PricedBranch
from millrace.planner.search.uniform.pricing import BlockPool, best_multiplier, joined

SWEEPS = 8
FIRST_SHARE = 0.3  # that of the first programs where memory is short
DEARER = 8  # times the price before, where no column fits at that
DEAREST = 200.0  # a branch that does not fit at this share of the step has no plan
OTHERS = 0.02  # weight of every stage beside the fullest, so that no figure is free
SAME = 0.002  # of a step, within which a bound has reached what its columns cost
MANY = 16  # shapes from which all are priced at these shares of the step before any branch asks
SHAPE_SHARES = (0.3, 1.5)
TOGETHER = 32  # branches that ask together
CLOSED = 0.25  # share of the gap that was asked for, within which a branch has nothing to gain


class UniformLoop:
    """Loop over candidates of a request whose framework deals out equal layers.

    Parameters
    ----------
    evaluator : Evaluator
        Its request, graph, programs, prices and what they have proven so far.
    candidates : sequence of Candidate
    tell : callable
        Told a line of text now and then.
    record : SearchLog
        Filled with what was done.
    limits : mapping, optional
        Bytes that a candidate may lay out on each of its sites, where that is not what there is.
    best_ns : float, optional
        Step of the best plan so far.
    apart : bool
        True: every candidate is closed against its own best plan; False: against that of all.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        candidates: Sequence[Candidate],
        tell: Callable[[str], None],
        record: SearchLog,
        *,
        limits: Mapping[Candidate, Limits] | None = None,
        best_ns: float = float("inf"),
        apart: bool = False,
    ) -> None:
        self.evaluator = evaluator
        self.candidates = candidates
        self.tell = tell
        self.record = record
        self.limits = limits or {}
        self.apart = apart
        graph = evaluator.graph
        self.blocks = {block: graph.templates[block] for block in graph.blocks}
        self.templates = tuple(dict.fromkeys(self.blocks.values()))
        self.counts = np.array([list(self.blocks.values()).count(t) for t in self.templates])
        self.main = int(self.counts.argmax())
        self.pools: dict[tuple[Shape, str], BlockPool] = {}
        self.asked: set[Ask] = set()
        self.opened: dict[Candidate, Opened] = {}
        self.refused: list[Refused] = []
        self.closed = 1 + evaluator.request.max_gap * CLOSED
        self.best_ns = best_ns

    # -- the queue -----------------------------------------------------------------------------

    def rounds(self) -> Iterator[float]:
        """Price candidates, many at a time, until none may be better than the best plan so far.

        After each round the step of the best plan is given out, and may be lowered (`hear`).
        """
        self._phase(f"bounding {counted(len(self.candidates), 'candidates')}")
        with self.record.layer(SHAPES):
            self._open(self.candidates)
        self.record.count("bounded", len(self.candidates))
        yield self.best_ns
        while batch := self._batch():
            self._phase(f"pricing: {counted(self._left(), 'candidates')} are open")
            with self.record.layer(BLOCKS):
                self._ask([(opened, *ask) for opened, branch in batch for ask in branch.asks])
            yield self.best_ns

    def hear(self, best_ns: float) -> None:
        """Close candidates against a plan of this step, too, wherever it was found."""
        if not self.apart:
            self.best_ns = min(self.best_ns, best_ns)

    def _phase(self, phase: str) -> None:
        best = min((opened.best_ns for opened in self.opened.values()), default=float("inf"))
        so_far = f", best step {duration(best)}" if np.isfinite(best) else ""
        self.tell(f"{phase}{so_far}")

    def _cutoff_ns(self, opened: Opened) -> float:
        """Bound at which a branch of a candidate has nothing to gain."""
        return min(self.best_ns, opened.best_ns) / self.closed

    def _is_open(self, opened: Opened, branch: PricedBranch) -> bool:
        return branch.bound_ns < self._cutoff_ns(opened)

    def _left(self) -> int:
        return sum(self._lowest(opened) for opened in self.opened.values())

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
        with self.record.layer(STAGES):
            self._read([(entry[3], entry[4]) for entry in queue[: 2 * TOGETHER]])
            for bound_ns, _, _, opened, branch in queue:
                if len(batch) == TOGETHER or bound_ns >= self.best_ns / self.closed:
                    break
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
            limits = self.limits.get(candidate) or usable_bytes(request, candidate)
            besides = evaluator.sends.buffer_bytes(candidate)
            self.opened[candidate] = Opened(
                candidate=candidate,
                shape=evaluator.shape(candidate),
                pipeline=pipeline,
                even=even,
                limits=np.array([limits[kind] - besides for kind in pipeline.kinds]),
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
        if len(first) >= MANY:
            self._ask(
                [
                    (opened, mode, self._shape_prices(opened, share))
                    for mode in self.evaluator.modes
                    for share in SHAPE_SHARES
                    for opened in first.values()
                    if self._lowest(opened)
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

    def pool(self, shape: Shape, mode: str) -> BlockPool:
        """Cuts and columns of a shape in a mode."""
        return self.pools.setdefault((shape, mode), BlockPool())

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
                self.pool(ask.shape, ask.mode).add(prices, answer)

    def _prepare(self, mode: str) -> None:
        """Price a mode for all shapes that are open at once: tables are made for many together."""
        shapes = dict.fromkeys(
            opened.shape for opened in self.opened.values() if self._lowest(opened)
        )
        self.evaluator.programs.rows([(mode, shape) for shape in shapes])

    def _read(self, branches: Sequence[tuple[Opened, PricedBranch]]) -> None:
        """Read the figures of all columns that these branches have not tried yet together."""
        programs = self.evaluator.programs
        new = {
            (number, mode): self._untried(opened, mode)
            for number, (opened, branch) in enumerate(branches)
            if self._is_open(opened, branch)
            for mode in branch.modes
        }
        programs.read(
            self._key(branches[number][0], mode, options)
            for (number, mode), columns in new.items()
            for options in columns
        )
        programs.read(
            self._key(branches[number][0], MODES[-1], options)
            for (number, mode), columns in new.items()
            if columns and mode == MODES[0] and len(branches[number][1].modes) > 1
            for options in columns
            if self._is_short(branches[number][0], mode, options)
        )

    def _untried(self, opened: Opened, mode: str) -> list[tuple[int, ...]]:
        pool = self.pool(opened.shape, mode)
        return [options for options in pool.columns if (mode, options) not in opened.tried]

    def _is_short(self, opened: Opened, mode: str, options: tuple[int, ...]) -> bool:
        """True if a column does not fit in some way."""
        figures = opened.even.figures(self._rows(opened, mode, options)[None, None])
        return bool((figures.stage_bytes > opened.limits).any())

    def _key(self, opened: Opened, mode: str, options: tuple[int, ...]) -> FiguresKey:
        return opened.shape, mode, options, opened.pipeline.defers_weight_gradients

    def _ask_of(self, opened: Opened, mode: str, prices: Floats) -> Ask:
        each = tuple(map(tuple, (prices / self.counts).tolist()))
        return Ask(shape=opened.shape, mode=mode, prices=(), by_template=each)

    def _rows(self, opened: Opened, mode: str, options: tuple[int, ...]) -> Ints:
        """Figures [T, F] of a block of every template in a column."""
        key = mode, options
        if key not in opened.rows:
            figures = self.evaluator.programs.block_figures(*self._key(opened, mode, options))
            opened.rows[key] = variant_rows([figures[template] for template in self.templates])
        return opened.rows[key]

    # -- branches ------------------------------------------------------------------------------

    def _look(self, opened: Opened, branch: PricedBranch) -> None:
        """Raise a branch's bound by all that is known of its shape; note what it asks next."""
        pools = [self.pool(opened.shape, mode) for mode in branch.modes]
        plain = self.evaluator.modes[0]
        answers = len(self.pool(opened.shape, plain).least)
        answers += sum(len(pool.least) + len(pool.columns) for pool in pools)
        if answers == branch.seen:
            if branch.asks:  # its prices are known, and nothing came of them
                self._follow_order(opened, branch)
            return
        branch.seen = answers
        slopes = branch.slopes or self._slopes(opened, branch, None)
        branch.bound_ns = max(branch.bound_ns, self._proven_ns(opened, branch, slopes, []))
        if not self._is_open(opened, branch):
            return
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
        plain = self.pool(opened.shape, self.evaluator.modes[0])
        pools = [self.pool(opened.shape, mode) for mode in branch.modes]
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
        """Divide the columns of a branch's modes that were not tried yet, in every way."""
        for mode in branch.modes:
            new = self._untried(opened, mode)
            if not new:
                continue
            opened.tried.update((mode, options) for options in new)
            plain = np.array([[self._rows(opened, mode, options) for options in new]])
            figures = opened.even.figures(plain)
            over = (figures.stage_bytes - opened.limits).max(axis=-1)
            columns = [(mode, options) for options in new]
            for way in range(len(opened.even.ways)):
                dealt = figures.step_ns[way].tolist(), over[way].tolist(), plain[0], columns
                opened.points.setdefault((mode, way), []).extend(map(Point, *dealt))
            if (over > 0).any() and len(branch.modes) > 1 and mode == MODES[0]:
                again = np.array([[self._rows(opened, MODES[-1], options) for options in new]])
                figures = opened.even.fitted(plain, again, opened.limits)
                over = (figures.stage_bytes - opened.limits).max(axis=-1)
            self.record.count("divisions", over.size)
            self._note(opened, mode, new, figures.step_ns, over, figures.recomputed)

    def _note(
        self,
        opened: Opened,
        mode: str,
        columns: list[tuple[int, ...]],
        step_ns: Floats,
        over: Ints,
        recomputed: Ints,
    ) -> None:
        """Keep the best of some divisions [C, V] if it is better than what is known."""
        limit = int(opened.limits.min())
        needed_bytes = limit + int(over.min())
        if opened.short is None or opened.short.needed_bytes > needed_bytes:
            opened.short = MemoryLimitError(needed_bytes, limit)
        fits = np.where(over <= 0, step_ns, np.inf)
        best_ns = opened.best_ns
        for place in np.argsort(fits, axis=None, kind="stable").tolist():
            way, column = divmod(place, len(columns))
            if fits[way, column] >= best_ns:
                break
            layers = int(recomputed[way, column])
            used = [(mode, columns[column])]
            if layers:
                used.append((MODES[-1], columns[column]))
            division = Division(
                chunks=opened.even.chunks(way, 0, 1 if layers else None, layers),
                step_ns=float(fits[way, column]),
                memory_bytes=int(limit + over[way, column]),
                bound_ns=float(fits[way, column]),
            )
            group = [Solved(mode_, self._solution(opened, mode_, o)) for mode_, o in used]
            runs = self.evaluator.runs(opened.candidate, group)
            division = in_order(division, runs, opened.pipeline, self.evaluator.overlap)
            if division.step_ns < best_ns:
                opened.best, opened.used, best_ns = division, tuple(used), division.step_ns
        self.hear(best_ns)

    def _solution(self, opened: Opened, mode: str, options: tuple[int, ...]) -> Solution:
        """A column of a mode, or of the plain one whose options are recomputed."""
        pools = [self.pool(opened.shape, mode), self.pool(opened.shape, MODES[0])]
        return next(pool.columns[options] for pool in pools if options in pool.columns)

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
                    Solved(mode, self._solution(opened, mode, options))
                    for mode, options in opened.columns
                ),
            )
        if self._lowest(opened) and opened.short is not None:
            return Refused(candidate, opened.short, bound_ns)
        return Pruned(candidate, bound_ns, NO_GAIN)
