"""Whole steps on an emulated device: command buffers, kernels, meetings, capture, all as on a GPU.

Every model trains by the sources and calls that a GPU gets, on streams that go on in a random
order, and must find the losses of the NumPy reference.
"""

from functools import cache

import numpy as np
import pytest

from millrace.executor.cuda.rank import RankCalls
from millrace.executor.streams.commands import command_buffer
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import (
    batch_of,
    execute_on_device,
    loading,
    planned,
    reference,
    runs_of,
)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS = 3  # fired eagerly, captured and replayed, replayed again
LONG = 20
ALONE = ("gpt", "llama", "bert", "resnet", "wide-deep", "mixtral")
# Precision by model: what fp16 adds to bf16, the loss scale, is the same for every family.
NARROW = [*((model, "bf16") for model in ALONE), *((model, "fp16") for model in ("gpt", "resnet"))]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """What the models launch on one device in any precision, compiled once for all tests."""
    functions = {}
    for model, precision in [*((model, "fp32") for model in ALONE), *NARROW]:
        plan, _, actors = planned(model, precision)
        calls = RankCalls(actors, 0, command_buffer(actors, (0,)), runs_of(plan, actors)[0])
        for source, names in calls.functions().items():
            functions.setdefault(source, set()).update(names)
    Emulator(functions)


def train(
    model,
    precision,
    pins=(),
    *,
    steps=STEPS,
    seed=0,
    loss_scale=2.0**10,
    checked=False,
    option=0,
    **how,
):
    plan, graph, actors = planned(model, precision, pins)
    runs = runs_of(plan, actors, loss_scale=loss_scale)
    device = EmulatedDevice(seed, checked=checked, option=option)
    run, recordings = execute_on_device(device, actors, runs, loading(graph), steps, **how)
    found = np.array([loss / count for loss, count, _ in runs[0].totals])
    return run, recordings, found


@cache
def trained(model, precision):
    """A model trained on one device for so long that what is wrong grows."""
    return train(model, precision, steps=LONG)


@pytest.mark.parametrize("model", ALONE)
def test_losses_in_float32_equal_the_reference(model):
    _, _, found = trained(model, "fp32")
    np.testing.assert_allclose(found, reference(model, LONG).losses, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("model", "precision"), NARROW)
def test_losses_in_16_bits_are_near_the_reference(model, precision):
    run, _, found = trained(model, precision)
    expected = reference(model, LONG, batch_of(model, precision)).losses
    np.testing.assert_allclose(found, expected, atol=2e-2, rtol=0)
    history = run.regions.history(0)[:LONG]
    assert (history[:, 3] > 1).all() == (precision == "fp16")
    assert history[:, 4].all()


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_a_captured_step_gives_the_bits_of_eager_firing(model):
    _, _, captured = trained(model, "bf16")
    run, recordings, eager = train(model, "bf16", seed=2, eager=True, spans=True)
    np.testing.assert_array_equal(captured[:STEPS], eager)
    assert not run.driver.captured
    assert (recordings[0].ends_ns > recordings[0].starts_ns).all()


@pytest.mark.parametrize(("model", "precision"), [("gpt", "bf16"), ("mixtral", "fp32")])
def test_kernels_of_a_step_touch_only_what_is_allocated_and_meet_at_barriers(model, precision):
    _, _, found = train(model, precision, steps=1, checked=True)
    np.testing.assert_allclose(found, reference(model, STEPS).losses[:1], atol=2e-2, rtol=0)


PARALLEL = [
    ("gpt", {"tp": 2, "pp": 2}),
    ("llama", {"dp": 2, "tp": 2, "sequence_parallel": True}),
    ("llama", {"cp": 2}),
    ("mixtral", {"dp": 2, "ep": 2, "zero": 1}),
    ("gpt", {"dp": 2, "zero": 3}),
    ("bert", {"dp": 2}),
    ("resnet", {"dp": 2}),
    ("resnet", {"pp": 2}),
    ("wide-deep", {"tp": 2}),
    ("face", {"dp": 2, "tp": 2}),
    ("t5", {"pp": 2}),
    ("deepseek", {"dp": 2, "pp": 2, "ep": 2}),
]


@pytest.mark.parametrize(
    ("model", "pins"), PARALLEL, ids=lambda x: x if isinstance(x, str) else str(x)
)
def test_ranks_on_one_device_equal_the_reference(model, pins):
    run, _, found = train(model, "fp32", tuple(pins.items()), seed=len(pins))
    assert len(run.ranks) > 1
    np.testing.assert_allclose(found, reference(model, STEPS).losses, atol=1e-3, rtol=0)
