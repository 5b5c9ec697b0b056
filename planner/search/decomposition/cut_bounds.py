"""Cut bounds: those of many candidates, raised by asking blocks at prices that matter to them.

Candidates ask for time alone, then at prices that all memory together makes worth a share of it,
chunk by chunk as so much is alive there. Then, round by round, the multipliers of the relaxed plan
program, mixed with those of the bound program, are the prices of those that are open: cuts where
the program is tight already raise nothing (Kelley, "The cutting-plane method", 1960; Dantzig and
Wolfe, "Decomposition principle for linear programs", 1960). A candidate is closed when its bound
reaches the cutoff, or both programs cost the same, or no price is new.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.graph import Graph
from millrace.planner.plan import block_runs
from millrace.planner.search.asking import Asker, prices
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.block_oracle import BlockOracle, CutPool, PriceAsk
from millrace.planner.search.decomposition.bound_program import (
    Cuts,
    Relaxation,
    bound_program,
    lowest_branch,
    relaxation,
)
from millrace.planner.search.decomposition.paths import PathCuts
from millrace.planner.search.decomposition.pipeline_rows import Branch, PipelineRows, StageProblem
from millrace.planner.search.decomposition.plan_program import plan_program
from millrace.planner.search.decomposition.prices import GRIDS, snapped, with_floors
from millrace.planner.search.decomposition.template_tables import (
    BETWEEN,
    BLOCK_FIGURES,
    FORWARD,
    PASSES,
)
from millrace.planner.search.placement_groups import StageTransfers, usable_bytes
from millrace.planner.search.programs import Shape

# Share of the time that all memory together is worth at first. Any from 0.1 to 1 leaves about as
# many candidates open after the second round, whose prices follow from the first.
FIRST_SHARE = 0.3
TIME_ALONE = tuple(float(figure in PASSES) for figure in range(BLOCK_FIGURES))
FIRST, SPREAD = 2, 6  # price vectors of a candidate, first and in every round, over its chunks
APART = 1 / 64  # share of the higher of two prices that the lower counts for between them
SAME = 0.002  # of a step, within which the plan program's relaxation has reached the bound
# Rows of a linear program that counts as a block program; the time of others grows with the square
# of their rows. By eye: at 700 Llama-3 405B is asked too little, at 2,200 it takes twice as long.
LIKE_A_BLOCK = 1500


KindPrices = tuple[int, tuple[float, ...]]
"""A kind of device, and prices [F] of the blocks that lie on it."""


@dataclass(slots=True)
class OpenCandidate:
    """A candidate whose bound may still rise.

    Attributes
    ----------
    bound_ns : float
        Least step time proven so far.
    mixed_ns : float
        Step time of its columns, mixed in any shares.
    asks : list
        Kinds of device and price vectors to ask next; time alone at first.
    tight_cuts : dict, optional
        Those that were tight, or nearly so, when there were so many of every kind (`cuts`).
    done : bool
        True if nothing that is known to ask raises it.
    """

    candidate: Candidate
    shape: Shape
    problem: StageProblem
    bound_ns: float
    mixed_ns: float = float("inf")
    asks: list[KindPrices] = field(default_factory=list)
    tight_cuts: Cuts | None = None
    cuts: tuple[int, ...] = ()
    rounds: int = 0
    done: bool = False


class CutBounds:
    """Bounds of the candidates of one request, by the cuts that blocks have given.

    Parameters
    ----------
    oracle : BlockOracle
    graph : Graph
    asker : Asker
    sends : StageTransfers
    """

    def __init__(
        self, oracle: BlockOracle, graph: Graph, asker: Asker, sends: StageTransfers
    ) -> None:
        self.oracle = oracle
        self.paths = PathCuts()
        self.solved = 0  # linear programs
        self._lp_work = 0.0  # time of these, counted in block programs
        self.asker = asker
        self.sends = sends
        self.runs = tuple((run.template, len(run.blocks)) for run in block_runs(graph))
        self.templates = tuple(dict.fromkeys(template for template, _ in self.runs))

    @property
    def work(self) -> float:
        """Block programs that were solved, and linear programs counted as such."""
        return self.oracle.solved + self._lp_work

    def round(self, some: Sequence[OpenCandidate], cutoff_ns: float) -> None:
        """Ask for candidates together and raise their bounds, no further than the cutoff."""
        self.ask(some)
        for open_candidate in some:
            self._raise(open_candidate, cutoff_ns)

    def ask(self, some: Sequence[OpenCandidate]) -> None:
        """Solve the block programs that candidates ask for next, together."""
        self.oracle.ask(
            PriceAsk(open_candidate.shape.parts[kind], template, vector)
            for open_candidate in some
            for kind, vector in open_candidate.asks
            for template in self.templates
        )

    def opened(self, candidates: Sequence[tuple[Candidate, float]]) -> list[OpenCandidate]:
        """Candidates with their bounds so far and their stage problems, that ask for time alone."""
        shapes = [self.asker.shape(candidate) for candidate, _ in candidates]
        time = [[1.0, 0.0, 0.0, 0.0, 1.0]] * len(shapes)
        costs = self.oracle.programs.cheapest(shapes, self.oracle.modes[0], time).tolist()
        return [
            OpenCandidate(
                candidate,
                shape,
                StageProblem(
                    pipeline=self.sends.pipeline(candidate),
                    runs=self.runs,
                    limits=usable_bytes(self.oracle.programs.request, candidate),
                    unit_ns=cost / candidate.pipeline.stages,
                ),
                bound_ns,
                asks=[(kind, TIME_ALONE) for kind in range(len(shape.sites))],
            )
            for (candidate, bound_ns), shape, cost in zip(candidates, shapes, costs, strict=True)
        ]

    def mixed(self, candidate: Candidate, bound_ns: float, programs: int) -> Relaxation:
        """Relaxed plan program of a candidate, columns in any shares, after `programs` solved."""
        (open_candidate,) = some = self.opened([(candidate, bound_ns)])
        while self.work < programs and not open_candidate.done:
            self.round(some, float("inf"))
        return self._relaxed(plan_program(open_candidate.problem, self.pools(open_candidate)))

    def pools(self, open_candidate: OpenCandidate) -> list[dict[str, CutPool]]:
        """Cuts and columns of a candidate's blocks, by template, for every kind of device."""
        return [
            {template: self.oracle.pool(part, template) for template in self.templates}
            for part in open_candidate.shape.parts
        ]

    def _raise(self, open_candidate: OpenCandidate, cutoff_ns: float) -> None:
        """Raise a bound by the cuts that there are; note what to ask next."""
        pools, problem = self.pools(open_candidate), open_candidate.problem
        time_ns = self._least_time_ns(open_candidate)
        cuts = tuple(len(of_kind[self.templates[0]].least) for of_kind in pools)
        newest = [now - before for now, before in zip(cuts, open_candidate.cuts, strict=False)]
        program = bound_program(problem, pools, open_candidate.tight_cuts, newest)
        branch, bound = lowest_branch(program.rows, time_ns, self.paths)
        self._note(program.rows, len(Branch))
        open_candidate.bound_ns = max(open_candidate.bound_ns, bound.step_ns)
        # Without multipliers, or a column to mix, nothing says what to ask.
        open_candidate.done = bound.prices is None or not all(
            pool.columns for of_kind in pools for pool in of_kind.values()
        )
        if open_candidate.bound_ns >= cutoff_ns or open_candidate.done:
            return
        open_candidate.tight_cuts, open_candidate.cuts = program.tight(bound.values), cuts
        open_candidate.rounds += 1
        if open_candidate.rounds == 1:
            open_candidate.asks = _first_prices(problem)
            return
        plan = plan_program(problem, pools)
        plan.branch(branch, time_ns)
        mixed = self._relaxed(plan)
        open_candidate.mixed_ns = min(open_candidate.mixed_ns, mixed.step_ns)
        asked = {
            (kind, tuple(vector.tolist()))
            for kind, of_kind in enumerate(pools)
            for vector in of_kind[self.templates[0]].prices
        }
        open_candidate.asks = []
        for grid in GRIDS:  # ever finer, while all that is wanted has been asked for
            wanted = _price_vectors(
                problem, mixed, None if open_candidate.rounds % 2 else bound, grid=grid
            )
            open_candidate.asks = _spread([ask for ask in wanted if ask not in asked], SPREAD)
            if open_candidate.asks:
                break
        open_candidate.done = not open_candidate.asks or bound.step_ns >= mixed.step_ns * (1 - SAME)

    def _relaxed(self, rows: PipelineRows) -> Relaxation:
        solution = relaxation(rows, self.paths)
        self._note(rows, 1)
        return solution

    def _note(self, rows: PipelineRows, times: int) -> None:
        """Count linear programs of so many rows."""
        self.solved += times
        self._lp_work += times * (rows.program.rows / LIKE_A_BLOCK) ** 2

    def _least_time_ns(self, open_candidate: OpenCandidate) -> float:
        """Least time of a block of the longest run for a microbatch, wherever it lies."""
        run, _ = open_candidate.problem.even_blocks
        return min(
            max(
                least
                for prices, least in zip(pool.prices, pool.least, strict=True)
                if tuple(prices.tolist()) == TIME_ALONE
            )
            for pool in (of_kind[self.runs[run][0]] for of_kind in self.pools(open_candidate))
        )


