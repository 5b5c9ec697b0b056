"""The outer search: every candidate shape bounded, solved where its bound is not enough, compared.

Candidates (stages, mesh, microbatch, schedule) are taken in the order of a cheap bound and pruned
when that bound is no better than the best plan so far. The best few are ranked anew by a simulator,
which is handed in as a function, and checked against the memory that the compiler lays out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from models.graph import Graph
from models.labels import parse
from models.zoo.catalogue import build_training
from planner.compile import compile_plan
from planner.errors import InfeasibleError
from planner.plan import Evidence, Plan
from planner.search.candidates import Candidate, candidates
from planner.search.evaluation import Evaluator, Found, unfit
from planner.search.pins import SEQUENCE
from planner.search.request import MemoryLimitError, SearchRequest
from planner.search.writing import write_plan

Figures = dict[str, Any]
Simulate = Callable[[Plan], Figures]
Progress = Callable[[str], None]

RANKED = 4  # plans that fit and are simulated before one is chosen
TRIED = 8  # plans that are compiled for it at most
SHOWN = 6  # alternatives in the evidence
ROUNDS = 3  # times the limit is tightened when the compiler needs more than was estimated


@dataclass(slots=True)
class Ranking:
    """What one round over the candidates found."""

    found: list[Found] = field(default_factory=list)
    refused: list[tuple[Candidate, InfeasibleError]] = field(default_factory=list)
    pruned: list[tuple[Candidate, float]] = field(default_factory=list)

    @property
    def bound_ns(self) -> float:
        """The lowest bound over every candidate that could be a plan."""
        return min(
            [one.bound_ns for one in self.found] + [bound for _, bound in self.pruned],
        )


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan, what the simulator (or the compiler alone) says of it, and why it is no good."""

    found: Found
    plan: Plan
    figures: Figures
    reason: str


