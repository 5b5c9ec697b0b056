"""Memory: what does not fit on a device is refused first, and what a run took is told.

That ranks take what their plan says, and nothing after the first step, every run of `trained.py`
sees to.
"""

import re

import pytest

from millrace.executor.gpu.device_run import DeviceRun
from millrace.planner.errors import InfeasibleError
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.front import emulate_gpus, on_gpu
from tests.executor.gpu.plans import planned, runs_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def test_what_does_not_fit_is_refused_before_anything_is_allocated():
    plan, _, actors = planned("gpt", "fp32", (("dp", 2), ("tp", 2)))
    device = EmulatedDevice(total_bytes=2**20)
    with pytest.raises(InfeasibleError) as refused:
        DeviceRun(device, actors, runs_of(plan, actors))
    assert device.allocations == 0
    said = str(refused.value)
    assert "4 rank(s) share emulated device, which has 1.00 MiB free" in said
    assert re.search(r"rank \d needs [\d.,]+ [KM]iB \(arena [\d.,]+ [KM]iB, ", said)
    assert re.search(r"\([\d.,]+ [KM]iB short\)", said)


def test_a_process_that_cannot_hold_its_rank_answers_no(monkeypatch):
    emulate_gpus(monkeypatch, bytes=2**14)
    plan, _, _ = planned("wide-deep", "fp32")
    with pytest.raises(InfeasibleError, match=r"rank 0 needs .* which has 16.00 KiB free"):
        on_gpu(plan, 2)


def test_the_parent_is_told_what_memory_went_to(monkeypatch):
    emulate_gpus(monkeypatch)
    plan, _, actors = planned("wide-deep", "fp32")
    memory = on_gpu(plan, 2).memory
    assert memory is not None
    assert memory["arena"] == actors.programs[0].memory_bytes
    assert memory["grown"] == 0
    assert memory["device"] >= memory["arena"] + memory["workspace"] + memory["tables"]
