"""The outer search: every candidate shape bounded, solved where its bound is not enough, compared.

Candidates (stages, mesh, microbatch, schedule) are ranked by the planner's own cost (`ranking/`).
The best few are settled: divided by figures that are measured on their own plans
(`choosing/settling.py`). The best of these are ranked anew by a simulator, which is handed in as a
function.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace as replaced
from math import inf

from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.models.zoo.catalogue import build_training
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.model_settings import with_capacity, with_mtp_layers
from millrace.planner.plan import Evidence, Plan
from millrace.planner.search.candidates import Candidate, PipelineShape
from millrace.planner.search.choosing import Checked, Progress, Simulate, check_plans, fastest
from millrace.planner.search.choosing.dispatching import dispatching, faster
from millrace.planner.search.choosing.settling import fullest
from millrace.planner.search.choosing.simplest import simplest
from millrace.planner.search.evaluation import NEAR, Evaluator, Refused
from millrace.planner.search.placement_groups import candidates_of
from millrace.planner.search.ranking.ranker import Ranker, Ranking, SlowerError
from millrace.planner.search.report.alternatives import (
    BLOCK_TIMES,
    PLANNER,
    SIMULATED,
    Rival,
    alternatives,
)
from millrace.planner.search.report.host_offload import (
    last_resort,
    with_first_search_reason,
)
from millrace.planner.search.report.suggestions import (
    check_storage,
    infeasibility_error,
    reserve_remedy,
    with_remedies,
)
from millrace.planner.search.request import MemoryLimitError, SearchRequest
from millrace.planner.search.search_log import (
    SIMULATION,
    PlanComparison,
    SearchLog,
    SearchResult,
    layers,
)


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
    request = with_settled_model(request)
    graph = build_training(request.model, request.training, request.global_batch)
    record = record or SearchLog()
    tell = progress or (lambda line: None)
    plans: list[tuple[Plan, SearchResult | None]] = []
    beaten_s: list[float] = []  # bounds of ways in which no plan is near the best of the others
    for asked in dispatching(request, graph):
        best_s = min((plan.evidence.objective_s for plan, _ in plans if plan.evidence), default=inf)
        try:
            plan = _search(asked, graph, simulate, tell, record, NEAR * best_s * 1e9)
            plans.append((plan, record.answer))
        except SlowerError as error:
            beaten_s.append(error.bound_ns / 1e9)
        except InfeasibleError as error:
            request, failure = asked, error
    if plans:
        plan, record.answer = faster(plans, beaten_s)
        return plan
    if not remedies:
        raise failure
    if again := last_resort(request, graph, failure):
        tell("nothing fits: once more with optimizer state in host memory")
        try:
            plan = _search(again, graph, simulate, tell, record)
            return with_first_search_reason(plan, failure, reserve_remedy(request, graph))
        except InfeasibleError as error:
            request, failure = again, error
    raise with_remedies(failure, request, graph) from None


def with_settled_model(request: SearchRequest) -> SearchRequest:
    """Request whose model has the settings that pins say, or that its framework gives it."""
    pins = request.pins
    model = with_mtp_layers(request.model, pins.mtp_layers)
    return replaced(request, model=with_capacity(model, pins.capacity_factor, request.runs))


def _search(
    request: SearchRequest,
    graph: Graph,
    simulate: Simulate | None,
    tell: Progress,
    record: SearchLog,
    best_ns: float = inf,
) -> Plan:
    """Best plan of one way to the experts; `best_ns` is the step that it has to be below.

    Raises SlowerError where no plan is.
    """
    check_storage(request, graph)
    rounds = _SearchRounds(request, graph, simulate, tell, record)
    try:
        return rounds.answer(best_ns)
    except KeyboardInterrupt:
        tell("interrupted: the best plan so far is laid out")
        plan = rounds.so_far()
        if plan is None:
            raise
        raise SearchInterrupted(plan) from None
    finally:
        # The record has the evaluator of its answer: with no way back neither outlives its readers.
        rounds.evaluator.dividing = nullcontext


class SearchInterrupted(KeyboardInterrupt):
    """A search was interrupted; `plan` is the best that it had, with the gap that was left."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        super().__init__("the search was interrupted; its best plan so far is at hand")


