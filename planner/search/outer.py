"""The outer search: every candidate shape bounded, solved where its bound is not enough, compared.

Candidates (stages, mesh, microbatch, schedule) are ranked by the planner's own cost (`ranking.py`).
The best few are ranked anew by a simulator, which is handed in as a function, and checked against
the memory that the compiler lays out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.models.zoo.catalogue import build_training
from millrace.planner.errors import InfeasibleError, ProtocolError
from millrace.planner.memory import plan_memory
from millrace.planner.plan import ON_DEVICES, Evidence, Plan, plan_graph
from millrace.planner.search.blocks.beside import beside
from millrace.planner.search.candidates import Candidate, PipelineShape, shape_of
from millrace.planner.search.evaluation import Evaluator, Found, Limits, Refused
from millrace.planner.search.ranking import Ranker, Ranking
from millrace.planner.search.report.offload import host_shortage, last_resort, resorted
from millrace.planner.search.report.record import SIMULATION, Answer, Compared, Record, layers
from millrace.planner.search.report.remedies import check_storage, unfit, with_remedies
from millrace.planner.search.request import HostMemoryError, MemoryLimitError, SearchRequest
from millrace.planner.search.sites import candidates_of, usable_bytes
from millrace.planner.search.writing import disobeyed, write_plan

Figures = dict[str, Any]
Fits = Callable[[Figures], bool]
Simulate = Callable[[Plan, Fits], Figures]
Progress = Callable[[str], None]

RANKED = 4  # plans that fit and are simulated before one is chosen
CLOSE = 1.03  # of the best plan's cost: the simulator seldom moves a plan by more beside another
TRIED = 8  # plans that are compiled for it at most
SHOWN = 6  # alternatives in the evidence
ROUNDS = 8  # times that limits are tightened where the compiler needs more than was estimated


@dataclass(frozen=True, slots=True)
class Pure:
    """A simulator that changes nothing: it may run in a process of its own, beside another plan."""

    figures: Simulate

    def __call__(self, plan: Plan, fits: Fits) -> Figures:
        """The figures of a plan."""
        return self.figures(plan, fits)


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan, what the simulator (or the compiler alone) says of it, and why it is no good."""

    found: Found
    plan: Plan
    figures: Figures
    reason: str
    short: HostMemoryError | None = None


