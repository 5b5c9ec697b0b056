"""The outer search: every candidate shape bounded, solved where its bound is not enough, compared.

Candidates (stages, mesh, microbatch, schedule) are ranked by the planner's own cost (`ranking.py`).
The best few are settled: divided by figures that are measured on their own plans (`settling.py`).
The best of these are ranked anew by a simulator, which is handed in as a function.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial

from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.models.model_counts import parallelism_limits
from millrace.models.zoo.catalogue import build_training
from millrace.planner.errors import InfeasibleError, ProtocolError
from millrace.planner.frameworks.experts import with_experts
from millrace.planner.frameworks.model_settings import with_capacity, with_mtp_layers
from millrace.planner.plan import ON_DEVICES, Evidence, Plan, Prediction
from millrace.planner.search.blocks.fork_join import run_both
from millrace.planner.search.candidates import Candidate, PipelineShape
from millrace.planner.search.decomposition.block_oracle import BlockOracle
from millrace.planner.search.decomposition.loop import BoundLoop
from millrace.planner.search.decomposition.proof import Proof, prove
from millrace.planner.search.evaluation import Evaluator, Refused, SolvedPlan
from millrace.planner.search.placement_groups import candidates_of
from millrace.planner.search.plan_writer import disobeyed
from millrace.planner.search.ranking import Ranker, Ranking
from millrace.planner.search.report.alternatives import (
    BLOCK_TIMES,
    PLANNER,
    SIMULATED,
    Rival,
    alternatives,
)
from millrace.planner.search.report.host_offload import (
    host_shortage,
    last_resort,
    with_first_search_reason,
)
from millrace.planner.search.report.search_log import (
    PROOF,
    SIMULATION,
    PlanComparison,
    SearchLog,
    SearchResult,
    layers,
)
from millrace.planner.search.report.suggestions import (
    check_storage,
    infeasibility_error,
    reserve_remedy,
    with_remedies,
)
from millrace.planner.search.request import HostMemoryError, MemoryLimitError, SearchRequest
from millrace.planner.search.settling import BlockTimer, SettledPlan, fullest, settle

Simulate = Callable[[Plan], Prediction]
Progress = Callable[[str], None]

SETTLED = 4  # plans that fit before one is chosen
# Plans are settled whose step is within this of the best: of any pipeline, of one that has been
# settled, and of one that was on a mesh of the same axes in another order.
CLOSE, SEEN, ALIKE = 1.02, 1.0, 0.998
TRIED = 8  # plans that are settled at most
NEAREST = 1.002  # times the best settled plan's step: the next up to this is simulated beside it


@dataclass(frozen=True, slots=True)
class Pure:
    """A simulator that changes nothing: it may run in a process of its own, beside another plan.

    `block_times` times the blocks of a plan, where it can.
    """

    prediction_of: Simulate
    block_times: BlockTimer | None = None

    def __call__(self, plan: Plan) -> Prediction:
        """Figures that it predicts of a plan."""
        return self.prediction_of(plan)


@dataclass(frozen=True, slots=True)
class Checked:
    """A settled plan, why it is no good, and what the simulator predicts of it where it was asked.

    `short` says what the host lacks.
    """

    settled_plan: SettledPlan
    reason: str
    short: HostMemoryError | None = None
    prediction: Prediction | None = None

    @property
    def solved_plan(self) -> SolvedPlan:
        """Its candidate, solutions and division."""
        return self.settled_plan.solved_plan

    @property
    def time_s(self) -> float:
        """Seconds of its simulated step; without one, by its blocks' times or the tables."""
        return self.prediction.step_time_s if self.prediction else self.settled_plan.step_ns / 1e9


