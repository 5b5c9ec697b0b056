"""Loop: bounds of many candidates raised together, by asking blocks at prices that matter to them.

Candidates ask at prices that all memory together makes worth a share of the time, chunk by chunk as
so much is alive there. Then, round by round, the multipliers of the relaxed plan program, mixed
with those of the bound program, are the prices of those that are open: cuts where the program is
tight already raise nothing (Kelley, "The cutting-plane method", 1960; Dantzig and Wolfe,
"Decomposition principle for linear programs", 1960). A candidate is closed when its bound reaches
the cutoff, or both programs cost the same, or no price is new.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from millrace.models.graph import Graph
from millrace.planner.search.asking import Asker, prices
from millrace.planner.search.blocks.tables import (
    DEFERRABLE,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.block_oracle import BlockOracle, Pool, PriceAsk
from millrace.planner.search.decomposition.bound_program import (
    Relaxation,
    bound_program,
    relaxation,
)
from millrace.planner.search.decomposition.pipeline_rows import StageProblem
from millrace.planner.search.decomposition.plan_program import plan_program
from millrace.planner.search.decomposition.prices import Floats, snapped, with_floors
from millrace.planner.search.decomposition.template_tables import BETWEEN, BLOCK_FIGURES
from millrace.planner.search.programs import Shape
from millrace.planner.search.sites import Sends, usable_bytes

# What all memory together is worth of the time, at first; any from 0.1 to 1 leaves about as many
# candidates open after the second round, whose prices follow from the first.
FIRST_SHARE = 0.3
SPREAD = 6  # price vectors of one candidate and round, spread over its chunks
SAME = 0.002  # of a step, within which the plan program's relaxation has reached the bound
ROUNDS = 4  # of prices; later ones raise bounds by less than a thousandth


@dataclass(slots=True)
class Open:
    """A candidate whose bound may still rise.

    Attributes
    ----------
    bound_ns : float
        Of the step, proven so far.
    mixed_ns : float
        What its columns come to, mixed in any shares.
    """

    candidate: Candidate
    shape: Shape
    problem: StageProblem
    bound_ns: float
    mixed_ns: float = float("inf")
    asks: list[tuple[float, ...]] = field(default_factory=list)


class Loop:
    """The candidates of one request, bounded by cuts.

    Parameters
    ----------
    oracle : BlockOracle
    graph : Graph
    asker : Asker
    sends : Sends
    """

    def __init__(self, oracle: BlockOracle, graph: Graph, asker: Asker, sends: Sends) -> None:
        self.oracle = oracle
        self.asker = asker
        self.sends = sends
        self.runs = tuple(
            (template, len(list(blocks)))
            for template, blocks in groupby(graph.blocks, graph.templates.__getitem__)
        )
        self.templates = tuple(dict.fromkeys(template for template, _ in self.runs))

    def raised(
        self,
        candidates: Sequence[tuple[Candidate, float]],
        cutoff_ns: float,
        tell: Callable[[str], None] = lambda line: None,
    ) -> list[Open]:
        """Bounds of candidates on one kind of device, raised until they reach the cutoff.

        Parameters
        ----------
        candidates : sequence
            With their bounds so far.
        cutoff_ns : float
            Candidates whose bounds reach it gain nothing.
        tell : callable, optional
            Told a line of text now and then.
        """
        found = self._opened(candidates)
        left = found
        for one in left:
            one.asks = list(_first_prices(one.problem))
        for number in range(1 + ROUNDS):
            tell(f"proving {len(left)} candidates")
            asks = [
                PriceAsk(one.shape, template, vector)
                for one in left
                for vector in one.asks
                for template in self.templates
            ]
            if not self.oracle.ask(asks):
                break
            left = [one for one in left if self._raise(one, cutoff_ns, number)]
        return found

    def _opened(self, candidates: Sequence[tuple[Candidate, float]]) -> list[Open]:
        """Candidates with their stage problems."""
        shapes = [self.asker.shape(candidate) for candidate, _ in candidates]
        time = [[1.0, 0.0, 0.0, 0.0, 1.0]] * len(shapes)
        costs = self.oracle.programs.cheapest(shapes, self.oracle.modes[0], time).tolist()
        return [
            Open(
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

    def pools(self, one: Open) -> dict[str, Pool]:
        """What is known of a candidate's blocks, by template."""
        return {template: self.oracle.pool(one.shape, template) for template in self.templates}

    def _raise(self, one: Open, cutoff_ns: float, number: int) -> bool:
        """Raise the bound by the cuts that there are; whether there is more to ask, noted."""
        pools = self.pools(one)
        bound = relaxation(bound_program(one.problem, pools))
        one.bound_ns = max(one.bound_ns, bound.step_ns)
        if one.bound_ns >= cutoff_ns or any(not pool.columns for pool in pools.values()):
            return False
        mixed = relaxation(plan_program(one.problem, pools).rows)
        one.mixed_ns = min(one.mixed_ns, mixed.step_ns)
        if mixed.prices is None or one.bound_ns >= one.mixed_ns * (1 - SAME):
            return False
        known = {tuple(vector.tolist()) for vector in pools[self.templates[0]].prices}
        wanted = list(_vectors(one.problem, bound, mixed, mix=bool(number % 2)))
        one.asks = [vector for vector in _spread(wanted, SPREAD) if vector not in known]
        return bool(one.asks)


def _first_prices(problem: StageProblem) -> Iterator[tuple[float, ...]]:
    """Price vectors of a candidate's chunks where all memory costs a share of the time."""
    pipeline, alive = problem.pipeline, problem.alive
    time = prices(pipeline)
    byte = FIRST_SHARE * problem.unit_ns / problem.limit_bytes
    found = []
    for chunk in range(pipeline.positions):
        vector = np.zeros(BLOCK_FIGURES)
        vector[MICROBATCH], vector[STEP] = 1.0, time.step / time.microbatch
        vector[DEFERRABLE] = 1.0 if time.deferrable is None else time.deferrable / time.microbatch
        vector[PERSISTENT] = byte
        vector[[INFLIGHT, BETWEEN]] = byte * alive[chunk]
        found.append(vector)
    yield from _spread(_on_grid(problem, found), SPREAD)


def _vectors(
    problem: StageProblem, bound: Relaxation, mixed: Relaxation, *, mix: bool
) -> Iterator[tuple[float, ...]]:
    """Prices of every chunk by the plan program, and, with `mix`, half by the bound program."""
    assert mixed.prices is not None, "asked only where there are"
    every = list(mixed.prices)
    if mix and bound.prices is not None:
        every += list((mixed.prices + bound.prices) / 2)
    yield from _on_grid(problem, every)


def _on_grid(problem: StageProblem, vectors: Iterable[Floats]) -> list[tuple[float, ...]]:
    """Each of these price vectors that asks for something, on the grid, once, in order."""
    scale = problem.scale / problem.unit_ns
    found = [
        tuple(snapped(with_floors(vector * scale) / scale).tolist())
        for vector in vectors
        if vector.any()
    ]
    return sorted(set(found))


def _spread(vectors: list[tuple[float, ...]], most: int) -> list[tuple[float, ...]]:
    """So many of these at most, from the first to the last."""
    if len(vectors) <= most:
        return vectors
    places = np.linspace(0, len(vectors) - 1, most).astype(int)
    return [vectors[at] for at in np.unique(places).tolist()]
