"""Loop: bounds of many candidates raised together, by asking blocks at prices that matter to them.

Candidates ask at prices that all memory together makes worth a share of the time, chunk by chunk as
so much is alive there. Then, round by round, the multipliers of the relaxed plan program, mixed
with those of the bound program, are the prices of those that are open: cuts where the program is
tight already raise nothing (Kelley, "The cutting-plane method", 1960; Dantzig and Wolfe,
"Decomposition principle for linear programs", 1960). A candidate is closed when its bound reaches
the cutoff, or both programs cost the same, or no price is new.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.graph import Graph
from millrace.planner.formatting import percent
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
SAME = 0.002  # of a step, within which the plan program's relaxation has reached the bound
TOGETHER = 24  # candidates of a round, those with the lowest bounds: few, as work may end
# Rows of a linear program that counts as a block program; the time of others grows with the square
# of their rows. By eye: at 700 Llama-3 405B is asked too little, at 2,200 it takes twice as long.
LIKE_A_BLOCK = 1500
WIDEST_GAP = 0.1  # widest of the gaps that are proven one after the other


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
        Price vectors to ask next.
    tight_cuts : dict, optional
        Those that were tight, or nearly so, when there were so many of every template (`cuts`).
    done : bool
        True if nothing that is known to ask raises it.
    """

    candidate: Candidate
    shape: Shape
    problem: StageProblem
    bound_ns: float
    mixed_ns: float = float("inf")
    asks: list[tuple[float, ...]] = field(default_factory=list)
    tight_cuts: Cuts | None = None
    cuts: int = 0
    rounds: int = 0
    done: bool = False


