"""Two kinds of device, simulated: uneven stages gain, and stage fidelity says what ops say."""

from functools import cache

import pytest
from msgspec.structs import replace

from millrace.figures import speed
from millrace.planner.cluster import Device, NodeGroup
from millrace.planner.clusters import parse_cluster
from millrace.planner.plan import Chunk, Plan
from millrace.planner.search import Pins
from millrace.simulator import predict
from tests.plan_requests import plan_of
from tests.small_models import gpt_of

GPT = gpt_of(16, 512, 8, vocab=512, positions=256, precision="bf16")
# Without multiprocessors nothing has a length of its own, which a slower device would not double.
CATALOGUED = parse_cluster("a100-sxm-80gb:2x1")
NODE = replace(CATALOGUED, device=replace(CATALOGUED.device, multiprocessors=0))


def slower(fast: Device) -> Device:
    """Device on which everything takes twice as long."""
    return replace(
        fast,
        name="slow",
        flops_per_s={name: rate / 2 for name, rate in fast.flops_per_s.items()},
        memory_bandwidth_bytes_per_s=fast.memory_bandwidth_bytes_per_s / 2,
        launch_ns=2 * fast.launch_ns,
    )


MIXED = replace(
    NODE,
    name="mixed",
    others=(
        NodeGroup(
            device=slower(NODE.device),
            devices_per_node=2,
            nodes=1,
            intra_node=NODE.intra_node,
            inter_node=NODE.inter_node,
        ),
    ),
)


@cache
def planned(pins: Pins) -> Plan:
    return plan_of(GPT, MIXED, 32, max_gap=0.2, pins=pins)


def evenly(plan: Plan) -> Plan:
    """Plan with as many blocks on every stage."""
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    share = -(-len(blocks) // plan.stages)
    chunks = tuple(
        Chunk(stage=stage, blocks=tuple(blocks[stage * share : (stage + 1) * share]))
        for stage in range(plan.stages)
    )
    return replace(plan, chunks=chunks)


def step_ns(plan: Plan, fidelity: str) -> int:
    return predict(plan, fidelity=fidelity, spans=False).step_time_ns


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_stages_sized_to_their_devices_beat_even_ones(micro_batch: int) -> None:
    plan = planned(Pins(dp=2, tp=1, pp=2, cp=1, schedule="1f1b", micro_batch=micro_batch))
    assert plan.evidence is not None
    predicted = step_ns(plan, "op")
    assert predicted < 0.85 * step_ns(evenly(plan), "op")
    assert predicted == pytest.approx(plan.evidence.objective_s * 1e9, rel=0.1)


@pytest.mark.parametrize(
    "pins",
    [
        Pins(dp=2, tp=1, pp=2, cp=1, schedule="1f1b", micro_batch=1),
        Pins(dp=1, tp=2, pp=2, cp=1, schedule="interleaved-1f1b", interleave=2, micro_batch=2),
        Pins(dp=4, tp=1, pp=1, cp=1, micro_batch=2),
    ],
    ids=["stages", "chunks", "one-stage"],
)
def test_stage_fidelity_says_what_op_fidelity_says_of_two_kinds(pins: Pins) -> None:
    plan = planned(pins)
    assert step_ns(plan, "stage") == pytest.approx(step_ns(plan, "op"), rel=0.02)


def test_mfu_counts_the_peaks_of_both_kinds() -> None:
    plan = planned(Pins(dp=2, tp=1, pp=2, cp=1, schedule="1f1b", micro_batch=1))
    alike = replace(plan, cluster=replace(NODE, nodes=2))
    mixed, fast = speed(plan, 1.0).mfu, speed(alike, 1.0).mfu
    assert mixed is not None
    assert fast is not None
    assert mixed == pytest.approx(fast / 0.75)
