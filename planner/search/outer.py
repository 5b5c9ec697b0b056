"""The outer search: every candidate shape bounded, solved where its bound is not enough, compared.

Candidates (stages, mesh, microbatch, schedule) are taken in the order of a cheap bound and pruned
when that bound is well above the best plan so far. The best few are ranked anew by a simulator,
which is handed in as a function, and checked against the memory that the compiler lays out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from models.counting import splits
from models.graph import Graph
from models.zoo.catalogue import build_training
from planner.compile import compile_plan
from planner.errors import InfeasibleError, ProtocolError
from planner.plan import Evidence, Plan
from planner.search.candidates import Candidate, candidates
from planner.search.evaluation import Evaluator, Found, Pruned, unfit
from planner.search.request import MemoryLimitError, SearchRequest
from planner.search.writing import disobeyed, write_plan

Figures = dict[str, Any]
Simulate = Callable[[Plan], Figures]
Progress = Callable[[str], None]

NEAR = 1.05  # plans up to so much slower are solved too, for the simulator to rank
RANKED = 4  # plans that fit and are simulated before one is chosen
TRIED = 8  # plans that are compiled for it at most
SHOWN = 6  # alternatives in the evidence
ROUNDS = 8  # times that limits are tightened where the compiler needs more than was estimated


@dataclass(slots=True)
class Ranking:
    """What one round over the candidates found."""

    found: list[Found] = field(default_factory=list)
    refused: list[tuple[Candidate, InfeasibleError]] = field(default_factory=list)
    pruned: list[Pruned] = field(default_factory=list)

    @property
    def bound_ns(self) -> float:
        """The lowest bound over every candidate that could be a plan."""
        return min(
            [one.bound_ns for one in self.found] + [one.bound_ns for one in self.pruned],
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
    can = splits(graph)
    everything = candidates(
        request.pins,
        request.cluster,
        request.global_batch,
        len(graph.blocks),
        sequence=bool(can["sequence"] or can["sequence_parallel"]),
        experts=int(can["experts"]),
    )
    count = len(everything)
    tell = progress or (lambda line: None)
    evaluator = Evaluator(request, graph)
    limits: dict[Candidate, int] = {}
    tried: list[tuple[Candidate, InfeasibleError]] = []
    for _ in range(ROUNDS):
        ranking = _rank(request, evaluator, everything, limits, tell)
        if not ranking.found:
            break
        checked = _check(request, ranking.found, graph, simulate, tell)
        if fitting := [one for one in checked if not one.reason]:
            return _best(fitting, checked, ranking, count, simulate is not None)
        for one in checked:
            candidate, size = one.found.candidate, one.figures.get("memory_bytes_max")
            if size is None:
                everything = tuple(other for other in everything if other != candidate)
                tried.append((candidate, InfeasibleError(one.reason)))
                continue
            # The compiler laid out more than was estimated: ask for less by as much.
            estimate = one.found.division.memory_bytes
            limits[candidate] = estimate * request.limit_bytes // size * 99 // 100
            tried.append((candidate, MemoryLimitError(size, request.limit_bytes)))
    raise unfit(tried or ranking.refused)


def _rank(
    request: SearchRequest,
    evaluator: Evaluator,
    everything: tuple[Candidate, ...],
    limits: dict[Candidate, int],
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
        cutoff = best_ns * NEAR / (1 + request.max_gap)
        if bound >= cutoff:
            reason = "its lower bound leaves nothing to gain"
            ranking.pruned.append(Pruned(candidate, bound, reason))
            continue
        tell(f"solving {place + 1} of {len(bounds)}: {candidate.text}")
        try:
            limit = limits.get(candidate, request.limit_bytes)
            found = evaluator.evaluate(candidate, limit, cutoff)
        except InfeasibleError as error:
            ranking.refused.append((candidate, error))
            continue
        if isinstance(found, Pruned):
            ranking.pruned.append(found)
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
    for one in (_varied(found) if simulate else found)[:TRIED]:
        plan = write_plan(request, one, graph)
        tell(f"{'simulating' if simulate else 'compiling'}: {one.candidate.text}")
        if differs := disobeyed(plan, graph, request.pins):
            checked.append(Checked(one, plan, {}, differs))
            continue
        try:
            figures = (simulate or _compiled)(plan)
        except ProtocolError as error:
            checked.append(Checked(one, plan, {}, f"cannot run: {str(error)[:200]}"))
            continue
        over = figures["memory_bytes_max"] - request.limit_bytes
        reason = f"needs {over} bytes more than the limit once compiled" if over > 0 else ""
        checked.append(Checked(one, plan, figures, reason))
        if sum(not one.reason for one in checked) == (RANKED if simulate else 1):
            break
    return checked


def _varied(found: list[Found]) -> list[Found]:
    """The best of every schedule first: there a simulator sees what the planner's cost does not."""
    first: dict[str, Found] = {}
    for one in found:
        first.setdefault(one.candidate.pipeline.schedule, one)
    return [*first.values(), *(one for one in found if one not in first.values())]


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
    simulated_ones = [one.found for one in checked]
    for found in ranking.found:
        if found in simulated_ones:
            continue
        slower = f"{found.division.step_ns / objective_ns - 1:+.1%} by the planner's cost"
        others.append(_alternative(found, slower, {}))
    for pruned in sorted(ranking.pruned, key=lambda one: one.bound_ns):
        bound_s = pruned.bound_ns / 1e9
        others.append({"plan": pruned.candidate.text, "bound_s": bound_s, "reason": pruned.reason})
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
