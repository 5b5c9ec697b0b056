"""Neighbours: the plans that differ from a chosen one in one choice, and their outcomes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from millrace.models.model_counts import parallelism_limits
from millrace.planner.errors import PlanError
from millrace.planner.frameworks.capabilities import divided_blocks
from millrace.planner.plan import OFFLOADS
from millrace.planner.schedules import SCHEDULES
from millrace.planner.search.candidates import Candidate, candidates
from millrace.planner.search.evaluation import Evaluator, Outcome, SolvedPlan
from millrace.planner.search.pins import Pins
from millrace.planner.search.placement_groups import placed
from millrace.planner.search.ranking.outcomes import outcomes_of
from millrace.planner.search.stages import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One choice taken otherwise: candidates that do so, and what pins they are solved under.

    Of several candidates (more stages or more replicas take up what a smaller tp leaves) the best
    speaks for the choice. No candidates: `reason` says why.
    """

    choice: str
    value: str
    alternative: str
    candidates: tuple[Candidate, ...]
    pins: Pins
    reason: str = ""


def degrees(
    evaluator: Evaluator, chosen: Candidate, plan_degrees: dict[str, int], pins: Pins
) -> list[Neighbour]:
    """Neighbours with half or twice a degree, where something else takes up the difference.

    Parameters
    ----------
    evaluator : Evaluator
    chosen : Candidate
    plan_degrees : dict
        dp, tp, pp and cp of the plan.
    pins : Pins
        The user's.
    """
    neighbours = []
    for name in ("dp", "tp", "pp", "cp"):
        if getattr(pins, name) is not None:
            continue
        value = plan_degrees[name]
        for other in dict.fromkeys((value // 2 if value % 2 == 0 else 1, 2 * value)):
            if other == value or other > evaluator.request.cluster.devices:
                continue
            options = []
            for partner in ("dp", "pp", "tp", "cp"):
                size, left = divmod(plan_degrees[partner] * value, other)
                free = partner != name and getattr(pins, partner) is None
                if free and not left and (partner != "cp" or plan_degrees["cp"] > 1):
                    options.append(plan_degrees | {name: other, partner: size})
            shapes = [
                shape for option in options for shape in _shaped(evaluator, chosen, option, pins)
            ]
            reason = "" if shapes else "devices, global batch or blocks do not divide"
            if not options:
                reason = "no other degree can take up the difference"
            neighbours.append(
                Neighbour(
                    choice=name,
                    value=str(value),
                    alternative=str(other),
                    candidates=tuple(dict.fromkeys(shapes)),
                    pins=replace(
                        pins, dp=plan_degrees["dp"], tp=plan_degrees["tp"], cp=plan_degrees["cp"]
                    ),
                    reason=reason,
                )
            )
    return neighbours


def _shaped(
    evaluator: Evaluator, chosen: Candidate, option: dict[str, int], pins: Pins
) -> list[Candidate]:
    """Candidates of these degrees with the chosen schedule, and microbatches as near as can be."""
    request, graph = evaluator.request, evaluator.graph
    can = parallelism_limits(graph)
    pipeline = chosen.pipeline
    asked = replace(
        pins,
        **{name: option[name] for name in ("dp", "tp", "pp", "cp")},  # type: ignore[arg-type]
        schedule=pipeline.schedule if option["pp"] > 1 and pipeline.stages > 1 else pins.schedule,
        interleave=pins.interleave,
        micro_batch=pins.micro_batch,
    )
    try:
        enumerated = candidates(
            asked,
            request.cluster,
            request.global_batch,
            divided_blocks(graph.blocks),
            sequence=request.model.seq_len if can["sequence"] or can["sequence_parallel"] else 0,
            experts=int(can["experts"]),
            runs=request.runs,
        )
    except PlanError:
        return []
    wide = option["dp"]
    near = [
        candidate
        for candidate in enumerated
        if candidate.batch in (chosen.batch, chosen.batch // 2, wide)
    ]
    nearest = min((abs(candidate.batch - chosen.batch) for candidate in enumerated), default=0)
    near += [
        candidate for candidate in enumerated if abs(candidate.batch - chosen.batch) == nearest
    ]
    same = [candidate for candidate in near if candidate.pipeline.interleave == pipeline.interleave]
    return list(placed(tuple(dict.fromkeys(same or near)), request.cluster))


def pipelines(evaluator: Evaluator, chosen: Candidate, dp: int | None) -> list[Neighbour]:
    """Neighbours with another microbatch, schedule or number of chunks a stage."""
    request, pins = evaluator.request, evaluator.request.pins
    pipeline, total = chosen.pipeline, request.global_batch
    neighbours = []

    def add(
        choice: str, value: object, other: object, candidate_or_reason: Candidate | str
    ) -> None:
        neighbours.append(
            Neighbour(
                choice=choice,
                value=str(value),
                alternative=str(other),
                candidates=() if isinstance(candidate_or_reason, str) else (candidate_or_reason,),
                pins=pins,
                reason=candidate_or_reason if isinstance(candidate_or_reason, str) else "",
            )
        )

    if pins.micro_batch is None:
        value = chosen.batch // dp if dp else "mixed"  # samples on one rank
        for batch in (chosen.batch // 2, chosen.batch * 2):
            if not batch or chosen.batch == 2 * batch + 1 or batch % (dp or 1):
                continue
            shape = replace(pipeline, microbatches=total // batch)
            why = _cannot(shape, len(evaluator.graph.blocks))
            if total % batch:
                why = f"microbatches of {batch} samples do not divide the global batch of {total}"
            add(
                "micro_batch",
                value,
                batch // dp if dp else f"{batch} samples on all ranks",
                why or replace(chosen, batch=batch, pipeline=shape),
            )
    if pipeline.stages == 1:
        return neighbours
    if pins.schedule is None:
        for name, schedule in SCHEDULES.items():
            if name != pipeline.schedule and request.runs.has_schedule(name):
                shape = replace(pipeline, schedule=name, interleave=schedule.least_chunks)
                why = _cannot(shape, len(evaluator.graph.blocks))
                add("schedule", pipeline.schedule, name, why or replace(chosen, pipeline=shape))
    if pins.interleave is None and pipeline.record.interleaves:
        for chunks in (pipeline.interleave // 2, pipeline.interleave * 2):
            if chunks > 1:
                shape = replace(pipeline, interleave=chunks)
                why = _cannot(shape, len(evaluator.graph.blocks))
                value = pipeline.interleave
                add("interleave", value, chunks, why or replace(chosen, pipeline=shape))
    return neighbours


def _cannot(pipeline: Pipeline, blocks: int) -> str:
    """Reason that a pipeline cannot be; empty where it can."""
    if pipeline.positions > blocks:
        return f"{pipeline.positions} chunks are more than the {blocks} blocks"
    record, stages = pipeline.record, pipeline.stages
    if record.in_rounds and pipeline.microbatches % stages:
        return f"{pipeline.microbatches} microbatches are no multiple of the stages"
    if pipeline.microbatches < record.least_microbatches(stages):
        least = record.least_microbatches(stages)
        return f"{pipeline.microbatches} microbatches are fewer than the {least} it needs"
    return ""


def storage(
    evaluator: Evaluator, roled: Candidate, plan_settings: dict[str, object], pins: Pins
) -> list[Neighbour]:
    """Neighbours in recomputation, ZeRO, sequence parallelism, rings and offloading."""
    neighbours = []
    asked = evaluator.request.pins

    def add(choice: str, value: object, other: object, shapes: Iterable[Candidate]) -> None:
        neighbours.append(
            Neighbour(
                choice=choice,
                value=str(value),
                alternative=str(other),
                candidates=tuple(shapes),
                pins=replace(pins, **{choice: other}),  # type: ignore[arg-type]
            )
        )

    runs = evaluator.request.runs
    if asked.recompute is None:
        for mode in runs.recompute:
            if mode != plan_settings["recompute"]:
                add("recompute", plan_settings["recompute"] or "mixed", mode, (roled,))
    roles = {axis.role for axis in roled.axes}
    if asked.zero is None and "dp" in roles:
        levels = runs.levels(roled.pipeline.stages)
        for level in (0, 1, 2, 3):
            if level != plan_settings["zero"] and str(level) in levels:
                value = "mixed" if plan_settings["zero"] is None else plan_settings["zero"]
                add("zero", value, level, (roled,))
    if asked.sequence_parallel is None and "tp" in roles and runs.sequence_parallel == "free":
        given = plan_settings["sequence_parallel"]
        for other in (True, False):
            if other is not given:
                value = "mixed" if given is None else given
                add("sequence_parallel", value, other, (roled,))
    on_host = runs.offload and evaluator.request.cluster.cores_per_node is None
    if asked.offload is None and on_host:
        for place in OFFLOADS:
            if place != plan_settings["offload"]:
                add("offload", plan_settings["offload"], place, (roled,))
    if asked.ring is None and "cp" in roles and runs.ring:
        given = plan_settings["ring"]
        for other in (True, False):
            if other is not given:
                add("ring", "mixed" if given is None else given, other, (roled,))
    return neighbours


def neighbour_outcomes(evaluator: Evaluator, neighbours: list[Neighbour]) -> list[list[Outcome]]:
    """Outcomes of every neighbour's candidates, solved together where their pins are alike."""
    request = evaluator.request
    groups: dict[object, list[int]] = {}
    for number, neighbour in enumerate(neighbours):
        if neighbour.candidates:
            groups.setdefault(tuple(sorted(neighbour.pins.document.items(), key=str)), []).append(
                number
            )
    outcomes_by_neighbour: list[list[Outcome]] = [[] for _ in neighbours]
    for numbers in groups.values():
        pins = neighbours[numbers[0]].pins
        asked = evaluator if pins == request.pins else evaluator.under(pins)
        together = dict.fromkeys(c for number in numbers for c in neighbours[number].candidates)
        outcomes = outcomes_of(asked, list(together))
        for number in numbers:
            outcomes_by_neighbour[number] = [
                outcomes[c] for c in neighbours[number].candidates if c in outcomes
            ]
    return outcomes_by_neighbour


def fastest(outcomes: list[Outcome]) -> SolvedPlan | None:
    """Best plan among outcomes."""
    plans = [outcome for outcome in outcomes if isinstance(outcome, SolvedPlan)]
    return min(plans, key=lambda plan: plan.division.step_ns, default=None)
