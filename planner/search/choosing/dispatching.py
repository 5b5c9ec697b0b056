"""Dispatching: how tokens reach experts in the plans of a request, and which way is faster.

The dispatcher, and whether its exchange moves beside other products, are settings of a cluster's
software. A search is made for each way that a framework has.
"""

from collections.abc import Sequence
from dataclasses import replace as replaced
from typing import Any

from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.models.model_counts import parallelism_limits
from millrace.models.spec import ModelSpec
from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import percent
from millrace.planner.frameworks.experts import (
    overlaps,
    with_expert_recompute,
    with_experts,
    with_routing,
)
from millrace.planner.plan import Plan
from millrace.planner.search.request import SearchRequest
from millrace.planner.search.search_log import SearchResult


def dispatching(request: SearchRequest, graph: Graph) -> list[SearchRequest]:
    """Requests whose software sends tokens to experts as pins say, or as its framework does.

    Where the framework can move them beside other products, the first request is for plans in which
    it does, and the second for plans in which it does not.

    Parameters
    ----------
    request : SearchRequest
    graph : Graph
        Its training graph, which says whether there are experts.

    Raises
    ------
    InfeasibleError
        A pin asks for what the model, the device or the framework has not.
    """
    pins, runs = request.pins, request.runs
    experts = parallelism_limits(graph)["experts"]
    if not experts:
        for name in ("dispatcher", "expert_overlap", "routing"):
            if name in pins.document:
                option = name.replace("_", "-")
                raise InfeasibleError(f"--{option}: this model has no experts; leave it out")
        return [request]
    biased = _balanced_by_bias(request.model)
    software = with_routing(request.cluster.software, pins.routing, experts, biased=biased)
    request = replaced(request, cluster=replace(request.cluster, software=software))
    sending = _sending(request, pins.expert_overlap)
    if not runs.expert_overlap or not overlaps(sending.cluster.software):
        return [sending]
    by_itself = [] if pins.expert_overlap else [_sending(request, overlap=False)]
    pipeline = pins.pp is None or pins.pp > 1
    if not runs.overlap_alone and (not pipeline or pins.schedule not in runs.overlap_schedules):
        if not by_itself:
            schedules = " or ".join(runs.overlap_schedules)
            raise InfeasibleError(f"--expert-overlap: it takes --schedule {schedules}")
        return by_itself
    try:
        return [replaced(sending, runs=runs.overlapping), *by_itself]
    except InfeasibleError as error:
        if not by_itself:
            raise InfeasibleError(f"--expert-overlap: {error}") from None
        return by_itself


def _balanced_by_bias(model: ModelSpec) -> bool:
    """True of models whose scores are no softmax, as DeepSeek-V3 and those that follow it.

    Those that choose one expert a token (Llama 4) have no such bias.
    """
    config = model.config
    return config.get("router", "softmax") != "softmax" and config["experts_per_token"] != 1


def _sending(request: SearchRequest, overlap: bool | None) -> SearchRequest:
    """Request with the software's dispatcher, and the exchange beside other products or not."""
    cluster, pins = request.cluster, request.pins
    software = with_experts(
        cluster.software, cluster.device, request.runs, pins.dispatcher, overlap
    )
    software = with_expert_recompute(software, pins.ep)
    return replaced(request, cluster=replace(cluster, software=software))


def faster(
    plans: Sequence[tuple[Plan, SearchResult | None]], beaten_s: Sequence[float] = ()
) -> tuple[Plan, SearchResult | None]:
    """The faster of one plan or two, with the other among its alternatives.

    Parameters
    ----------
    plans : sequence of tuple
        Plans for the same question, and what their searches chose them from.
    beaten_s : sequence of float
        Bounds of ways to the experts in which no plan is near these, seconds.
    """
    best, *others = sorted(plans, key=lambda pair: _step_s(pair[0]))
    if not (others or beaten_s):
        return best
    plan, answer = best
    assert plan.evidence is not None, "the search writes its evidence"
    bounds, alternatives = [plan.evidence.bound_s], list(plan.evidence.alternatives)
    way = "by itself" if overlaps(plan.cluster.software) else "beside other products"
    for other, _ in others:
        assert other.evidence is not None, "the search writes its evidence"
        bounds.append(other.evidence.bound_s)
        loss = _step_s(other) / _step_s(plan) - 1
        by = "simulated" if plan.figures else "planner"
        alternatives.append(_alternative(way, loss, by, f"loses {percent(loss)} of the step"))
    for bound_s in beaten_s:
        bounds.append(bound_s)
        loss = max(bound_s / plan.evidence.objective_s - 1, 0.0)
        reason = f"loses {percent(loss)} of the step or more"
        alternatives.append(_alternative(way, loss, "planner", reason))
    bound_s = min(bounds)
    evidence = replace(
        plan.evidence,
        bound_s=bound_s,
        gap=plan.evidence.objective_s / bound_s - 1,
        alternatives=tuple(alternatives),
    )
    return replace(plan, evidence=evidence), answer


def _alternative(way: str, loss: float, by: str, reason: str) -> dict[str, Any]:
    """Document of the other way to the experts."""
    return {
        "plan": f"experts' exchange {way}",
        "loss": loss,
        "by": by,
        "over_bytes": None,
        "cause": None,
        "reason": reason,
    }


def _step_s(plan: Plan) -> float:
    """Seconds of a plan's step: the simulator's where there are any, else the planner's."""
    assert plan.evidence is not None, "the search writes its evidence"
    return float(plan.figures.get("step_time_s", plan.evidence.objective_s))
