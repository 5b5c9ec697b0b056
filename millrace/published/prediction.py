"""Prediction of a pinned run that happened: a plan whatever it takes of memory, then simulated.

Blanks of a row are filled here: `micro_batch` by the best of some that divides and fits,
`recompute` by the lightest that fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from msgspec.structs import replace as changed

from millrace.models.errors import ModelError
from millrace.planner.cluster import Cluster
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError, ProtocolError
from millrace.planner.frameworks.layer_split import split_as_given
from millrace.planner.frameworks.peak_memory import (
    MemoryHabit,
    printed_bytes,
    printed_stage,
)
from millrace.planner.memory import StageMemory, plan_memory
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.published.question import InexpressibleError, Question
from millrace.simulator import FastPrediction, SimulationError, predict_fast

# The run happened, so it fitted: the plan is made on devices with this much memory.
ROOM_BYTES = 10**15

MICRO_BATCHES = (1, 2, 4, 8)
MODES = ("none", "selective", "full")  # from the lightest

REFUSED = (InfeasibleError, PlanError, ModelError, ClusterError, ProtocolError, SimulationError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Prediction of a run: step time, shares of it, and memory of the fullest device.

    `peak_bytes` is the figure that the run's source printed, `state_bytes` what is allocated on the
    same device between steps, `account_bytes` the same figure by the plan's own account, without
    the framework's habits; `device_bytes` is all that a device holds by
    that account, and what `millrace plan` compares with the device's memory.
    """

    step_time_s: float
    peak_bytes: int
    account_bytes: int
    device_bytes: int
    bubble_fraction: float
    exposed_communication_s: float
    fidelity: str
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuestion:
    """Plan of a question, made with the pins that were left, and what had to be given up."""

    plan: Plan
    keeping: MemoryHabit | None = None
    notes: tuple[str, ...] = ()


def planned(question: Question, pins: Pins) -> PlannedQuestion:
    """Plan of a question, with what the row left blank filled in.

    Raises
    ------
    InexpressibleError
        Says why there is no plan.
    """
    tried: list[tuple[PlannedQuestion, int]] = []  # with the bytes of the fullest device
    limit = question.cluster.device.memory_bytes
    reason = ""
    for micro_batch in _micro_batches(question, pins):
        for mode in _modes(pins):
            filled = replace(pins, micro_batch=micro_batch, recompute=mode)
            try:
                candidate = _searched(question, filled)
            except InexpressibleError as error:
                reason = reason or str(error)
                continue
            if pins == filled:
                return candidate
            tried.append((candidate, device_bytes(plan_memory(candidate.plan))))
            if tried[-1][1] <= limit:
                break
    if not tried:
        raise InexpressibleError(reason or "no size of microbatch divides the global batch")
    fitting = [candidate for candidate, needed_bytes in tried if needed_bytes <= limit]
    if len(fitting) > 1:
        where = (question.cluster,)
        return min(fitting, key=lambda candidate: simulated(candidate, where)[0].step_time_ns)
    if fitting:
        return fitting[0]
    best = min(tried, key=lambda attempt: attempt[1])[0]
    return replace(best, notes=(*best.notes, "nothing fits: the choice that needs least memory"))


def _micro_batches(question: Question, pins: Pins) -> tuple[int | None, ...]:
    """Sizes of microbatch to try: the row's, or those that divide the batch of a replica."""
    if pins.micro_batch is not None or pins.dp is None:
        return (pins.micro_batch,)
    return tuple(
        micro_batch
        for micro_batch in MICRO_BATCHES
        if question.global_batch % (micro_batch * pins.dp) == 0
    )


def _modes(pins: Pins) -> tuple[str, ...]:
    return MODES if pins.recompute is None else (pins.recompute,)


