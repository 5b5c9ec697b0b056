"""Search log: the counts of every layer, and its times where a clock is handed in.

Counts are the same for the same input and stand in the plan's evidence. Times are not, and stay
beside it: the search itself reads no clock.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from millrace.planner.search.evaluation import Evaluator, Pruned, Refused, SolvedPlan
from millrace.planner.search.request import MemoryLimitError, SignatureError

# Layers are named in the order in which they are reported.
SHAPES, BLOCKS, STAGES, SIMULATION, PROOF = LAYERS = (
    *("shapes", "blocks", "stages", "simulation"),
    "proof",
)
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Plan that a search chose, with what is needed to ask it for the plan's neighbours."""

    evaluator: Evaluator
    chosen: SolvedPlan
    solved_plans: tuple[SolvedPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """One plan as the search counts with it, as the compiler lays it out, and as it is simulated.

    Attributes
    ----------
    cost_s : float
        Step time by the times of its blocks; by the tables where they were not timed.
    simulated_s : float or None
        None where it was not simulated.
    cost_bytes, laid_out_bytes : int
        Of the stage with the least room left: what was expected of its division before it was laid
        out, and what is laid out.
    refused : str
        Reason that it is no good; empty where it is good.
    """

    plan: str
    cost_s: float
    simulated_s: float | None
    cost_bytes: int
    laid_out_bytes: int
    refused: str


@dataclass(slots=True, kw_only=True)
class SearchLog:
    """Counts and times of one search; `clock` gives seconds.

    Time counts for the innermost layer that is open. The plan's evidence lists at most `top`
    alternatives.
    """

    clock: Callable[[], float] = lambda: 0.0
    top: int = 5
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LAYERS, 0.0))
    counts: dict[str, int] = field(default_factory=dict)
    answer: SearchResult | None = None
    compared: list[PlanComparison] = field(default_factory=list)  # every plan that was compiled
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Time what happens inside as a layer's."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    @contextmanager
    def dividing(self) -> Iterator[None]:
        """Count and time one division into stages."""
        self.count("divisions")
        with self.layer(STAGES):
            yield

    def count(self, name: str, number: int = 1) -> None:
        """Count something that was done."""
        self.counts[name] = self.counts.get(name, 0) + number

    def beside(self) -> "SearchLog":
        """Empty record of another search that belongs to the same question."""
        return SearchLog(clock=self.clock, top=self.top)

    def add_seconds(self, other: "SearchLog") -> None:
        """Count the time of another search as this one's."""
        for layer in LAYERS:
            self.seconds[layer] += other.seconds[layer]

    def take(self, other: "SearchLog") -> None:
        """Say of the question what another search came to."""
        self.answer, self.counts, self.compared = other.answer, other.counts, other.compared

    def timed(self, layers: Iterable[Document]) -> list[Document]:
        """Layers of a plan's evidence, each with its seconds."""
        return [{**layer, "seconds": self.seconds[layer["name"]]} for layer in layers]

    def _turn(self) -> None:
        now = self.clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def layers(
    record: SearchLog,
    chosen: SolvedPlan,
    pruned: list[Pruned],
    refused: list[Refused],
    bound_ns: float,
    held_by: str,
) -> tuple[Document, ...]:
    """Documents of what every layer did and proved, in numbers that repeat.

    Parameters
    ----------
    record : SearchLog
        Counts of the search; its `answer` has to be filled.
    chosen : SolvedPlan
        Division and solutions that the plan was made of.
    pruned : list of Pruned
        Candidates that were not solved to their end, in the last round.
    refused : list of Refused
        Candidates without a plan, in the last round.
    bound_ns : float
        The lowest over all candidates; nanoseconds of a step.
    held_by : str
        The candidate that has the lowest proven bound, as its `text` names it.
    """
    assert record.answer is not None, "filled before"
    did, evaluator = record.counts, record.answer.evaluator
    division = chosen.division
    cheapest = min(
        (solved.solution for solved in chosen.solved), key=lambda solution: solution.cost
    )
    unit = 1.0 if evaluator.request.uniform else evaluator.unit(chosen.candidate)
    return (
        {
            "name": SHAPES,
            **_proof(division.step_ns, bound_ns),
            **{name: did.get(name, 0) for name in ("candidates", "bounded", "solved")},
            **{name: did.get(name, 0) for name in ("squeezed", "refined", "rounds")},
            **({"interrupted": True} if did.get("interrupted") else {}),
            "pruned": count_reasons(candidate.reason for candidate in pruned),
            "refused": count_reasons(_refusal(candidate) for candidate in refused),
        },
        {
            "name": BLOCKS,
            **_proof(cheapest.cost * unit, cheapest.bound * unit),
            **evaluator.programs.sizes,
            "variants": len(chosen.solved),
        },
        {
            "name": STAGES,
            **_proof(division.step_ns, min(division.bound_ns, division.step_ns)),
            "divisions": did.get("divisions", 0),
        },
        {
            "name": SIMULATION,
            "simulated": did.get("simulated", 0),
            "refused": did.get("simulated and refused", 0),
        },
        {
            "name": PROOF,
            **_proof(division.step_ns, bound_ns),
            "block_programs": did.get("programs at prices", 0),
            "linear_programs": did.get("linear programs", 0),
            **({"false_bounds": did["false bounds"]} if did.get("false bounds") else {}),
            "held_by": held_by,
        },
    )


def count_reasons(occurrences: Iterable[str]) -> dict[str, int]:
    """Number of times that each reason occurs, the most frequent first."""
    counts: dict[str, int] = {}
    for reason in occurrences:
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _refusal(refused: Refused) -> str:
    if isinstance(refused.error, MemoryLimitError):
        return "exceeds the memory"
    legal = not isinstance(refused.error, SignatureError)
    return "no division into stages" if legal else "no legal signature"


def _proof(objective_ns: float, bound_ns: float) -> Document:
    gap = (objective_ns - bound_ns) / bound_ns if bound_ns > 0 else 0.0
    return {"objective_s": objective_ns / 1e9, "bound_s": bound_ns / 1e9, "gap": gap}
