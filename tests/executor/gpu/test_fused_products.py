"""A plan whose products have epilogues trains as the reference does where its library has none."""

import numpy as np
import pytest

from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import execute_on_device, loading, planned, reference, runs_of

STEPS = 3


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_products_and_what_follows_on_them_train_in_turn() -> None:
    plan, graph, actors = planned("gpt", "fp32")
    runs = runs_of(plan, actors)
    device = EmulatedDevice(1, option=-1)
    execute_on_device(device, actors, runs, loading(graph), STEPS)
    found = np.array([loss / count for loss, count, _ in runs[0].totals])
    np.testing.assert_allclose(found, reference("gpt", STEPS).losses, atol=1e-3, rtol=0)