def search(
    request: SearchRequest,
    simulate: Simulate | None = None,
    progress: Progress | None = None,
    record: SearchLog | None = None,
    *,
    remedies: bool = True,
) -> Plan:
    """Best plan, with the evidence for it.

    Parameters
    ----------
    request : SearchRequest
    simulate : callable, optional
        Predicts the figures of a plan; the best few plans are ranked by it. Without a simulator the
        planner's own cost decides. One that is `Pure` looks at two plans at once, and may time
        blocks.
    progress : callable, optional
        Told a line of text now and then.
    record : SearchLog, optional
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
    request = _with_settled_model(request)
    graph = build_training(request.model, request.training, request.global_batch)
    request = _dispatching(request, graph)
    record = record or SearchLog()
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
            plan = _search(again, graph, simulate, tell, record)
            return with_first_search_reason(plan, failure, reserve_remedy(request, graph))
        except InfeasibleError as error:
            request, failure = again, error
    raise with_remedies(failure, request, graph) from None


def _with_settled_model(request: SearchRequest) -> SearchRequest:
    """Request whose model has the settings that pins say, or that its framework gives it."""
    pins = request.pins
    model = with_mtp_layers(request.model, pins.mtp_layers)
    return replaced(request, model=with_capacity(model, pins.capacity_factor, request.runs))


def _dispatching(request: SearchRequest, graph: Graph) -> SearchRequest:
    """Request whose software sends tokens to experts as pins say, or as its framework does."""
    pins, cluster = request.pins, request.cluster
    if parallelism_limits(graph)["experts"]:
        software = with_experts(
            cluster.software, cluster.device, request.runs, pins.dispatcher, pins.expert_overlap
        )
        return replaced(request, cluster=replace(cluster, software=software))
    for name in ("dispatcher", "expert_overlap"):
        if name in pins.document:
            option = name.replace("_", "-")
            raise InfeasibleError(f"--{option}: this model has no experts; leave it out")
    return request


def _search(
    request: SearchRequest,
    graph: Graph,
    simulate: Simulate | None,
    tell: Progress,
    record: SearchLog,
) -> Plan:
    everything = candidates_of(request, graph)
    check_storage(request, graph)
    record.count("candidates", len(everything))
    evaluator = Evaluator(request, graph, dividing=record.dividing)
    tried: list[Refused] = []
    floors: dict[Candidate, float] = {}  # bounds of all candidates that were ranked in any round
    barred: set[Candidate] = set()
    wide: set[Candidate] = set()

    def widened(best: list[PipelineShape]) -> list[Candidate]:
        wide_candidates = candidates_of(request, graph, best)
        record.count("candidates", len(set(wide_candidates) - wide))
        wide.update(wide_candidates)
        return [candidate for candidate in wide_candidates if candidate not in barred]

    while True:
        record.count("rounds")
        ranker = Ranker(request, evaluator, tell, record)
        ranking = ranker.rank(everything, widened)
        if not ranking.solved_plans:
            break
        for outcome in ranking.everything:
            floors.setdefault(outcome.candidate, outcome.bound_ns)
        with record.layer(SIMULATION):
            checked = _checked(evaluator, ranking.solved_plans, simulate, tell)
        if best := _fastest(checked):
            left = {
                candidate: floor for candidate, floor in floors.items() if candidate not in barred
            }
            with record.layer(PROOF):
                proof = _proven(evaluator, left, best, tell, record)
            if more := ranker.reconsider(proof.mixed_ns, best.solved_plan.division.step_ns):
                with record.layer(SIMULATION):
                    checked = _checked(evaluator, more, simulate, tell, checked)
                best = _fastest(checked) or best
            _note(record, request, checked)
            record.answer = SearchResult(
                evaluator=evaluator,
                chosen=best.solved_plan,
                solved_plans=tuple(ranking.solved_plans),
            )
            bounds_ns = left, proof.bounds_ns
            return _best(best, checked, ranking, bounds_ns, record, simulate is not None)
        _note(record, request, checked)
        for failed in checked:
            candidate = failed.solved_plan.candidate
            barred.add(candidate)
            settled = failed.settled_plan
            if settled.fits:
                tried.append(Refused(candidate, failed.short or InfeasibleError(failed.reason)))
            else:
                short = MemoryLimitError(*fullest(request, candidate, settled.memory))
                tried.append(Refused(candidate, short, floors[candidate]))
        everything = tuple(other for other in everything if other not in barred)
        if not everything:
            break
    bound_ns = min(refused.bound_ns for refused in (*tried, *ranking.refused))
    raise infeasibility_error(tried or ranking.refused, request.offload, bound_ns)


def _fastest(checked: Sequence[Checked]) -> Checked | None:
    """The fastest plan that is any good, one that was simulated before others."""
    fitting = [plan for plan in checked if not plan.reason]
    return min(fitting, key=lambda plan: (not plan.prediction, plan.time_s), default=None)


def _note(record: SearchLog, request: SearchRequest, checked: list[Checked]) -> None:
    """Put plans that were looked at on record."""
    record.compared += _compared(request, checked)
    record.count("simulated", sum(bool(plan.prediction) for plan in checked))
    record.count("simulated and refused", sum(bool(plan.reason) for plan in checked))


def _proven(
    evaluator: Evaluator,
    floors: dict[Candidate, float],
    best: Checked,
    tell: Progress,
    record: SearchLog,
) -> Proof:
    """Bounds of all candidates, those that leave a gap raised, and what their columns promise."""
    max_gap, best_ns = evaluator.request.max_gap, best.solved_plan.division.step_ns
    if not max_gap:  # by refining them all
        return Proof(bounds_ns=floors, mixed_ns={}, block_programs=0, linear_programs=0)

    def loops() -> BoundLoop:
        oracle = BlockOracle(evaluator.programs, evaluator.modes)
        return BoundLoop(oracle, evaluator.graph, evaluator.asker, evaluator.sends)

    proof = prove(loops, floors, best_ns, max_gap, tell)
    record.count("programs at prices", proof.block_programs)
    record.count("linear programs", proof.linear_programs)
    return proof


def _checked(
    evaluator: Evaluator,
    ranked_plans: list[SolvedPlan],
    simulate: Simulate | None,
    tell: Progress,
    checked_before: Sequence[Checked] = (),
) -> list[Checked]:
    """Best plans settled, and the best of these simulated, beside those checked before.

    Plans are taken in the order of their cost, times what settling has made of the cost of others
    of the same pipeline, until what is left is not near the best.
    """
    request, graph = evaluator.request, evaluator.graph
    block_times = simulate.block_times if isinstance(simulate, Pure) else None
    checked = list(checked_before)
    ratios = _Ratios()
    for earlier in checked_before:
        ratios.note(earlier.settled_plan)
    # Settling mixes all that is known of a candidate, whichever of its divisions it begins with.
    waiting = list({plan.candidate: plan for plan in reversed(ranked_plans)}.values())
    fitting = [plan for plan in checked if not plan.reason]
    most = len(checked) + TRIED, len(fitting) + (SETTLED if simulate else 1)
    while len(checked) < most[0] and len(fitting) < most[1]:
        best_ns = min((plan.settled_plan.step_ns for plan in fitting), default=float("inf"))
        waiting = [
            plan
            for plan in sorted(waiting, key=ratios.expected_ns)
            if ratios.expected_ns(plan) <= best_ns * ratios.close(plan)
        ]
        if not waiting:
            break
        now, waiting = waiting[:2], waiting[2:]
        tell(f"dividing by measured figures: {now[0].candidate.text}")
        for settled in _settle_plans(evaluator, now, block_times):
            plan = settled.plan
            short = host_shortage(plan) if plan.offload != ON_DEVICES else None
            reason = disobeyed(plan, graph, request.pins) or str(short or "")
            if not reason and not settled.fits:
                reason = f"needs {settled.over_bytes} bytes more than the limit once compiled"
            checked.append(Checked(settled, reason, short))
            ratios.note(settled)
        fitting = [plan for plan in checked if not plan.reason]
    if simulate is None or not fitting:
        return checked
    # What is not simulated is slower by the times of its blocks than the best that is.
    simulated = [plan for plan in fitting if plan.prediction]
    due = sorted(
        (plan for plan in fitting if not plan.prediction),
        key=lambda plan: plan.settled_plan.step_ns,
    )
    best_s = min((plan.time_s for plan in simulated), default=float("inf"))
    while due and due[0].time_s < best_s:
        near = [plan for plan in due[:2] if plan.time_s <= NEAREST * due[0].time_s]
        simulated += _simulated(near, simulate, tell)
        due = due[len(near) :]
        best_s = min((plan.time_s for plan in simulated if not plan.reason), default=best_s)
    return [*simulated, *due, *(plan for plan in checked if plan.reason)]


def _but_axes(plan: SolvedPlan) -> object:
    """Key that plans share which differ in the order of their axes only."""
    candidate = plan.candidate
    return candidate.pipeline, candidate.batch, tuple(sorted(candidate.sizes))


class _Ratios:
    """Ratios of measured to tabled step times, by pipeline, to expect those not yet measured."""

    def __init__(self) -> None:
        self._of_shape: dict[object, float] = {}
        self._of_schedule: dict[str, float] = {}
        self._but_axes: set[object] = set()

    def note(self, settled: SettledPlan) -> None:
        """Keep the step that was measured of a plan, over the tabled one."""
        pipeline = settled.solved_plan.candidate.pipeline
        ratio = settled.step_ns / max(settled.solved_plan.division.step_ns, 1.0)
        self._of_shape[pipeline.schedule, pipeline.stages, pipeline.interleave] = ratio
        if settled.fits:
            self._but_axes.add(_but_axes(settled.solved_plan))
        least = self._of_schedule.get(pipeline.schedule, ratio)
        self._of_schedule[pipeline.schedule] = min(ratio, least)

    def close(self, plan: SolvedPlan) -> float:
        """Ratio of a plan's expected step to the best one up to which the plan is settled."""
        pipeline = plan.candidate.pipeline
        if _but_axes(plan) in self._but_axes:
            return ALIKE
        shape = pipeline.schedule, pipeline.stages, pipeline.interleave
        return SEEN if shape in self._of_shape else CLOSE

    def expected_ns(self, plan: SolvedPlan) -> float:
        """Step to expect of a plan."""
        pipeline = plan.candidate.pipeline
        shape = pipeline.schedule, pipeline.stages, pipeline.interleave
        usual = self._of_schedule.get(pipeline.schedule, 1.0)
        return plan.division.step_ns * self._of_shape.get(shape, usual)