def search(
    request: SearchRequest,
    simulate: Simulate | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the best plan, with the evidence for it.

    Parameters
    ----------
    request : SearchRequest
    simulate : callable, optional
        Predicts the figures of a plan (`step_time_s` and `memory_bytes_max` among them); the best
        few plans are ranked by it. Without it the planner's own cost decides.
    progress : callable, optional
        Told a line of text now and then.

    Returns
    -------
    Plan
        With `evidence`, and with `figures` where there is a simulator.

    Raises
    ------
    InfeasibleError
        No plan obeys the pins and fits the memory; names what binds, and by how much.
    """
    graph = build_training(request.model, request.training, request.global_batch)
    sequence = any(SEQUENCE in parse(op.labels).splittable for op in graph.ops)
    everything = candidates(
        request.pins, request.cluster, request.global_batch, len(graph.blocks), sequence
    )
    tell = progress or (lambda line: None)
    evaluator = Evaluator(request, graph)
    limit_bytes = request.limit_bytes
    tried: list[tuple[Candidate, InfeasibleError]] = []
    for _ in range(ROUNDS):
        ranking = _rank(request, evaluator, everything, limit_bytes, tell)
        if not ranking.found:
            break
        checked = _check(request, ranking.found, graph, simulate, tell)
        if fitting := [one for one in checked if not one.reason]:
            return _best(fitting, checked, ranking, len(everything), simulate is not None)
        sizes = [one.figures["memory_bytes_max"] for one in checked]
        for one, size in zip(checked, sizes, strict=True):
            tried.append((one.found.candidate, MemoryLimitError(size, request.limit_bytes)))
        # The compiler laid out more than was estimated: ask for less by as much.
        limit_bytes = limit_bytes * request.limit_bytes // min(sizes) * 98 // 100
    raise unfit(tried or ranking.refused)


def _rank(
    request: SearchRequest,
    evaluator: Evaluator,
    everything: tuple[Candidate, ...],
    limit_bytes: int,
    tell: Progress,
) -> Ranking:
    """Evaluate candidates by ascending bound until the bounds exceed the best plan."""
    ranking = Ranking()
    bounds: list[tuple[float, int]] = []
    for number, candidate in enumerate(everything):
        tell(f"bound {number + 1} of {len(everything)}: {candidate.text}")
        try:
            bounds.append((evaluator.lower_bound_ns(candidate), number))
        except InfeasibleError as error:
            ranking.refused.append((candidate, error))
    best_ns = float("inf")
    for place, (bound, number) in enumerate(sorted(bounds)):
        candidate = everything[number]
        if bound * (1 + request.max_gap) >= best_ns:
            ranking.pruned.append((candidate, bound))
            continue
        tell(f"solving {place + 1} of {len(bounds)}: {candidate.text}")
        try:
            found = evaluator.evaluate(candidate, limit_bytes)
        except InfeasibleError as error:
            ranking.refused.append((candidate, error))
            continue
        ranking.found.append(found)
        best_ns = min(best_ns, found.division.step_ns)
    ranking.found.sort(key=lambda one: one.division.step_ns)
    return ranking


def _check(
    request: SearchRequest,
    found: list[Found],
    graph: Graph,
    simulate: Simulate | None,
    tell: Progress,
) -> list[Checked]:
    """Simulate the best few; without a simulator compile them in turn until one fits."""
    checked: list[Checked] = []
    for one in found[:TRIED]:
        plan = write_plan(request, one, graph)
        tell(f"{'simulating' if simulate else 'compiling'}: {one.candidate.text}")
        figures = (simulate or _compiled)(plan)
        over = figures["memory_bytes_max"] - request.limit_bytes
        reason = f"needs {over} bytes more than the limit once compiled" if over > 0 else ""
        checked.append(Checked(one, plan, figures, reason))
        if sum(not one.reason for one in checked) == (RANKED if simulate else 1):
            break
    return checked


def _compiled(plan: Plan) -> Figures:
    """What the compiler alone says of a plan."""
    programs = compile_plan(plan).programs
    return {"memory_bytes_max": max(program.memory_bytes for program in programs)}


def _best(
    fitting: list[Checked],
    checked: list[Checked],
    ranking: Ranking,
    candidates: int,
    simulated: bool,
) -> Plan:
    """The fastest plan that fits, with what it was compared with."""
    best = min(fitting, key=_time_s)
    others: list[dict[str, Any]] = []
    for one in checked:
        if one is not best:
            slower = f"{_time_s(one) / _time_s(best) - 1:+.1%} step time"
            by = "simulated" if simulated else "by the planner's cost"
            others.append(_alternative(one.found, one.reason or f"{slower} {by}", one.figures))
    objective_ns = best.found.division.step_ns
    for found in ranking.found[len(checked) :]:
        slower = f"{found.division.step_ns / objective_ns - 1:+.1%} by the planner's cost"
        others.append(_alternative(found, slower, {}))
    for candidate, bound in sorted(ranking.pruned, key=lambda pair: pair[1]):
        others.append(
            {
                "plan": candidate.text,
                "bound_s": bound / 1e9,
                "reason": "its lower bound exceeds the best plan",
            }
        )
    for candidate, error in ranking.refused:
        others.append({"plan": candidate.text, "reason": str(error)})
    bound_ns = min(ranking.bound_ns, objective_ns)
    evidence = Evidence(
        objective_s=objective_ns / 1e9,
        bound_s=bound_ns / 1e9,
        gap=(objective_ns - bound_ns) / bound_ns,
        candidates=candidates,
        pruned=len(ranking.pruned),
        alternatives=tuple(others[:SHOWN]),
    )
    return replace(best.plan, evidence=evidence, figures=best.figures if simulated else {})


def _time_s(one: Checked) -> float:
    return float(one.figures.get("step_time_s", one.found.division.step_ns / 1e9))


def _alternative(found: Found, reason: str, figures: Figures) -> dict[str, Any]:
    document = {
        "plan": found.candidate.text,
        "objective_s": found.division.step_ns / 1e9,
        "bound_s": found.bound_ns / 1e9,
        "reason": reason,
    }
    if "step_time_s" in figures:
        document["step_time_s"] = figures["step_time_s"]
    return document