def _searched(question: Question, pins: Pins) -> PlannedQuestion:
    """Plan under pins; where a form of storage is what cannot be had, without that pin."""
    try:
        return PlannedQuestion(plan=_plan(question, pins), keeping=question.keeping)
    except REFUSED as error:
        refused = error
    for weaker, note in _relaxed_pins(pins, str(refused)):
        try:
            plan = _plan(question, weaker)
            return PlannedQuestion(plan=plan, keeping=question.keeping, notes=(note,))
        except REFUSED:
            continue
    raise InexpressibleError(str(refused)) from None


def _relaxed_pins(pins: Pins, reason: str) -> list[tuple[Pins, str]]:
    """Pins nearest to those that were refused, and what each gives up."""
    alternatives = []
    if pins.zero is not None and f"--zero {pins.zero} cannot be had" in reason:
        if pins.zero == 1:
            note = "zero 0 for 1: state does not divide by its ranks"
            alternatives.append((replace(pins, zero=0), note))
        note = f"zero {pins.zero} not pinned: storage does not divide by its ranks"
        alternatives.append((replace(pins, zero=None), note))
    if pins.ep is not None and pins.ep > 1 and pins.dp is not None:
        share = gcd(pins.ep, pins.dp * (pins.cp or 1))
        if share < pins.ep:
            note = f"ep {share} instead of {pins.ep}: experts lie on replicas of one stage"
            alternatives.append((replace(pins, ep=share), note))
    return alternatives


def _plan(question: Question, pins: Pins) -> Plan:
    cluster = question.cluster
    roomy = changed(cluster, device=changed(cluster.device, memory_bytes=ROOM_BYTES))
    request = SearchRequest(
        model=question.model,
        training=question.training,
        cluster=roomy,
        global_batch=question.global_batch,
        pins=pins,
        plan_only=True,
    )
    plan = changed(search(request, None, remedies=False), cluster=cluster)
    return split_as_given(plan, question.chunk_layers)


def simulated(
    planned_run: PlannedQuestion, clusters: Sequence[Cluster], fidelity: str | None = None
) -> tuple[FastPrediction, ...]:
    """Steps of a plan on clusters of the shape that it was made for; nothing of its memory."""
    plan = planned_run.plan
    return tuple(predict_fast(changed(plan, cluster=cluster), (), fidelity) for cluster in clusters)


def predicted(
    planned_run: PlannedQuestion, clusters: Sequence[Cluster], fidelity: str | None = None
) -> tuple[Predicted, ...]:
    """Predictions of a plan on clusters of the shape that it was made for, one per cluster."""
    every = simulated(planned_run, clusters, fidelity)
    plan = planned_run.plan
    memory = plan_memory(plan)
    peak = account = max(stage.arena_bytes for stage in memory)
    state = None
    if planned_run.keeping is not None:
        printed, figure = printed_stage(plan, planned_run.keeping), planned_run.keeping.figure
        peak, state = printed_bytes(plan, [printed], figure), printed.state_bytes
        account = printed_bytes(plan, memory, figure)
    return tuple(
        Predicted(
            step_time_s=prediction.step_time_ns / 1e9,
            peak_bytes=peak,
            state_bytes=state,
            account_bytes=account,
            device_bytes=device_bytes(memory),
            bubble_fraction=prediction.bubble_fraction,
            exposed_communication_s=prediction.exposed_communication_ns / 1e9,
            fidelity=prediction.fidelity,
        )
        for prediction in every
    )


def device_bytes(memory: Sequence[StageMemory]) -> int:
    """Bytes that the fullest device of a plan holds."""
    return max(stage.total_bytes for stage in memory)


def answer(
    question: Question, pins: Pins, clusters: tuple[Cluster, ...], fidelity: str | None = None
) -> tuple[str, tuple[Predicted, ...], tuple[str, ...]]:
    """Plan a question and predict it on clusters of its shape that differ in their figures.

    Returns
    -------
    tuple
        The reason why there is no plan (or nothing), a prediction per cluster, and what had to be
        given up.
    """
    try:
        run = planned(question, pins)
        return "", predicted(run, clusters, fidelity), run.notes
    except (InexpressibleError, *REFUSED) as error:
        return str(error), (), ()
