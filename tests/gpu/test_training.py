"""Whole training on a GPU: the losses of the NumPy reference, and the same bits every time."""

from typing import Any

import numpy as np
import pytest

from tests.executor.gpu.plans import (
    batch_of,
    execute_on_device,
    loading,
    planned,
    reference,
    runs_of,
)
from tests.executor.gpu.test_training import ALONE, PARALLEL
from tests.gpu.conftest import EMULATED

STEPS, PARALLEL_STEPS = (2, 2) if EMULATED else (20, 4)
NEAR = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 2e-2, "fp16": 2e-2}  # tf32 keeps as many bits as fp16
LOSS_SCALE = 2.0**10


@pytest.fixture(scope="module")
def functions(device: Any, compiled: None) -> None:
    """All that small models launch, loaded from CuPy's cache one by one."""
    if not hasattr(device, "use"):
        return
    from tests.executor.cuda.launched import launched_functions

    for source, names in launched_functions().items():
        for name in sorted(names):
            device.load({source: [name]})


def train(device: Any, model: str, precision: str, pins: Any = (), **how: Any) -> Any:
    plan, graph, actors = planned(model, precision, pins)
    changes: dict[str, Any] = {"loss_scale": LOSS_SCALE}
    if precision == "tf32":
        changes["arithmetic"] = "tf32"
    runs = runs_of(plan, actors, **changes)
    steps = how.pop("steps", STEPS)
    run, recordings = execute_on_device(device, actors, runs, loading(graph), steps, **how)
    return run, recordings, np.array([loss / count for loss, count, _ in runs[0].totals])


@pytest.mark.parametrize("precision", list(NEAR))
@pytest.mark.parametrize("model", ALONE)
def test_losses_equal_the_reference_captured_and_eager(
    model: str, precision: str, device: Any, functions: None
) -> None:
    run, _, captured = train(device, model, precision)
    assert run.driver.captured
    expected = reference(model, STEPS, batch_of(model, precision)).losses
    np.testing.assert_allclose(captured, expected, atol=NEAR[precision], rtol=0)
    history = run.regions.history(0)[:STEPS]
    assert history[:, 4].all(), "a step was skipped"
    _, recordings, eager = train(device, model, precision, eager=True, spans=True)
    np.testing.assert_array_equal(captured, eager)
    assert (recordings[0].ends_ns >= recordings[0].starts_ns).all()


@pytest.mark.parametrize("model", ALONE)
def test_two_runs_leave_the_same_bits(model: str, device: Any, functions: None) -> None:
    runs = [train(device, model, "bf16") for _ in range(2)]
    np.testing.assert_array_equal(runs[0][2], runs[1][2])
    for values, others in zip(runs[0][0].values.values(), runs[1][0].values.values(), strict=True):
        for index, register in enumerate(values.program.registers):
            if register.initial:
                slot = STEPS % register.slots
                first, second = values.value(index, slot), others.value(index, slot)
                assert first.tobytes() == second.tobytes(), register.tensor


@pytest.mark.parametrize(
    ("model", "pins"), PARALLEL, ids=lambda x: x if isinstance(x, str) else str(x)
)
def test_all_ranks_on_one_gpu_equal_the_reference(
    model: str, pins: dict[str, object], device: Any, functions: None
) -> None:
    run, _, losses = train(device, model, "fp32", tuple(pins.items()), steps=PARALLEL_STEPS)
    assert len(run.ranks) > 1
    assert run.driver.captured
    expected = reference(model, PARALLEL_STEPS).losses
    np.testing.assert_allclose(losses, expected, atol=1e-3, rtol=0)
