"""Explain: reasons of each choice of a plan, by the plans that differ from it in that choice.

Every sentence comes from solving such a plan: it does not fit, or it is slower, and the largest
part of the difference is named (`breakdown.py`).
"""

from dataclasses import dataclass, replace
from typing import Any

from millrace.models.model_counts import parallelism_limits
from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import percent, size
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import Plan
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Outcome, Refused, SolvedPlan
from millrace.planner.search.pins import Pins
from millrace.planner.search.placement_groups import candidates_of
from millrace.planner.search.report.breakdown import Parts, breakdown, cause, growth
from millrace.planner.search.report.neighbours import (
    Neighbour,
    degrees,
    fastest,
    neighbour_outcomes,
    pipelines,
    storage,
)
from millrace.planner.search.report.worth import memory_worth
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.search_log import SearchResult

CHOICES = (
    *("dp", "tp", "pp", "cp", "ep", "micro_batch", "schedule", "interleave"),
    *("recompute", "zero", "sequence_parallel", "offload", "ring"),
)
NUMBERS = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "interleave", "zero")
SAME = 0.0005  # differences below are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason that one alternative to one choice was not taken.

    `effect` is by how much its step is longer, by the planner's cost; None where there is no such
    plan. `over_bytes` is what it lacks of a device's memory, `parts_s` what it spends
    more, by kind.
    """

    choice: str
    value: str
    alternative: str | None
    effect: float | None
    reason: str
    over_bytes: int | None = None
    plan: str | None = None
    parts_s: dict[str, float] | None = None

    @property
    def line(self) -> str:
        """Line of text that gives the reason."""
        name = self.choice.replace("_", "-")
        if self.alternative is None:
            return f"{name} = {self.value}: {self.reason}"
        named = self.choice in NUMBERS and self.alternative.isdigit()
        other = f"{name} = {self.alternative}" if named else self.alternative
        return f"{name} = {self.value}: {other} {self.reason}"

    @property
    def document(self) -> dict[str, Any]:
        """Reason as scripts read it."""
        return {
            "choice": self.choice,
            "value": self.value,
            "alternative": self.alternative,
            "effect": self.effect,
            "reason": self.reason,
            "over_bytes": self.over_bytes,
            "plan": self.plan,
            "parts_s": self.parts_s,
            "line": self.line,
        }


def explain(plan: Plan, answer: SearchResult) -> tuple[Reason, ...]:
    """Reasons that decided every choice of a plan.

    Parameters
    ----------
    plan : Plan
        Its axes, variants and offload are what is explained.
    answer : SearchResult
        Left by the search that made the plan in its `SearchLog`.

    Returns
    -------
    tuple of Reason
        In the order of the choices; then what more memory would save, and the runner-up. A choice
        that was pinned, or that the plan leaves none of, has one reason that says so.
    """
    evaluator, chosen = answer.evaluator, answer.chosen
    shown = {**roles(plan, plan.graph), "offload": plan.offload}
    pins = evaluator.request.pins
    neighbours = _neighbours(evaluator, chosen.candidate, shown, pins)
    chosen_parts = breakdown(evaluator, chosen)
    reasons = {name: [_lone_reason(name, plan, shown, pins)] for name in CHOICES}
    for neighbour, outcomes in zip(
        neighbours, neighbour_outcomes(evaluator, neighbours), strict=True
    ):
        asked = evaluator if neighbour.pins == pins else evaluator.under(neighbour.pins)
        reasons[neighbour.choice].append(_reason(asked, neighbour, outcomes, chosen, chosen_parts))
    listed = [reason for name in CHOICES for reason in (reasons[name][1:] or reasons[name][:1])]
    listed += _memory(evaluator, chosen)
    if runner_up := _runner_up(answer, chosen_parts):
        listed.append(runner_up)
    return tuple(listed)


def _neighbours(
    evaluator: Evaluator, chosen: Candidate, shown: dict[str, Any], pins: Pins
) -> list[Neighbour]:
    plan_degrees = {name: shown[name] for name in ("dp", "tp", "pp", "cp")}
    if None in plan_degrees.values():  # the ops disagree on what an axis is for
        neighbours = pipelines(evaluator, chosen, None)
        return [*neighbours, *storage(evaluator, chosen, shown, pins)]
    settled = replace(pins, dp=plan_degrees["dp"], tp=plan_degrees["tp"], cp=plan_degrees["cp"])
    roled = _roled(evaluator, chosen, plan_degrees, shown["ep"], settled)
    neighbours = degrees(evaluator, chosen, plan_degrees, pins)
    if (
        int(parallelism_limits(evaluator.graph)["experts"])
        and pins.ep is None
        and roled is not None
    ):
        neighbours += _experts(evaluator, chosen, plan_degrees, int(shown["ep"]), pins)
    neighbours += pipelines(evaluator, chosen, plan_degrees["dp"])
    if roled is not None:
        neighbours += storage(evaluator, roled, shown, settled)
    return neighbours


def _roled(
    evaluator: Evaluator, chosen: Candidate, plan_degrees: dict[str, int], ep: object, pins: Pins
) -> Candidate | None:
    """Chosen candidate with roles on its axes."""
    experts = int(parallelism_limits(evaluator.graph)["experts"])
    asked = replace(pins, pp=plan_degrees["pp"], ep=int(str(ep)) if experts and ep else pins.ep)
    for candidate in candidates_of(replace(evaluator.request, pins=asked), evaluator.graph):
        if candidate.batch == chosen.batch and candidate.pipeline == chosen.pipeline:
            return candidate
    return None


def _experts(
    evaluator: Evaluator, chosen: Candidate, plan_degrees: dict[str, int], ep: int, pins: Pins
) -> list[Neighbour]:
    """Neighbours with experts split over half or twice as many ranks."""
    neighbours = []
    settled = replace(pins, dp=plan_degrees["dp"], tp=plan_degrees["tp"], cp=plan_degrees["cp"])
    for other in (ep // 2, 2 * ep):
        if other:
            asked = replace(settled, ep=other)
            shape = _roled_or_none(evaluator, chosen, plan_degrees, other, settled)
            neighbours.append(
                Neighbour(
                    choice="ep",
                    value=str(ep),
                    alternative=str(other),
                    candidates=() if shape is None else (shape,),
                    pins=asked,
                    reason="" if shape else "does not divide the experts or the ranks",
                )
            )
    return neighbours


def _roled_or_none(
    evaluator: Evaluator, chosen: Candidate, plan_degrees: dict[str, int], ep: int, pins: Pins
) -> Candidate | None:
    try:
        return _roled(evaluator, chosen, plan_degrees, ep, pins)
    except InfeasibleError:
        return None


def _lone_reason(name: str, plan: Plan, shown: dict[str, Any], pins: Pins) -> Reason:
    """Reason given for a choice without neighbours."""
    plan_values: dict[str, Any] = {"schedule": plan.schedule, "interleave": plan.interleave}
    plan_values["micro_batch"] = plan.batch // shown["dp"] if shown["dp"] else None
    value = plan_values.get(name, shown.get(name))
    if getattr(pins, name) is not None:
        reason = "pinned"
    elif value is None:
        reason = "ops differ; the axes and variants of the plan say how"
    elif name in ("schedule", "interleave") and plan.stages == 1:
        reason = "there is one stage"
    elif name == "interleave":
        reason = f"{plan.schedule} fixes it"
    else:
        reason = "nothing else to choose"
    shown_value = "mixed" if value is None else str(value)
    return Reason(choice=name, value=shown_value, alternative=None, effect=None, reason=reason)


def _reason(
    evaluator: Evaluator,
    neighbour: Neighbour,
    outcomes: list[Outcome],
    chosen: SolvedPlan,
    chosen_parts: Parts,
) -> Reason:
    plain = Reason(
        choice=neighbour.choice,
        value=neighbour.value,
        alternative=neighbour.alternative,
        effect=None,
        reason="",
    )
    best = fastest(outcomes)
    if best is not None:
        return _slower(plain, evaluator, best, chosen, chosen_parts)
    short = [
        outcome.error
        for outcome in outcomes
        if isinstance(outcome, Refused) and isinstance(outcome.error, MemoryLimitError)
    ]
    if short:
        error = min(short, key=lambda refusal: refusal.needed_bytes - refusal.limit_bytes)
        over = error.needed_bytes - error.limit_bytes
        where = "" if error.stage is None else f" on stage {error.stage}"
        return replace(plain, reason=f"exceeds memory by {size(over)}{where}", over_bytes=over)
    if neighbour.reason:
        return replace(plain, reason=f"cannot be: {neighbour.reason}")
    refused = [str(outcome.error) for outcome in outcomes if isinstance(outcome, Refused)]
    why = refused[0] if refused else "no signatures fit together"
    return replace(plain, reason=f"has no plan: {why}")


def _slower(
    plain: Reason, evaluator: Evaluator, best: SolvedPlan, chosen: SolvedPlan, chosen_parts: Parts
) -> Reason:
    """Reason that says how much slower a plan is than the chosen one, and what takes the time."""
    objective = chosen.division.step_ns
    effect = best.division.step_ns / objective - 1
    other = breakdown(evaluator, best)
    if effect > SAME:
        text = f"loses {percent(effect)} ({cause(chosen_parts, other, effect, objective)})"
    elif effect >= -SAME:
        text = "is as good by the planner's cost"
    elif plain.choice == "offload":
        text = f"is {percent(-effect)} faster, but is chosen where nothing fits or --offload asks"
    else:
        text = f"is {percent(-effect)} faster by the planner's cost, which is not the simulator's"
    return replace(
        plain,
        effect=effect,
        reason=text,
        plan=best.candidate.text,
        parts_s={name: time / 1e9 for name, time in growth(chosen_parts, other).items()},
    )


def _memory(evaluator: Evaluator, chosen: SolvedPlan) -> list[Reason]:
    """Reason that says what more memory would save; none where kinds of device are mixed."""
    worth = memory_worth(evaluator, chosen)
    if worth is None:
        return []
    text = "saves nothing"
    if worth.saved > SAME:
        stages = chosen.candidate.pipeline.stages
        where = f", most of it on stage {worth.stage}" if stages > 1 else ""
        text = f"on every device saves about {percent(worth.saved)}{where}"
    reason = Reason(
        choice="memory",
        value=size(worth.limit_bytes),
        alternative="1 GiB more",
        effect=-worth.saved,
        reason=text,
    )
    return [reason]


def _runner_up(answer: SearchResult, chosen_parts: Parts) -> Reason | None:
    """Reason that names the best other candidate of the search itself; None where it is alone."""
    others = [plan for plan in answer.solved_plans if plan.candidate != answer.chosen.candidate]
    if not others:
        return None
    best = min(others, key=lambda plan: plan.division.step_ns)
    plain = Reason(
        choice="plan",
        value=answer.chosen.candidate.text,
        alternative=f"runner-up ({best.candidate.text})",
        effect=None,
        reason="",
    )
    return _slower(plain, answer.evaluator, best, answer.chosen, chosen_parts)