class BoundLoop:
    """Candidates of one request, bounded by cuts.

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
        self.work = 0.0  # time of these, counted in block programs
        self.asker = asker
        self.sends = sends
        self.runs = tuple((run.template, len(run.blocks)) for run in block_runs(graph))
        self.templates = tuple(dict.fromkeys(template for template, _ in self.runs))

    def raised(
        self,
        candidates: Sequence[tuple[Candidate, float]],
        best_ns: float,
        max_gap: float,
        programs: int,
        tell: Callable[[str], None] = lambda line: None,
    ) -> list[OpenCandidate]:
        """Bounds of candidates on one kind of device, the lowest raised to within a gap of a plan.

        Gaps are halved until they are `max_gap`, as few prices close what is far from the best;
        the last ones may be left, where so many block programs are solved before.

        Parameters
        ----------
        candidates : sequence
            With their bounds so far.
        best_ns : float
            Step of the best plan.
        max_gap : float
        programs : int
            Block programs, and linear programs counted as such, after which none is asked for.
        tell : callable, optional
            Told a line of text now and then.
        """
        gaps = [max_gap]
        while 0 < gaps[-1] < WIDEST_GAP:
            gaps.append(2 * gaps[-1])
        opened = self._opened(candidates)
        for gap in reversed(gaps):
            cutoff_ns = best_ns / (1 + gap)
            while self.oracle.solved + self.work < programs:
                # What rises no further holds the gap, whatever others rise to.
                held_ns = min(
                    (open_candidate.bound_ns for open_candidate in opened if open_candidate.done),
                    default=cutoff_ns,
                )
                wanted_ns = min(cutoff_ns, held_ns)
                left = [
                    open_candidate
                    for open_candidate in opened
                    if open_candidate.bound_ns < wanted_ns and not open_candidate.done
                ]
                if not left:
                    break
                tell(f"proving a gap of {percent(gap)}: {len(left)} candidates are left")
                left.sort(key=lambda open_candidate: open_candidate.bound_ns)
                self._round(left[:TOGETHER], cutoff_ns)
        return opened

    def _round(self, left: list[OpenCandidate], cutoff_ns: float) -> None:
        """Ask for all of these together, and raise their bounds."""
        self.oracle.ask(
            PriceAsk(open_candidate.shape, template, vector)
            for open_candidate in left
            for vector in open_candidate.asks
            or [TIME_ALONE, *_first_prices(open_candidate.problem)]
            for template in self.templates
        )
        for open_candidate in left:
            self._raise(open_candidate, cutoff_ns)

    def _opened(self, candidates: Sequence[tuple[Candidate, float]]) -> list[OpenCandidate]:
        """Candidates with their stage problems."""
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
                    limit_bytes=usable_bytes(self.oracle.programs.request, candidate)[0],
                    unit_ns=cost / candidate.pipeline.stages,
                ),
                bound_ns,
            )
            for (candidate, bound_ns), shape, cost in zip(candidates, shapes, costs, strict=True)
        ]

    def mixed(self, candidate: Candidate, bound_ns: float, programs: int) -> Relaxation:
        """Relaxed plan program of a candidate, columns in any shares, after `programs` solved."""
        (open_candidate,) = self.raised([(candidate, bound_ns)], float("inf"), WIDEST_GAP, programs)
        return self._relaxed(plan_program(open_candidate.problem, self.pools(open_candidate)).rows)

    def pools(self, open_candidate: OpenCandidate) -> dict[str, CutPool]:
        """Cuts and columns of a candidate's blocks, by template."""
        return {
            template: self.oracle.pool(open_candidate.shape, template)
            for template in self.templates
        }

    def _raise(self, open_candidate: OpenCandidate, cutoff_ns: float) -> None:
        """Raise a bound by the cuts that there are; note what to ask next."""
        pools, problem = self.pools(open_candidate), open_candidate.problem
        time_ns = self._least_time_ns(open_candidate)
        cuts = len(pools[self.templates[0]].least)
        program = bound_program(
            problem, pools, open_candidate.tight_cuts, cuts - open_candidate.cuts
        )
        branch, bound = lowest_branch(program.rows, time_ns, self.paths)
        self._note(program.rows, len(Branch))
        open_candidate.bound_ns = max(open_candidate.bound_ns, bound.step_ns)
        # Without multipliers, or a column to mix, nothing says what to ask.
        open_candidate.done = bound.prices is None or not all(
            pool.columns for pool in pools.values()
        )
        if open_candidate.bound_ns >= cutoff_ns or open_candidate.done:
            return
        open_candidate.tight_cuts, open_candidate.cuts = program.tight(bound.values), cuts
        plan = plan_program(problem, pools)
        plan.rows.branch(branch, time_ns)
        mixed = self._relaxed(plan.rows)
        open_candidate.mixed_ns = min(open_candidate.mixed_ns, mixed.step_ns)
        asked = {tuple(vector.tolist()) for vector in pools[self.templates[0]].prices}
        open_candidate.asks = []
        for grid in GRIDS:  # ever finer, while all that is wanted has been asked for
            wanted = _price_vectors(
                problem, mixed, bound if open_candidate.rounds % 2 else None, grid=grid
            )
            open_candidate.asks = _spread(
                [vector for vector in wanted if vector not in asked], SPREAD
            )
            if open_candidate.asks:
                break
        open_candidate.rounds += 1
        open_candidate.done = not open_candidate.asks or bound.step_ns >= mixed.step_ns * (1 - SAME)

    def _relaxed(self, rows: PipelineRows) -> Relaxation:
        solution = relaxation(rows, self.paths)
        self._note(rows, 1)
        return solution

    def _note(self, rows: PipelineRows, times: int) -> None:
        """Count linear programs of so many rows."""
        self.solved += times
        self.work += times * (rows.program.rows / LIKE_A_BLOCK) ** 2

    def _least_time_ns(self, open_candidate: OpenCandidate) -> float:
        """Least time of a block of the longest run for a microbatch."""
        run, _ = open_candidate.problem.even_blocks
        pool = self.oracle.pool(open_candidate.shape, self.runs[run][0])
        return max(
            least
            for prices, least in zip(pool.prices, pool.least, strict=True)
            if tuple(prices.tolist()) == TIME_ALONE
        )


def _first_prices(problem: StageProblem) -> list[tuple[float, ...]]:
    """Price vectors of a candidate's chunks where all memory costs a share of the time."""
    pipeline, alive = problem.pipeline, problem.alive
    time = prices(pipeline)
    byte = FIRST_SHARE * problem.unit_ns / problem.limit_bytes
    vectors = []
    for chunk in range(pipeline.positions):
        vector = np.zeros(BLOCK_FIGURES)
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
) -> list[tuple[float, ...]]:
    """Prices of every chunk by the plan program; with the bound program, half by that, too."""
    if mixed.prices is None:
        return []
    every = list(mixed.prices)
    if bound is not None and bound.prices is not None:
        every += list((mixed.prices + bound.prices) / 2)
    return _on_grid(problem, every, grid)


def _on_grid(
    problem: StageProblem, vectors: Iterable[Floats], grid: float
) -> list[tuple[float, ...]]:
    """Price vectors that ask for something, snapped to the grid, each once, in order."""
    scale = problem.scale / problem.unit_ns
    on_grid = [
        tuple(snapped(with_floors(vector * scale) / scale, grid).tolist())
        for vector in vectors
        if vector.any()
    ]
    return sorted(set(on_grid))


def _spread(vectors: list[tuple[float, ...]], most: int) -> list[tuple[float, ...]]:
    """At most so many of the vectors, evenly spread from the first to the last."""
    if len(vectors) <= most:
        return vectors
    places = np.linspace(0, len(vectors) - 1, most).astype(int)
    return [vectors[place] for place in np.unique(places).tolist()]
