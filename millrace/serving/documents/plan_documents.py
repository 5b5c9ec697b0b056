"""Documents about a plan that a page shows: decisions, figures, stages, layouts, the proof."""

from collections.abc import Mapping
from typing import Any

from millrace.drawing import headline, question_text, repeated_template, sbp_rows
from millrace.figures import idle_devices, plan_summary
from millrace.planner.parallel_degrees import axis_roles
from millrace.planner.plan import Plan
from millrace.published.step_time_range import plan_range
from millrace.tables.ranges import recomputed_layers, stage_layers
from millrace.tables.stages import node_of

ALTERNATIVES_MAX = 12


def plan_document(plan: Plan, question: Mapping[str, Any]) -> dict[str, Any]:
    """Document of a plan, as a page shows it before anything is simulated.

    Parameters
    ----------
    plan : Plan
        With figures and evidence.
    question : mapping
        The question that it answers, as it was asked.
    """
    summary = plan_summary(plan)
    step_time_s = summary["step_time_s"]
    evidence = plan.evidence
    return {
        "question": dict(question),
        "headline": headline(plan),
        "question_text": question_text(plan),
        "summary": summary | {"alternatives": summary["alternatives"][:ALTERNATIVES_MAX]},
        "range": plan_range(plan, step_time_s)[1] if step_time_s else None,
        "candidates": None if evidence is None else evidence.candidates,
        "pruned": None if evidence is None else evidence.pruned,
        "idle": idle_devices(plan),
        "overlap": plan.cluster.software.overlap,
        "cluster": {
            "name": plan.cluster.name,
            "device": plan.cluster.device.name,
            "devices": plan.cluster.devices,
            "nodes": sum(group.nodes for group in plan.cluster.groups),
            "devices_per_node": plan.cluster.devices_per_node,
            "memory_bytes": plan.cluster.device.memory_bytes,
            "limit_bytes": plan.memory_limit_bytes or plan.cluster.device.memory_bytes,
            "torus": None if plan.cluster.torus is None else list(plan.cluster.torus.dims),
        },
        "axes": [
            {"name": axis.name, "size": axis.size, "roles": sorted(roles)}
            for axis, roles in zip(plan.mesh.axes, axis_roles(plan, plan.graph), strict=True)
        ],
        "stages": [_stage(plan, stage, summary) for stage in range(plan.stages)],
        "block": {
            "template": repeated_template(plan),
            "axes": list(plan.mesh.names),
            "ops": sbp_rows(plan, repeated_template(plan)),
        },
    }


def _stage(plan: Plan, stage: int, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Row of a stage: its ranks, layers, memory by kind and busy share."""
    first, last = stage * plan.mesh.devices, (stage + 1) * plan.mesh.devices - 1
    by_kind = summary.get("memory_by_kind") or []
    busy = summary.get("busy_by_stage") or []
    return {
        "stage": stage,
        "first_rank": first,
        "last_rank": last,
        "first_node": node_of(plan, first),
        "last_node": node_of(plan, last),
        "layers": stage_layers(plan, stage),
        "recompute": recomputed_layers(plan, stage),
        "memory_by_kind": by_kind[stage] if len(by_kind) == plan.stages else None,
        "busy": busy[stage] if len(busy) == plan.stages else None,
    }