class _SearchRounds:
    """Rounds of one search, and what they have come to so far.

    Attributes
    ----------
    floors : dict
        Bounds of all candidates that were ranked in any round.
    barred : set
        Candidates whose plans are no good as they are laid out.
    checked : list of Checked
        Plans of the last round that were laid out.
    """

    def __init__(
        self,
        request: SearchRequest,
        graph: Graph,
        simulate: Simulate | None,
        tell: Progress,
        record: SearchLog,
    ) -> None:
        self.request, self.graph, self.record = request, graph, record
        self.simulate, self.tell = simulate, tell
        self.everything = candidates_of(request, graph)
        record.count("candidates", len(self.everything))
        self.evaluator = Evaluator(request, graph, dividing=record.dividing)
        self.ranker = Ranker(request, self.evaluator, tell, record)
        self.floors: dict[Candidate, float] = {}
        self.barred: set[Candidate] = set()
        self.checked: list[Checked] = []
        self._wide: set[Candidate] = set()

    def answer(self, best_ns: float) -> Plan:
        """Best plan; one that cannot run as it is laid out is left, and all are ranked anew."""
        request, tried = self.request, list[Refused]()
        asked = request, self.evaluator, self.tell, self.record
        while self.everything:
            self.record.count("rounds")
            self.ranker = Ranker(*asked, best_ns)
            ranking = self.ranker.rank(self.everything, self._widened)
            if not ranking.solved_plans:
                if best_ns < inf and ranking.bound_ns < inf:
                    raise SlowerError(ranking.bound_ns)
                break
            self._keep_floors()
            with self.record.layer(SIMULATION):
                self.checked = check_plans(
                    self.evaluator, ranking.solved_plans, self.simulate, self.tell
                )
            if best := fastest(self.checked):
                return self._chosen(best)
            _note(self.record, request, self.checked)
            tried += map(self._bar, self.checked)
            self.everything = tuple(c for c in self.everything if c not in self.barred)
        refused = self.ranker.ranking.refused
        bound_ns = min(each.bound_ns for each in (*tried, *refused))
        raise infeasibility_error(tried or refused, request.offload, bound_ns)

    def so_far(self) -> Plan | None:
        """Best plan of what was ranked; None where nothing of it fits as it is laid out."""
        ranking = self.ranker.ranking
        if not ranking.solved_plans:
            return None
        self._keep_floors()
        best = fastest(self.checked)
        if best is None:
            self.checked = check_plans(
                self.evaluator, ranking.solved_plans, self.simulate, self.tell, most=1
            )
            best = fastest(self.checked)
        self.record.count("interrupted")
        return self._returned(best, best.time_s) if best else None

    def _keep_floors(self) -> None:
        for outcome in self.ranker.ranking.everything:
            floor = self.floors.get(outcome.candidate, 0.0)
            self.floors[outcome.candidate] = max(floor, outcome.bound_ns)

    def _left(self) -> dict[Candidate, float]:
        """Bounds of candidates that could be plans."""
        return {c: floor for c, floor in self.floors.items() if c not in self.barred}

    def _widened(self, best: list[PipelineShape]) -> list[Candidate]:
        wide_candidates = candidates_of(self.request, self.graph, best)
        self.record.count("candidates", len(set(wide_candidates) - self._wide))
        self._wide.update(wide_candidates)
        return [candidate for candidate in wide_candidates if candidate not in self.barred]

    def _chosen(self, best: Checked) -> Plan:
        """The plan, once what is simpler is looked at."""
        fastest_s = best.time_s
        if self.request.simpler_within:
            with self.record.layer(SIMULATION):
                best, self.checked = simplest(
                    self.evaluator, self.ranker, self.checked, best, self.simulate, self.tell
                )
        return self._returned(best, fastest_s)

    def _returned(self, best: Checked, fastest_s: float) -> Plan:
        _note(self.record, self.request, self.checked)
        ranking = self.ranker.ranking
        self.record.answer = SearchResult(
            evaluator=self.evaluator,
            chosen=best.solved_plan,
            solved_plans=tuple(ranking.solved_plans),
        )
        simulated = self.simulate is not None
        return _best(best, self.checked, ranking, self._left(), self.record, simulated, fastest_s)

    def _bar(self, failed: Checked) -> Refused:
        """Leave a candidate whose plan is no good, and say why."""
        candidate, settled = failed.solved_plan.candidate, failed.settled_plan
        self.barred.add(candidate)
        if settled.fits:
            return Refused(candidate, failed.short or InfeasibleError(failed.reason))
        short = MemoryLimitError(*fullest(self.request, candidate, settled.memory))
        return Refused(candidate, short, self.floors[candidate])


def _note(record: SearchLog, request: SearchRequest, checked: list[Checked]) -> None:
    """Put plans that were looked at on record."""
    record.compared += _compared(request, checked)
    record.count("simulated", sum(bool(plan.prediction) for plan in checked))
    record.count("simulated and refused", sum(bool(plan.reason) for plan in checked))


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
    bounds_ns: dict[Candidate, float],
    record: SearchLog,
    simulated: bool,
    fastest_s: float,
) -> Plan:
    """The best plan, with what it was compared with, and the bounds of all candidates."""
    assert record.answer is not None, "filled before"
    objective_ns = best.solved_plan.division.step_ns
    bound_ns = min(objective_ns, *bounds_ns.values())
    held_by = min(bounds_ns, key=bounds_ns.__getitem__).text
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
            0 if record.answer.evaluator.request.plan_only else record.top,
        ),
        layers=layers(
            record,
            best.solved_plan,
            ranking.pruned,
            ranking.refused,
            bound_ns,
            held_by,
        ),
        simplicity_loss=max(best.time_s / fastest_s - 1, 0.0),
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
