"""What a model of a middling size takes on a GPU, against what its plan says."""

from typing import Any

import pytest

from executor.gpu.memory_use import MemoryUse
from executor.gpu.running import execute_on_device
from planner.compile import compile_plan
from planner.plan import plan_graph
from tests.executor.gpu.plans import loading, runs_of
from tests.gpu.commands import middling_plan
from tests.gpu.conftest import EMULATED

NEAR = 0.05  # of the prediction


@pytest.fixture(scope="module")
def used(device: Any) -> tuple[MemoryUse, int, int]:
    """Memory after a few steps, the arena of the plan, and what the libraries hold beside it."""
    if EMULATED:
        pytest.skip("the model is too large for the emulator")
    plan = middling_plan()
    graph = plan_graph(plan)
    actors = compile_plan(plan, graph)
    run, _ = execute_on_device(device, actors, runs_of(plan, actors), loading(graph), 5)
    use = run.memory()[0]
    beside = use.device_used_bytes - use.context_bytes - sum(use.regions.values())
    return use, actors.programs[0].memory_bytes, beside


def test_the_arena_is_the_plans_to_the_byte(used: tuple[MemoryUse, int, int]) -> None:
    use, arena_bytes, _ = used
    assert use.regions["arena"] == arena_bytes


def test_arena_and_what_lies_beside_it_are_near_the_plans_prediction(
    used: tuple[MemoryUse, int, int],
) -> None:
    use, _, beside = used
    from millrace import api

    predicted = api.simulate(middling_plan()).memory_bytes_max
    assert sum(use.regions.values()) + beside <= predicted * (1 + NEAR)
    assert use.regions["arena"] + use.regions["workspace"] <= predicted * (1 + NEAR)
    assert use.regions["arena"] + use.regions["workspace"] + use.context_bytes >= predicted * (
        1 - NEAR - 0.15  # a context may be that much smaller than what the plan sets aside
    )


def test_nothing_is_taken_after_the_first_captured_step(
    used: tuple[MemoryUse, int, int],
) -> None:
    assert used[0].grown_bytes == 0