def search(
    request: SearchRequest,
    simulate: Simulate | None = None,
    progress: Progress | None = None,
    record: Record | None = None,
    *,
    remedies: bool = True,
) -> Plan:
    """Return the best plan, with the evidence for it.

    Parameters
    ----------
    request : SearchRequest
    simulate : callable, optional
        Predicts the figures of a plan (`step_time_s` and `memory_bytes_max` among them); the best
        few plans are ranked by it. Its second argument says whether figures of memory are within
        the limit: where they are not, they are all that is asked for. Without a simulator the
        planner's own cost decides. One that is `Pure` looks at two plans at once.
    progress : callable, optional
        Told a line of text now and then.
    record : Record, optional
        Filled with what every layer did, and how long it took by the record's clock.
    remedies : bool
        Where there is no plan, put optimizer state on the host if no pin forbids it; where there is
        none even so, look for the nearest change that makes one.

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
    tell = progress or (lambda line: None)
    try:
        return _search(request, graph, simulate, tell, record)
    except InfeasibleError as error:
        if not remedies:
            raise
        failure = error
    if again := last_resort(request, graph, failure):
        tell("nothing fits: once more with optimizer state in host memory")
        try:
            return resorted(_search(again, graph, simulate, tell, record), failure)
        except InfeasibleError as error:
            request, failure = again, error
    raise with_remedies(failure, request, graph) from None


def _search(
    request: SearchRequest,
    graph: Graph,
    simulate: Simulate | None,
    tell: Progress,
    record: Record,
) -> Plan:
    everything = candidates_of(request, graph)
    check_storage(request, graph)
    record.count("candidates", len(everything))
    evaluator = Evaluator(request, graph, dividing=record.dividing)
    limits: dict[Candidate, Limits] = {}
    tried: list[Refused] = []
    floors: dict[Candidate, float] = {}  # bounds before limits were tightened
    barred: set[Candidate] = set()
    wide: set[Candidate] = set()

    def widened(best: list[PipelineShape]) -> list[Candidate]:
        found = candidates_of(request, graph, best)
        record.count("candidates", len(set(found) - wide))
        wide.update(found)
        return [one for one in found if one not in barred]

    for _ in range(ROUNDS):
        record.count("rounds")
        ranking = Ranker(request, evaluator, limits, tell, record).rank(everything, widened)
        if not ranking.found:
            break
        for outcome in ranking.everything:
            floors.setdefault(outcome.candidate, outcome.bound_ns)
        with record.layer(SIMULATION):
            checked = _check(evaluator, ranking.found, simulate, tell)
        if late := _later_than_thought(checked):
            # Others that seemed slower may be faster: all below what was simulated are looked at.
            evaluator.wanted_ns = late
            ranking = Ranker(request, evaluator, limits, tell, record).rank(everything, widened)
            for outcome in ranking.everything:  # other meshes may have been tried
                floors.setdefault(outcome.candidate, outcome.bound_ns)
            with record.layer(SIMULATION):
                checked += _others(evaluator, ranking.found, checked, simulate, tell)
        record.compared += _compared(request, checked)
        record.count("simulated", len(checked))
        record.count("simulated and refused", sum(bool(one.reason) for one in checked))
        if fitting := [one for one in checked if not one.reason]:
            best = min(fitting, key=_time_s)
            record.answer = Answer(
                evaluator=evaluator, chosen=best.found, found=tuple(ranking.found), limits=limits
            )
            bound_ns = min(floor for one, floor in floors.items() if one not in barred)
            return _best(best, checked, ranking, bound_ns, record, simulate is not None)
        for one in checked:
            candidate = one.found.candidate
            if not one.figures:
                barred.add(candidate)
                everything = tuple(other for other in everything if other not in barred)
                tried.append(Refused(candidate, one.short or InfeasibleError(one.reason)))
                continue
            size, most = _fullest(request, candidate, one.figures)
            limits[candidate] = _tightened(request, one.found, one.figures)
            tried.append(Refused(candidate, MemoryLimitError(size, most), floors[candidate]))
    bound_ns = min(one.bound_ns for one in (*tried, *ranking.refused))
    raise unfit(tried or ranking.refused, request.offload, bound_ns)


def _check(
    evaluator: Evaluator,
    found: list[Found],
    simulate: Simulate | None,
    tell: Progress,
) -> list[Checked]:
    """Simulate the best few; without a simulator lay them out in turn until one fits.

    A plan that is laid out larger than was estimated is divided anew, once, within as much less.
    """
    request = evaluator.request
    checked: list[Checked] = []
    known: dict[Found, Checked] = {}
    waiting = list(found)
    tightened: set[Candidate] = set()
    while waiting and len(checked) < TRIED:
        waiting.sort(key=lambda each: each.division.step_ns)
        fitting = sum(not each.reason for each in checked)
        least = min((each.found.division.step_ns for each in checked if not each.reason), default=0)
        if fitting and waiting[0].division.step_ns > CLOSE * least:
            break
        if waiting[0] not in known:
            due = [one for one in waiting if one not in known]
            # What is likely to be next is looked at too, if it is wanted where this one fits.
            ahead = isinstance(simulate, Pure) and fitting + 1 < RANKED and len(checked) + 1 < TRIED
            known.update(_looked_at(evaluator, due[: 1 + ahead], simulate, tell))
        one = waiting.pop(0)
        checked.append(known[one])
        figures = checked[-1].figures
        over = bool(figures) and _over(request, one.candidate, figures) > 0
        if over and one.candidate not in tightened:
            tightened.add(one.candidate)
            limits = _tightened(request, one, figures)
            again = evaluator.squeeze_many([(one.candidate, one.bound_ns)], [limits], float("inf"))
            better = [other for other in again if isinstance(other, Found)]
            waiting += evaluator.polish(better, [limits] * len(better))
        if sum(not each.reason for each in checked) == (RANKED if simulate else 1):
            break
    return checked


def _later_than_thought(checked: list[Checked]) -> float:
    """The least simulated step time where it is far above that plan's cost, else 0.

    The cost leaves out what holds computation back beside the protocol: a host late with launches.
    """
    fitting = [one for one in checked if not one.reason and "step_time_s" in one.figures]
    best = min(fitting, key=_time_s, default=None)
    if best is None or _time_s(best) * 1e9 <= CLOSE * best.found.division.step_ns:
        return 0.0
    return _time_s(best) * 1e9


def _others(
    evaluator: Evaluator,
    found: list[Found],
    checked: list[Checked],
    simulate: Simulate | None,
    tell: Progress,
) -> list[Checked]:
    """Simulate the best plan of every other pipeline while its cost is below the least time."""
    least = _later_than_thought(checked)
    seen = {shape_of(one.found.candidate.pipeline) for one in checked}
    more: list[Checked] = []
    for one in found:
        shape = shape_of(one.candidate.pipeline)
        if one.division.step_ns >= least or len(more) == TRIED:
            break
        if shape not in seen:
            seen.add(shape)
            more += _looked_at(evaluator, [one], simulate, tell).values()
            times = (_time_s(each) * 1e9 for each in more if not each.reason)
            least = min([least, *times])
    return more


def _looked_at(
    evaluator: Evaluator, found: list[Found], simulate: Simulate | None, tell: Progress
) -> dict[Found, Checked]:
    """Write one plan or two and simulate them, or say why they are no good."""
    request, graph = evaluator.request, evaluator.graph

    def figured(one: Found, plan: Plan) -> tuple[Figures, str]:
        def fits(held: Figures) -> bool:
            return _over(request, one.candidate, held) <= 0

        try:
            figures = simulate(plan, fits) if simulate else _laid_out(plan)
        except ProtocolError as error:
            return {}, f"cannot run: {str(error)[:200]}"
        more = _over(request, one.candidate, figures)
        return figures, f"needs {more} bytes more than the limit once compiled" if more > 0 else ""

    looked: dict[Found, Checked] = {}
    both: tuple[tuple[Figures, str], ...]
    plans: list[tuple[Found, Plan]] = []
    for one in found:
        plan = write_plan(evaluator, one)
        tell(f"{'simulating' if simulate else 'laying out'}: {one.candidate.text}")
        short = host_shortage(plan, plan_graph(plan)) if plan.offload != ON_DEVICES else None
        if differs := disobeyed(plan, graph, request.pins) or str(short or ""):
            looked[one] = Checked(one, plan, {}, differs, short)
        else:
            plans.append((one, plan))
    if len(plans) == 2:
        both = beside(lambda: figured(*plans[0]), lambda: figured(*plans[1]))
    else:
        both = tuple(figured(*one) for one in plans)
    for (one, plan), (figures, reason) in zip(plans, both, strict=True):
        looked[one] = Checked(one, plan, figures, reason)
    return looked


def _compared(request: SearchRequest, checked: list[Checked]) -> Iterator[Compared]:
    """Figures of every compiled plan by the cost, beside those that were laid out and simulated."""
    for one in checked:
        if one.figures:
            yield Compared(
                plan=one.found.candidate.text,
                cost_s=one.found.division.step_ns / 1e9,
                simulated_s=one.figures.get("step_time_s"),
                cost_bytes=one.found.division.memory_bytes,
                laid_out_bytes=_fullest(request, one.found.candidate, one.figures)[0],
                refused=one.reason,
            )


def _tightened(request: SearchRequest, one: Found, figures: Figures) -> Limits:
    """The bytes to ask for where more was laid out than was estimated: less by as much."""
    size, _ = _fullest(request, one.candidate, figures)
    estimate = one.division.memory_bytes
    usable = usable_bytes(request, one.candidate)
    return tuple(estimate * limit // size * 99 // 100 for limit in usable)


def _laid_out(plan: Plan) -> Figures:
    """What the memory formula alone says of a plan."""
    held = [one.by_kind for one in plan_memory(plan, plan_graph(plan))]
    return {"memory_bytes_max": max(sum(kinds.values()) for kinds in held), "memory_by_kind": held}


def _over(request: SearchRequest, candidate: Candidate, figures: Figures) -> int:
    """Bytes laid out above what there is room for on the fullest stage; below zero: room left."""
    size, most = _fullest(request, candidate, figures)
    return size - most


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
