"""The outer search: every candidate shape bounded, solved where its bound is not enough, compared.

Candidates (stages, mesh, microbatch, schedule) are taken in the order of a cheap bound and pruned
when that bound is well above the best plan so far. The best few are ranked anew by a simulator,
which is handed in as a function, and checked against the memory that the compiler lays out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from models.graph import Graph
from models.zoo.catalogue import build_training
from planner.errors import InfeasibleError, ProtocolError
from planner.memory import beside, plan_memory
from planner.plan import Evidence, Plan, plan_graph
from planner.search.candidates import Candidate
from planner.search.evaluation import (
    NEAR,
    NO_GAIN,
    Evaluator,
    Found,
    Limits,
    Outcome,
    Pruned,
    Refused,
    unfit,
)
from planner.search.report.record import BLOCKS, SHAPES, SIMULATION, Answer, Record, layers
from planner.search.report.remedies import check_storage, shapes, with_remedies
from planner.search.request import MemoryLimitError, SearchRequest
from planner.search.sites import usable_bytes
from planner.search.writing import disobeyed, write_plan

Figures = dict[str, Any]
Simulate = Callable[[Plan], Figures]
Progress = Callable[[str], None]
Tight = tuple[Candidate, float]  # with its bound
Waiting = tuple[float, int, Candidate]

RANKED = 4  # plans that fit and are simulated before one is chosen
TRIED = 8  # plans that are compiled for it at most
SHOWN = 6  # alternatives in the evidence
FIRST, MANY = 24, 64  # candidates solved together: few before there is a plan to prune by
SQUEEZED = 8  # likewise where memory is tight
REFINED = 4  # candidates solved further to close the gap, where some gap is allowed
FAR = 1.2  # likewise, before no larger microbatch is tried
HOPELESS = 2  # times the memory that every candidate needs at least, before none is refined
ROUNDS = 8  # times that limits are tightened where the compiler needs more than was estimated


@dataclass(slots=True)
class Ranking:
    """What one round over the candidates found."""

    found: list[Found] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    pruned: list[Pruned] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """File an outcome under what it is."""
        if isinstance(outcome, Found):
            self.found.append(outcome)
        elif isinstance(outcome, Pruned):
            self.pruned.append(outcome)
        else:
            self.refused.append(outcome)

    @property
    def bound_ns(self) -> float:
        """The lowest bound over every candidate that could be a plan."""
        return min(one.bound_ns for one in self.everything)

    @property
    def everything(self) -> list[Outcome]:
        """All outcomes."""
        return [*self.found, *self.pruned, *self.refused]

    @property
    def best_ns(self) -> float:
        """Step time of the best plan so far."""
        return min((one.division.step_ns for one in self.found), default=float("inf"))


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
    record: Record | None = None,
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
    record : Record, optional
        Filled with what every layer did, and how long it took by the record's clock.

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
    record = record or Record()
    try:
        return _search(request, graph, simulate, progress or (lambda line: None), record)
    except InfeasibleError as error:
        raise with_remedies(error, request, graph) from None


def _search(
    request: SearchRequest,
    graph: Graph,
    simulate: Simulate | None,
    tell: Progress,
    record: Record,
) -> Plan:
    everything = shapes(request, graph)
    check_storage(request, graph)
    record.count("candidates", len(everything))
    evaluator = Evaluator(request, graph, dividing=record.dividing)
    limits: dict[Candidate, Limits] = {}
    tried: list[Refused] = []
    floors: dict[Candidate, float] = {}  # bounds before limits were tightened
    for _ in range(ROUNDS):
        record.count("rounds")
        ranking = _rank(request, evaluator, everything, limits, tell, record)
        if not ranking.found:
            break
        for outcome in ranking.everything:
            floors.setdefault(outcome.candidate, outcome.bound_ns)
        with record.layer(SIMULATION):
            checked = _check(request, ranking.found, graph, simulate, tell)
        record.count("simulated", len(checked))
        record.count("simulated and refused", sum(bool(one.reason) for one in checked))
        if fitting := [one for one in checked if not one.reason]:
            best = min(fitting, key=_time_s)
            record.answer = Answer(
                evaluator=evaluator, chosen=best.found, found=tuple(ranking.found), limits=limits
            )
            bound_ns = min(floors[candidate] for candidate in everything)
            return _best(best, checked, ranking, bound_ns, record, simulate is not None)
        for one in checked:
            candidate = one.found.candidate
            if not one.figures:
                everything = tuple(other for other in everything if other != candidate)
                tried.append(Refused(candidate, InfeasibleError(one.reason)))
                continue
            # The compiler laid out more than was estimated: ask for less by as much.
            estimate = one.found.division.memory_bytes
            size, most = _fullest(request, candidate, one.figures)
            usable = usable_bytes(request, candidate)
            limits[candidate] = tuple(estimate * limit // size * 99 // 100 for limit in usable)
            tried.append(Refused(candidate, MemoryLimitError(size, most)))
    raise unfit(tried or ranking.refused)


def _rank(
    request: SearchRequest,
    evaluator: Evaluator,
    everything: tuple[Candidate, ...],
    limits: dict[Candidate, Limits],
    tell: Progress,
    record: Record,
) -> Ranking:
    """Evaluate candidates by ascending bound until the bounds exceed the best plan."""
    ranking = Ranking()
    tell(f"bounding {len(everything)} candidates")
    with record.layer(SHAPES):
        waiting = _bounded(evaluator, everything, ranking)
    record.count("bounded", len(everything))
    tight: list[Tight] = []

    def cutoff() -> float:
        return ranking.best_ns * NEAR / (1 + request.max_gap)

    def limit(candidate: Candidate) -> Limits:
        return limits.get(candidate) or usable_bytes(request, candidate)

    at, count = 0, FIRST
    while at < len(waiting) or tight:
        group = waiting[at : at + count]
        at, count = at + len(group), MANY
        open_ones = []
        for bound, _, candidate in group:
            if bound >= cutoff():
                ranking.pruned.append(Pruned(candidate, bound, NO_GAIN))
            else:
                open_ones.append(candidate)
        if open_ones:
            tell(f"solving {at} of {len(waiting)}: {open_ones[0].text}")
            record.count("solved", len(open_ones))
            with record.layer(BLOCKS):
                outcomes = evaluator.evaluate_many(
                    open_ones, [limit(one) for one in open_ones], cutoff()
                )
            for outcome in outcomes:
                if isinstance(outcome, tuple):
                    tight.append(outcome)
                else:
                    ranking.add(outcome)
        # Without a plan yet, what needs least memory is asked first.
        tight.sort(key=lambda one: (0 if ranking.found else one[0].batch, one[1]))
        # Few at a time while a good plan would prune the rest; all that is left at the end.
        now, tight = tight[:SQUEEZED], tight[SQUEEZED:]
        for candidate, bound in [one for one in now if one[1] >= cutoff()]:
            ranking.pruned.append(Pruned(candidate, bound, NO_GAIN))
        now = [one for one in now if one[1] < cutoff()]
        if now:
            tell(f"making room in {len(now)} candidates: {now[0][0].text}")
            record.count("squeezed", len(now))
            with record.layer(BLOCKS):
                squeezed = evaluator.squeeze_many(
                    now, [limit(candidate) for candidate, _ in now], cutoff()
                )
            for outcome in squeezed:
                ranking.add(outcome)
            if not ranking.found:
                waiting[at:], tight = _without_larger(waiting[at:], tight, ranking)
    with record.layer(BLOCKS):
        record.count("refined", _refine(request, evaluator, ranking, limit, tell))
    ranking.found.sort(key=lambda one: one.division.step_ns)
    return ranking


def _bounded(
    evaluator: Evaluator, everything: tuple[Candidate, ...], ranking: Ranking
) -> list[Waiting]:
    """Candidates by ascending bound; those without a legal signature are refused."""
    waiting: list[Waiting] = []
    for number, bound in enumerate(evaluator.lower_bounds_ns(everything)):
        if isinstance(bound, InfeasibleError):
            ranking.refused.append(Refused(everything[number], bound))
        else:
            waiting.append((bound, number, everything[number]))
    return sorted(waiting, key=lambda one: one[:2])


def _without_larger(
    waiting: list[Waiting], tight: list[Tight], ranking: Ranking
) -> tuple[list[Waiting], list[Tight]]:
    """Refuse candidates with larger microbatches than equal ones that are far from fitting."""
    short: dict[object, Refused] = {}
    for one in ranking.refused:
        error = one.error
        if isinstance(error, MemoryLimitError) and error.needed_bytes > FAR * error.limit_bytes:
            key = _but_batch(one.candidate)
            if key not in short or one.candidate.batch < short[key].candidate.batch:
                short[key] = one

    def cannot(candidate: Candidate, bound: float) -> bool:
        smaller = short.get(_but_batch(candidate))
        if smaller is None or smaller.candidate.batch > candidate.batch:
            return False
        ranking.refused.append(Refused(candidate, smaller.error, bound))
        return True

    return (
        [one for one in waiting if not cannot(one[2], one[0])],
        [one for one in tight if not cannot(*one)],
    )


def _but_batch(candidate: Candidate) -> tuple[object, ...]:
    """What makes candidates equal but for their microbatches."""
    pipeline = candidate.pipeline
    return candidate.axes, pipeline.schedule, pipeline.stages, pipeline.interleave


def _refine(
    request: SearchRequest,
    evaluator: Evaluator,
    ranking: Ranking,
    limit: Callable[[Candidate], Limits],
    tell: Progress,
) -> int:
    """Solve the candidates with the lowest bounds better until the gap is what was asked for.

    Returns how many that took.
    """
    done: set[Candidate] = set()
    if request.max_gap and not ranking.found and _hopeless(ranking):
        return 0
    for _ in range(REFINED if request.max_gap else len(ranking.everything)):
        # Where no gap is allowed, others may still be better than what stays behind its bound.
        left = [one for one in ranking.everything if request.max_gap or one.candidate not in done]
        lowest = min(left, key=lambda one: one.bound_ns, default=None)
        if lowest is None or ranking.best_ns <= lowest.bound_ns * (1 + request.max_gap):
            break
        if lowest.candidate in done:
            break
        done.add(lowest.candidate)
        tell(f"refining: {lowest.candidate.text}")
        better = evaluator.refine(lowest, limit(lowest.candidate), ranking.best_ns)
        others = [one for one in ranking.everything if one is not lowest]
        ranking.found, ranking.pruned, ranking.refused = [], [], []
        for one in (*others, better):
            ranking.add(one)
    return len(done)


def _hopeless(ranking: Ranking) -> bool:
    """Whether memory is so short that solving better cannot make room."""
    short = [one.error for one in ranking.refused if isinstance(one.error, MemoryLimitError)]
    return bool(short) and all(one.needed_bytes > HOPELESS * one.limit_bytes for one in short)


def _check(
    request: SearchRequest,
    found: list[Found],
    graph: Graph,
    simulate: Simulate | None,
    tell: Progress,
) -> list[Checked]:
    """Simulate the best few; without a simulator lay them out in turn until one fits."""
    checked: list[Checked] = []
    for one in (_varied(found) if simulate else found)[:TRIED]:
        plan = write_plan(request, one, graph)
        tell(f"{'simulating' if simulate else 'laying out'}: {one.candidate.text}")
        if differs := disobeyed(plan, graph, request.pins):
            checked.append(Checked(one, plan, {}, differs))
            continue
        try:
            figures = (simulate or _laid_out)(plan)
        except ProtocolError as error:
            checked.append(Checked(one, plan, {}, f"cannot run: {str(error)[:200]}"))
            continue
        size, most = _fullest(request, one.candidate, figures)
        over = size - most
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


def _laid_out(plan: Plan) -> Figures:
    """What the memory formula alone says of a plan."""
    arenas = [one.arena_bytes for one in plan_memory(plan, plan_graph(plan))]
    held = [{"arena": size, **beside(size, plan.cluster)} for size in arenas]
    most = max(sum(kinds.values()) for kinds in held)
    return {"memory_bytes_max": most, "memory_by_kind": held}


def _fullest(request: SearchRequest, candidate: Candidate, figures: Figures) -> tuple[int, int]:
    """Bytes laid out on the stage with the least room left, and what it may lay out."""
    stages = candidate.pipeline.stages
    held = [sum(kinds.values()) for kinds in figures.get("memory_by_kind", ())]
    sizes = [request.laid_out_bytes(size) for size in held or [figures["memory_bytes_max"]]]
    limits = usable_bytes(request, candidate)
    pairs = zip(
        sizes * (stages if len(sizes) == 1 else 1),
        (limits[kind] for kind in candidate.pipeline.kinds),
        strict=True,
    )
    return max(pairs, key=lambda pair: pair[0] - pair[1])


def _best(
    best: Checked,
    checked: list[Checked],
    ranking: Ranking,
    bound_ns: float,
    record: Record,
    simulated: bool,
) -> Plan:
    """The fastest plan that fits, with what it was compared with."""
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
    for refused in ranking.refused:
        others.append({"plan": refused.candidate.text, "reason": str(refused.error)})
    bound_ns = min(bound_ns, objective_ns)
    evidence = Evidence(
        objective_s=objective_ns / 1e9,
        bound_s=bound_ns / 1e9,
        gap=(objective_ns - bound_ns) / bound_ns,
        candidates=record.counts["candidates"],
        pruned=len(ranking.pruned),
        alternatives=tuple(others[:SHOWN]),
        layers=layers(record, best.found, ranking.pruned, ranking.refused, bound_ns),
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
