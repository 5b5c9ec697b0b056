"""Plans whose products have epilogues train as the reference does, in one call or in parts."""

import numpy as np
import pytest
from msgspec.structs import replace

from planner.compile import compile_plan
from planner.plan import FUSED
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import execute_on_device, loading, planned, reference, runs_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS = 3


@pytest.mark.parametrize("option", [0, -1], ids=["one call", "in turn"])
@pytest.mark.parametrize(("model", "precision"), [("gpt", "fp32"), ("gpt", "bf16")])
def test_products_with_epilogues_train(model: str, precision: str, option: int) -> None:
    plan, graph, _ = planned(model, precision)
    actors = compile_plan(replace(plan, fusion=FUSED), graph)
    runs = runs_of(plan, actors)
    device = EmulatedDevice(1, option=option)
    execute_on_device(device, actors, runs, loading(graph), STEPS)
    found = np.array([loss / count for loss, count, _ in runs[0].totals])
    near = 1e-3 if precision == "fp32" else 2e-2
    np.testing.assert_allclose(found, reference(model, STEPS).losses, atol=near, rtol=0)