def _first_prices(problem: StageProblem) -> list[KindPrices]:
    """Prices of chunks where all memory costs a share of the time."""
    pipeline, alive = problem.pipeline, problem.alive
    time = prices(pipeline)
    vectors = []
    for chunk in range(pipeline.positions):
        vector = np.zeros(BLOCK_FIGURES)
        byte = FIRST_SHARE * problem.unit_ns / problem.limits[problem.kind_of(chunk)]
        vector[[FORWARD, MICROBATCH]], vector[STEP] = 1.0, time.step / time.microbatch
        vector[DEFERRABLE] = 1.0 if time.deferrable is None else time.deferrable / time.microbatch
        vector[PERSISTENT] = byte
        vector[[INFLIGHT, BETWEEN]] = byte * alive[chunk]
        vectors.append(vector)
    return _spread(_on_grid(problem, vectors, GRIDS[0]), FIRST)


def _price_vectors(
    problem: StageProblem,
    mixed: Relaxation,
    bound: Relaxation | None = None,
    *,
    grid: float = GRIDS[0],
) -> list[KindPrices]:
    """Prices of every chunk by the plan program; with the bound program, half by that, too."""
    if mixed.prices is None:
        return []
    wanted = _on_grid(problem, mixed.prices, grid)
    if bound is not None and bound.prices is not None:
        wanted += _on_grid(problem, _between(mixed.prices, bound.prices), grid)
    return sorted(set(wanted))


def _between(prices: Floats, others: Floats) -> Floats:
    """Geometric means of prices, of which neither counts for less than a share of the other."""
    most = np.maximum(prices, others)
    between: Floats = np.sqrt(np.maximum(np.minimum(prices, others), APART * most) * most)
    return between


def _on_grid(problem: StageProblem, vectors: Iterable[Floats], grid: float) -> list[KindPrices]:
    """Price vectors of chunks that ask for something, snapped to the grid, each once, in order."""
    scale = problem.scale / problem.unit_ns
    on_grid = [
        (problem.kind_of(chunk), tuple(snapped(with_floors(vector * scale) / scale, grid).tolist()))
        for chunk, vector in enumerate(vectors)
        if vector.any()
    ]
    return sorted(set(on_grid))


def _spread(asks: list[KindPrices], most: int) -> list[KindPrices]:
    """At most so many of the prices, evenly spread from the first to the last."""
    if len(asks) <= most:
        return asks
    places = np.linspace(0, len(asks) - 1, most).astype(int)
    return [asks[place] for place in np.unique(places).tolist()]