def _settle_plans(
    evaluator: Evaluator, plans: Sequence[SolvedPlan], block_times: BlockTimer | None
) -> tuple[SettledPlan, ...]:
    """Two plans settled at once, or one."""
    if len(plans) == 1:
        return (settle(evaluator, plans[0], block_times),)
    return run_both(
        lambda: settle(evaluator, plans[0], block_times),
        lambda: settle(evaluator, plans[1], block_times),
    )


def _simulated(checked: Sequence[Checked], simulate: Simulate, tell: Progress) -> list[Checked]:
    """The plans with the simulator's figures; two at once where it changes nothing."""

    def predicted(plan: Checked) -> Checked:
        try:
            return replaced(plan, prediction=simulate(plan.settled_plan.plan))
        except ProtocolError as error:
            return replaced(plan, reason=f"cannot run: {str(error)[:200]}")

    tell(f"simulating: {checked[0].solved_plan.candidate.text}")
    if len(checked) == 2 and isinstance(simulate, Pure):
        return list(run_both(partial(predicted, checked[0]), partial(predicted, checked[1])))
    return [predicted(plan) for plan in checked]


def _compared(request: SearchRequest, checked: list[Checked]) -> Iterator[PlanComparison]:
    """Figures of every compiled plan by the cost, beside those that were laid out and simulated."""
    for plan in checked:
        if plan.prediction or not plan.settled_plan.fits:
            yield PlanComparison(
                plan=plan.solved_plan.candidate.text,
                cost_s=plan.settled_plan.step_ns / 1e9,
                simulated_s=plan.prediction.step_time_s if plan.prediction else None,
                cost_bytes=plan.settled_plan.expected_bytes,
                laid_out_bytes=fullest(
                    request, plan.solved_plan.candidate, plan.settled_plan.memory
                )[0],
                refused=plan.reason,
            )


