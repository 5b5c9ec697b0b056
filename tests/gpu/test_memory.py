"""Memory of a model of a middling size on a GPU, against what its plan says."""

from typing import Any

import pytest

import millrace
from millrace.executor.gpu.memory_use import MemoryUse
from millrace.planner.compile import compile_plan
from tests.executor.gpu.plans import execute_on_device, loading, runs_of
from tests.gpu.commands import CODE_BYTES, middling_plan
from tests.gpu.conftest import EMULATED

NEAR = 0.05  # share of the prediction


@pytest.fixture(scope="module")
def used(device: Any) -> tuple[MemoryUse, int]:
    """Memory after a few steps, and the arena of the plan."""
    if EMULATED:
        pytest.skip("the model is too large for the emulator")
    plan = middling_plan()
    graph = plan.graph
    actors = compile_plan(plan)
    run, _ = execute_on_device(device, actors, runs_of(plan, actors), loading(graph), 5)
    return run.memory()[0], actors.programs[0].memory_bytes


def test_the_arena_is_the_plans_to_the_byte(used: tuple[MemoryUse, int]) -> None:
    use, arena_bytes = used
    assert use.regions["arena"] == arena_bytes


def test_what_lies_beside_the_arena_is_little(used: tuple[MemoryUse, int]) -> None:
    use, arena_bytes = used
    assert sum(use.regions.values()) <= arena_bytes * (1 + NEAR)


def test_all_that_is_in_use_is_not_more_than_predicted(used: tuple[MemoryUse, int]) -> None:
    predicted = millrace.simulate(middling_plan()).memory_bytes_max
    assert used[0].device_used_bytes <= predicted * (1 + NEAR) + CODE_BYTES


def test_no_more_than_code_is_taken_after_the_first_captured_step(
    used: tuple[MemoryUse, int],
) -> None:
    assert used[0].grown_bytes <= CODE_BYTES
