"""Arenas lay out little more for activations than a simulated step has in use at once."""

import pytest
from msgspec.structs import replace

from millrace.planner.memory import plan_memory
from millrace.planner.plan import Chunk
from millrace.planner.schedules import stage_of
from millrace.simulator import predict
from millrace.simulator.account import account_of
from tests.planner.test_memory import GPT, planned

STAGES = 2


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("zb-h1", 1), ("zb-v", 2)])
def test_activations_have_little_more_room_than_they_use_at_once(
    schedule: str, chunks: int
) -> None:
    model = replace(GPT, config={**GPT.config, "layers": 30})
    plan = planned(STAGES, model, dp=1, tp=1, pp=STAGES, micro_batch=1, schedule="1f1b")
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    size = len(blocks) // (STAGES * chunks)
    rows = [
        tuple(blocks[position * size : (position + 1) * size])
        for position in range(STAGES * chunks)
    ]
    plan = replace(
        plan,
        schedule=schedule,
        interleave=chunks,
        chunks=tuple(
            Chunk(stage=stage_of(schedule, position, STAGES), blocks=row)
            for position, row in enumerate(rows)
        ),
    )
    simulation = predict(plan, fidelity="op", steps=2, detailed=True)
    courses = account_of(plan, simulation).memory
    for said, course in zip(plan_memory(plan), courses, strict=True):
        in_use = max(course.bytes_by_kind["activation"])
        # A received tensor has one place more than liveness needs.
        assert in_use <= said.activation_bytes <= 1.04 * in_use
