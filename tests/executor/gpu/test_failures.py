"""A run on a device that fails says where and why, and leaves nothing."""

import tempfile

import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.gpu.watchdog import Patience
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.emulated_worker import FaultyDevice, HangingDevice
from tests.executor.gpu.front import emulate_gpus, on_gpu
from tests.executor.gpu.plans import loading, planned, runs_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def run_on(device, pins=()):
    plan, graph, actors = planned("gpt", "fp32", pins)
    run = DeviceRun(device, actors, runs_of(plan, actors))
    loading(graph)(tuple(run.values.values()))
    return run


def test_a_call_that_a_device_refuses_names_rank_and_actor():
    run = run_on(FaultyDevice("layer_norm"), (("pp", 2),))
    with pytest.raises(ExecutorError, match="an illegal address was read") as failed:
        run.train(2, 0)
    assert failed.value.rank == 0
    assert failed.value.actor is not None
    assert "ln" in failed.value.actor
    assert str(failed.value).startswith(f"rank 0, actor `{failed.value.actor}`: ")


class LateDevice(EmulatedDevice):
    """A device that refuses the first call that is captured."""

    def issue(self, call, stream):
        if self._capture is not None:
            raise ExecutorError("this call cannot be captured")
        super().issue(call, stream)


def test_a_call_that_cannot_be_captured_says_so_itself_and_ends_the_capture():
    device = LateDevice()
    run = run_on(device)
    with pytest.raises(ExecutorError, match=r"rank 0, actor `.+`: this call cannot be captured"):
        run.train(3, 0)
    assert device._capture is None
    assert not run.driver.captured


class BrokenDevice(EmulatedDevice):
    """A device that finds out late, as devices do, that something failed."""

    failed = False

    def check(self):
        if self.failed:
            raise ExecutorError("a kernel failed on the device")


def test_what_fails_on_the_device_later_ends_the_run_at_the_next_step():
    device = BrokenDevice()
    run = run_on(device)
    ended = []

    def step_done(step):
        ended.append(step)
        device.failed = step == 1

    with pytest.raises(ExecutorError, match="a kernel failed on the device"):
        run.train(5, 0, step_done=step_done)
    assert ended == [0, 1]


class Endless:
    """Collectives of one rank that others do not come to: some never end on the device."""

    def __init__(self, device, names, endless):
        self._device, self._names, self._endless = device, names, endless
        self.abandoned = None

    def issue(self, rank, actor, call, stream):
        if self._endless(self._names[actor]):
            self._device.hang(stream)

    def check(self):
        """Do nothing: nothing fails by itself."""

    def last_issued(self):
        return ["`the last` of ranks (0, 1) on lane `dp`"]

    def abandon(self, error):
        self.abandoned = error


def overdue(rank, endless, patience, **how):
    """Error and ended steps of one rank of two, where some of its collectives never end."""
    plan, graph, actors = planned("gpt", "fp32", (("dp", 2),))
    device = HangingDevice()
    names = [actor.name for actor in actors.programs[actors.program_of(rank)].actors]
    collectives = Endless(device, names, lambda name: endless(device, name))
    run = DeviceRun(device, actors, {rank: runs_of(plan, actors)[rank]}, collectives)
    loading(graph)(tuple(run.values.values()))
    ended = []
    with pytest.raises(ExecutorError) as failed:
        run.train(5, 0, patience=patience, step_done=ended.append, **how)
    assert collectives.abandoned is failed.value
    assert failed.value.rank == rank
    return failed.value, ended


SHORT = Patience(first_s=0.01, least_s=0.01, steps=0.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_collective_that_never_ends_is_named_by_every_rank_that_waits(rank):
    error, ended = overdue(
        rank, lambda device, name: "step_totals" in name, SHORT, eager=True, spans=True
    )
    assert ended == []
    assert "step_totals" in error.actor
    assert f"begun and not ended: `{error.actor}` on stream `world`" in error.cause
    assert "step 0 did not end within 0.01 s" in error.cause


def test_of_a_captured_step_that_never_ends_the_last_collectives_are_named():
    error, ended = overdue(0, lambda device, name: device._capture is not None, SHORT)
    assert ended == [0]
    assert "step 1 did not end within 0.01 s" in error.cause
    assert "issued last: `the last` of ranks (0, 1) on lane `dp`" in error.cause
    assert "--eager --trace FILE" in error.cause


def test_the_first_step_has_a_limit_of_its_own():
    never = Patience(first_s=0.0, least_s=1e9)
    error, ended = overdue(0, lambda device, name: device._capture is None, never)
    assert ended == []
    assert "step 0 did not end within 0 s" in error.cause


def test_a_process_whose_step_never_ends_is_told_from_and_leaves_nothing(monkeypatch, tmp_path):
    emulate_gpus(monkeypatch, hang="layer_norm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ExecutorError, match=r"rank 0: step 0 did not end within 0\.01 s") as failed:
        on_gpu(planned("gpt", "fp32")[0], 2)
    assert "--eager --trace FILE" in str(failed.value)
    assert not list(tmp_path.iterdir())


def test_a_process_hands_on_what_failed_and_leaves_no_folder(monkeypatch, tmp_path):
    emulate_gpus(monkeypatch, fault="layer_norm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ExecutorError, match=r"rank 0, actor `.*ln.*`: an illegal address was read"):
        on_gpu(planned("gpt", "fp32")[0], 2)
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_killed_ends_the_run_and_leaves_nothing(monkeypatch, tmp_path):
    emulate_gpus(monkeypatch, death="layer_norm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ExecutorError, match="rank 0: the process ended") as failed:
        on_gpu(planned("gpt", "fp32")[0], 2)
    assert failed.value.rank == 0
    assert not list(tmp_path.iterdir())
