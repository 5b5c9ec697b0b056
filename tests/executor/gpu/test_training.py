"""Whole steps on an emulated device: command buffers, kernels, meetings, capture, all as on a GPU.

Every model trains by the sources and calls that a GPU gets, on streams that go on in a random
order, and must find what NumPy finds on a single device: all but for rounding in float64, and in
fewer bits as near to it as NumPy in those bits.
"""

import numpy as np
import pytest

from millrace.executor.cuda.calls import Call, KernelAlternatives
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.rounding import assert_off_by_rounding_alone
from tests.executor.gpu.trained import (
    PARALLEL_STEPS,
    STEPS,
    assert_equal_to_a_single_device,
    train,
)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

ALONE = ("gpt", "llama", "bert", "resnet", "wide-deep", "mixtral")
LIBRARY, OURS = 0, -1  # options of choices
# A GPT of two layers is trained in bf16 by either option in `test_padded_rows.py`. The loss scale,
# which fp16 adds to bf16, is the same for every family.
NARROW = [*((model, "bf16") for model in ALONE if model != "gpt"), ("llama", "fp16")]
TRIED = ("bert", "resnet", "mixtral")  # all there is to choose from: products, attention, images


@pytest.mark.parametrize(
    ("model", "option"), [(model, OURS if model == "gpt" else LIBRARY) for model in ALONE]
)
def test_training_in_float32_is_off_by_rounding_alone(model, option):
    trained = train(model, "fp32", device=EmulatedDevice(option=option))
    assert_off_by_rounding_alone(trained.totals, model, "fp32")


class TryingDevice(EmulatedDevice):
    """A device that carries out all ways of every choice before it is picked, as for timing."""

    def __init__(self) -> None:
        super().__init__(2, option=LIBRARY)
        self.tried = 0

    def prepare(self, call: Call, stream: int) -> None:
        if isinstance(call, KernelAlternatives):
            for option in call.options:
                for option_call in option:
                    self.issue(option_call, stream)
                    self.tried += 1
        super().prepare(call, stream)


@pytest.mark.parametrize(("model", "precision"), NARROW)
def test_training_in_16_bits_is_off_by_rounding_captured_or_eager_and_with_ways_tried(
    model, precision
):
    """All ways are tried in place before values are loaded, which must change no bit."""
    trained = train(model, precision, device=EmulatedDevice(option=LIBRARY))
    assert_off_by_rounding_alone(trained.totals, model, precision)
    assert trained.run.driver.captured
    assert len(trained.recordings[0].step_end_ns) == STEPS
    assert len(trained.recordings[0].starts_ns) == 0, "no spans were asked for"
    history = trained.run.regions.history(0)[:STEPS]
    assert (history[:, 3] > 1).all() == (precision == "fp16")
    assert history[:, 4].all(), "a step was skipped"
    if precision == "bf16" and model in TRIED:
        device = TryingDevice()
        eager = train(model, precision, device=device, eager=True, spans=True)
        assert not eager.run.driver.captured
        assert (eager.recordings[0].ends_ns > eager.recordings[0].starts_ns).all()
        assert device.tried > 0
        np.testing.assert_array_equal(eager.totals, trained.totals)
        for name, value in trained.variables().items():
            np.testing.assert_array_equal(eager.variables()[name], value, err_msg=str(name))


def test_kernels_of_a_step_touch_only_what_is_allocated_and_meet_at_barriers():
    """Products, attention and rows in bf16 are checked with padded rows (`test_padded_rows.py`)."""
    trained = train("mixtral", "fp32", device=EmulatedDevice(checked=True, option=LIBRARY), steps=1)
    assert_off_by_rounding_alone(trained.totals, "mixtral", "fp32")


EVERYWHERE = [
    ("llama", {"dp": 2, "tp": 2, "sequence_parallel": True}),
    ("llama", {"cp": 2}),
    ("mixtral", {"dp": 2, "ep": 2, "zero": 1}),
    ("resnet", {"dp": 2}),
    ("wide-deep", {"tp": 2}),
    ("face", {"dp": 2, "tp": 2}),
    ("t5", {"pp": 2}),
    ("deepseek", {"dp": 2, "pp": 2, "ep": 2}),
]
PARALLEL = [  # of a GPU (`tests/gpu/test_training.py`)
    *EVERYWHERE,
    ("gpt", {"tp": 2, "pp": 2}),
    ("gpt", {"dp": 2, "zero": 3}),
    ("bert", {"dp": 2}),
    ("resnet", {"pp": 2}),
]
# `test_timeline.py` does the same for tp and pp at once.
EMULATED = [
    *EVERYWHERE,
    ("bert", {"dp": 2, "zero": 3}),
    ("wide-deep", {"dp": 2, "offload": "optimizer"}),
]


@pytest.mark.parametrize(
    ("model", "pins"), EMULATED, ids=lambda x: x if isinstance(x, str) else str(x)
)
def test_ranks_on_one_device_equal_a_single_device(model, pins):
    device = EmulatedDevice(len(pins), option=LIBRARY)
    pinned = tuple(pins.items())
    trained = train(model, "fp64", pinned, device=device, steps=PARALLEL_STEPS)
    assert len(trained.run.ranks) > 1
    losses = trained.totals[:, 0]
    assert_equal_to_a_single_device(model, losses, trained.run.values, PARALLEL_STEPS)