def _best(
    best: Checked,
    checked: list[Checked],
    ranking: Ranking,
    bounds_ns: tuple[dict[Candidate, float], dict[Candidate, float]],
    record: SearchLog,
    simulated: bool,
) -> Plan:
    """The fastest plan that fits, with what it was compared with.

    Bounds are those of all candidates, by ranking and as proven then.
    """
    assert record.answer is not None, "filled before"
    objective_ns = best.solved_plan.division.step_ns
    ranked_ns, bound_ns = (min(objective_ns, *bounds.values()) for bounds in bounds_ns)
    held_by = min(bounds_ns[1], key=bounds_ns[1].__getitem__).text
    evidence = Evidence(
        objective_s=objective_ns / 1e9,
        bound_s=bound_ns / 1e9,
        gap=(objective_ns - bound_ns) / bound_ns,
        candidates=record.counts["candidates"],
        pruned=len(ranking.pruned),
        alternatives=alternatives(
            record.answer.evaluator,
            (best.solved_plan, best.settled_plan.plan),
            _rivals(best, checked, ranking, simulated),
            [*sorted(ranking.pruned, key=lambda outcome: outcome.bound_ns), *ranking.refused],
            record.top,
        ),
        layers=layers(
            record,
            best.solved_plan,
            ranking.pruned,
            ranking.refused,
            (ranked_ns, bound_ns),
            held_by,
        ),
    )
    figures = best.prediction.figures if best.prediction else {}
    return replace(best.settled_plan.plan, evidence=evidence, figures=figures)


def _rivals(
    best: Checked, checked: list[Checked], ranking: Ranking, simulated: bool
) -> Iterator[Rival]:
    """Plans that were not chosen, each compared by the best that is known of it and of the best."""
    for other in checked:
        if other is best:
            continue
        by = PLANNER if not simulated else SIMULATED if other.prediction else BLOCK_TIMES
        pair = other, best
        if by == SIMULATED:
            step_s, best_s = (plan.time_s for plan in pair)
        else:
            step_s, best_s = (plan.settled_plan.step_ns for plan in pair)
        yield Rival(
            solved_plan=other.solved_plan,
            plan=other.settled_plan.plan,
            loss=step_s / best_s - 1,
            by=by,
            refused=other.reason,
            over_bytes=max(other.settled_plan.over_bytes, 0),
            step_time_s=other.prediction.step_time_s if other.prediction else None,
        )
    settled = {plan.solved_plan.candidate for plan in checked}
    for ranked_plan in ranking.solved_plans:
        if ranked_plan.candidate not in settled:
            loss = ranked_plan.division.step_ns / best.solved_plan.division.step_ns - 1
            yield Rival(solved_plan=ranked_plan, loss=loss, by=PLANNER)
