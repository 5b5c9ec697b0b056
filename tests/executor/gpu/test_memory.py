"""What ranks take on a device is what their plan says, and what does not fit is refused first."""

import re

import pytest

from millrace.executor.gpu.running import DeviceRun
from millrace.planner.errors import InfeasibleError
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.front import emulate_gpus, on_gpu
from tests.executor.gpu.plans import execute_on_device, loading, planned, runs_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

PLANS = [("gpt", {}), ("gpt", {"dp": 2, "tp": 2}), ("resnet", {"pp": 2})]


@pytest.mark.parametrize(("model", "pins"), PLANS, ids=str)
def test_arenas_are_as_large_as_the_plan_says(model, pins):
    plan, graph, actors = planned(model, "fp32", tuple(pins.items()))
    run, _ = execute_on_device(EmulatedDevice(), actors, runs_of(plan, actors), loading(graph), 3)
    for rank, use in run.memory().items():
        program = actors.programs[actors.program_of(rank)]
        assert use.regions["arena"] == program.memory_bytes
        assert set(use.regions) == {"arena", "workspace", "tables", "stage", "control"}


def test_nothing_is_allocated_after_the_first_step():
    plan, graph, actors = planned("gpt", "bf16")
    device = EmulatedDevice()
    run = DeviceRun(device, actors, runs_of(plan, actors))
    loading(graph)(tuple(run.values.values()))
    before = device.allocations
    run.train(4, 0, spans=True)
    assert device.allocations == before
    use = run.memory()[0]
    assert use.grown_bytes == 0
    assert use.device_used_bytes >= sum(use.regions.values())


def test_a_run_of_one_step_has_not_grown():
    plan, graph, actors = planned("gpt", "fp32")
    run, _ = execute_on_device(EmulatedDevice(), actors, runs_of(plan, actors), loading(graph), 1)
    assert run.memory()[0].grown_bytes == 0


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
    emulate_gpus(monkeypatch, bytes=2**18)
    plan, _, _ = planned("gpt", "fp32")
    with pytest.raises(InfeasibleError, match=r"rank 0 needs .* which has 256.00 KiB free"):
        on_gpu(plan, 2)


def test_the_parent_is_told_what_memory_went_to(monkeypatch):
    emulate_gpus(monkeypatch)
    plan, _, actors = planned("gpt", "fp32")
    found = on_gpu(plan, 2).memory
    assert found is not None
    assert found["arena"] == actors.programs[0].memory_bytes
    assert found["grown"] == 0
    assert found["device"] >= found["arena"] + found["workspace"] + found["tables"]
