"""Times of blocks, measured on one plan: the step of that plan, and of other divisions."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.decoder.sizes import DEMO
from millrace.planner.memory import plan_memory
from millrace.planner.plan import Chunk, Plan
from millrace.planner.schedules import stage_of
from millrace.planner.search import Pins
from millrace.planner.search.stages import Pipeline
from millrace.planner.search.stages.measured_steps import measured_step_ns
from millrace.simulator import predict_fast
from millrace.simulator.chunks.block_times import block_times
from tests.plan_requests import plan_of

GPT: Config = {
    "layers": 14,
    "hidden": 1024,
    "heads": 16,
    "ffn_hidden": 4096,
    "vocab": 8192,
    "positions": 512,
}
SCHEDULES = {"1f1b": 1, "zb-h1": 1, "zb-v": 2, "interleaved-1f1b": 4, "gpipe": 1, "dualpipe-v": 2}


# Large blocks without experts come first, as in Kimi K2 and DeepSeek-V3.
EXPERTS: Config = dict(DEMO["mixtral-demo"]) | {
    "layers": 15,
    "hidden": 1024,
    "head_dim": 64,
    "heads": 16,
    "kv_heads": 16,
    "ffn_hidden": 32768,
    "expert_hidden": 2048,
    "positions": 512,
}


def planned(schedule: str, spec: ModelSpec | None = None, tp: int = 1) -> Plan:
    spec = spec or ModelSpec(name="gpt", family="gpt", config=GPT, seq_len=512, precision="bf16")
    rows = SCHEDULES[schedule]
    pins = Pins(dp=2 // tp, tp=tp, pp=4, micro_batch=8 // tp, schedule=schedule, interleave=rows)
    return plan_of(spec, "a100-sxm-80gb:8x1", 256, max_gap=5.0, pins=pins)


def redivided(plan: Plan, counts: tuple[int, ...]) -> Plan:
    """Plan with `counts` blocks in its chunks, one after the other."""
    choices = [choice for chunk in plan.chunks for choice in chunk.blocks]
    ends = [sum(counts[:position]) for position in range(len(counts))]
    chunks = tuple(
        Chunk(
            stage=stage_of(plan.schedule, position, plan.stages), blocks=tuple(choices[begin:end])
        )
        for position, (begin, end) in enumerate(pairwise([*ends, len(choices)]))
    )
    return replace(plan, chunks=chunks)


def measured_ns(plan: Plan, by: Plan) -> float:
    """Step time of `plan` [ns], by the block times of the plan `by`."""
    graph = by.graph
    times = block_times(by)
    pipeline = Pipeline(
        schedule=plan.schedule,
        stages=plan.stages,
        interleave=plan.interleave,
        microbatches=plan.microbatches,
    )
    kinds = [
        [(graph.templates[choice.block], choice.variant) for choice in c.blocks]
        for c in plan.chunks
    ]
    return measured_step_ns(kinds, pipeline, times)


def simulated_ns(plan: Plan) -> int:
    return predict_fast(plan, plan_memory(plan), "stage").step_time_ns


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_block_times_make_the_simulated_step(schedule: str):
    plan = planned(schedule)
    assert measured_ns(plan, plan) == pytest.approx(simulated_ns(plan), rel=0.02)


def test_block_times_tell_what_pairs_hide():
    plan = planned("dualpipe-v", tp=2)
    paired = measured_ns(plan, plan)
    assert paired == pytest.approx(simulated_ns(plan), rel=0.02)
    assert paired < 0.98 * measured_ns(replace(plan, schedule="zb-v"), plan)


def test_block_times_hold_for_another_division():
    plan = planned("1f1b")
    other = redivided(plan, (6, 2, 5, 3))
    assert measured_ns(other, plan) == pytest.approx(simulated_ns(other), rel=0.02)
    assert simulated_ns(other) > 1.1 * simulated_ns(plan)


@pytest.mark.parametrize("dense", [1, 3])
def test_blocks_of_short_runs_are_told_from_what_lies_beside_them(dense: int):
    config = EXPERTS | {"dense_layers": tuple(range(dense))}
    spec = ModelSpec(name="experts", family="decoder", config=config, seq_len=512, precision="bf16")
    plan = planned("1f1b", spec)
    for counts in ((1, 4, 6, 6), (4, 5, 4, 4)):  # the embedding alone, and beside all of them
        other = redivided(plan, counts)
        assert measured_ns(other, plan) == pytest.approx(simulated_ns(other), rel=0.02)
