"""Resident memory: workspaces by device, tensors between stages, and the allocator's rounding."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from millrace.models.graph import Phase
from millrace.planner.clusters import reference_node
from millrace.planner.clusters.cluster_files import resized
from millrace.planner.compile.placement import place
from millrace.planner.frameworks.peak_memory import framework_stages, habit_of
from millrace.planner.frameworks.resident_memory import (
    MIB,
    Workspaces,
    boundary_bytes,
    gather_bytes,
    rounding_bytes,
    routing_bytes,
    workspace_bytes,
)
from millrace.planner.plan import Plan
from millrace.planner.search import search
from tests.planner.frameworks.test_search_for_frameworks import asked, asked_of_experts


def piped(device: str = "h100", **pins: object) -> Plan:
    plan = search(asked("megatron-core", 2, pp=2, micro_batch=4, **pins))
    node = changed(resized(reference_node(device), 2), software=plan.cluster.software)
    return changed(plan, cluster=node)


@pytest.mark.parametrize(
    ("device", "mebibytes"), [("a100", 2 * 8.125 + 4), ("h100", 96), ("b200", 2 * 8.125 + 32)]
)
def test_workspaces_are_those_of_the_device(device: str, mebibytes: float):
    plan = piped(device)
    assert workspace_bytes(Workspaces(engine=True), plan) == mebibytes * MIB
    later = Workspaces(engine=True, since_2026=True)
    assert workspace_bytes(later, plan) == (96 if device == "b200" else mebibytes) * MIB
    said = Workspaces(cublas_bytes=32 * MIB)
    assert workspace_bytes(said, plan) == 64 * MIB


def test_every_chunk_of_a_later_stage_keeps_what_it_exchanged():
    plan = piped(interleave=1)
    (stage,) = boundary_bytes(plan, place(plan, plan.graph)).items()
    assert stage == (1, 2 * 2 * 4 * plan.model.seq_len * 32)
    chunks = piped(interleave=3)
    sizes = boundary_bytes(chunks, place(chunks, chunks.graph))
    assert sizes[1] == 3 * stage[1]
    assert sizes[0] == 2 * stage[1]


@pytest.mark.parametrize("gathers", [False, True])
def test_dispatchers_keep_how_they_sent_the_tokens_of_the_last_microbatch(gathers: bool):
    plan = search(asked_of_experts("megatron-core", ep=4, tp=1, pp=1, micro_batch=2))
    software = changed(plan.cluster.software, gathers=gathers)
    plan = changed(plan, cluster=changed(plan.cluster, software=software))
    placed = place(plan, plan.graph)
    dispatches = [each.op for each in placed if each.op.kind == "dispatch"]
    layers = sum(op.phase is Phase.FORWARD for op in dispatches)
    tokens = 2 * plan.model.seq_len
    experts, chosen = (
        plan.graph.tensors_by_name[name].shape[end]
        for name, end in ((dispatches[0].outputs[0], 0), (dispatches[0].inputs[1], -1))
    )
    order = (8 + 4) * tokens * chosen if gathers else 8 * tokens * chosen + 4 * tokens * experts
    routed = routing_bytes(plan, placed, fused_permutation=False)
    assert routed[0] == layers * (tokens * experts + order)
    width = plan.graph.tensors_by_name[dispatches[0].inputs[0]].shape[-1]
    assert gather_bytes(plan, placed)[0] == (4 * tokens * width * 2 if gathers else 0)


def test_weights_outside_of_layers_may_stay_gathered():
    plan = search(asked_of_experts("megatron-core", ep=1, tp=1, pp=1, micro_batch=2))
    habit = habit_of(plan)
    assert habit is not None
    habit = replace(habit, zero=3)
    (bare,) = framework_stages(plan, habit)
    gathering = replace(habit, framework=changed(habit.framework, gathered_outside=True))
    (stage,) = framework_stages(plan, gathering)
    config = plan.model.config
    tables = 2 * int(config["vocab"]) * int(config["hidden"]) + int(config["hidden"])
    assert stage.resident_bytes - bare.resident_bytes == 2 * tables


def test_what_stays_is_part_of_the_state_and_of_the_arena():
    plan = piped(interleave=1)
    habit = habit_of(plan)
    assert habit is not None
    without = replace(habit, framework=changed(habit.framework, workspaces=None))
    stages = zip(framework_stages(plan, habit), framework_stages(plan, without), strict=True)
    for stage, bare in stages:
        assert stage.resident_bytes > bare.resident_bytes
        more = stage.resident_bytes - bare.resident_bytes
        assert stage.state_bytes - bare.state_bytes == more == stage.arena_bytes - bare.arena_bytes
        assert stage.by_kind["resident"] == stage.resident_bytes


def test_small_tensors_are_rounded_by_nothing_and_large_ones_by_at_most_a_mebibyte():
    assert rounding_bytes([MIB, 1000]) == 0
    assert rounding_bytes([12 * MIB - 5]) == 5
    assert rounding_bytes([10 * MIB + 1]) == 0, "what is left above 1 MiB is given to others"
