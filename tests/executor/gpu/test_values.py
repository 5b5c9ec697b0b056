"""Values go between files and a device, and between devices and CPUs, as between CPUs."""

import numpy as np
import pytest

from millrace.executor.errors import CheckpointError, DataError, ExecutorError
from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.launch import execute
from millrace.executor.training.orders import Saving
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.front import LOOPBACK_EAGER, emulate_gpus, on_gpu
from tests.executor.gpu.plans import planned, reference, runs_of
from tests.executor.gpu.rounding import assert_off_by_rounding_alone

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def test_a_checkpoint_goes_on_between_gpus_and_cpus_under_other_plans(tmp_path, monkeypatch):
    emulate_gpus(monkeypatch)
    alone, _, _ = planned("llama", "fp32")
    replicas, _, _ = planned("llama", "fp32", (("dp", 2), ("zero", 1)))
    split, _, _ = planned("llama", "fp32", (("tp", 2),))
    first = on_gpu(alone, 3, saving=Saving(folder=tmp_path, every=2))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000002", "step-00000003"]
    later = {"saving": Saving(folder=tmp_path, resume=True)}
    second = execute(replicas, steps=1, **later)
    third = on_gpu(split, 1, **later)
    fourth = on_gpu(alone, 2, backend=LOOPBACK_EAGER, **later)
    runs = (first, second, third, fourth)
    assert [run.first_step for run in runs] == [0, 3, 4, 5]
    losses = [loss for run in runs for loss in run.losses]
    norms = [norm for run in runs for norm in run.gradient_norms]
    assert_off_by_rounding_alone(np.array([losses, norms]).T, "llama", "fp32")
    with pytest.raises(CheckpointError, match="is of model `small-llama`, not of `small-bert`"):
        on_gpu(planned("bert", "fp16")[0], 1, **later)


def test_training_that_goes_on_gives_the_bits_of_training_that_never_stopped(tmp_path, monkeypatch):
    """Master weights, moments, clocks and dropout's numbers: all that there is to go on with."""
    emulate_gpus(monkeypatch)
    plan, _, _ = planned("bert", "fp16")
    unbroken = on_gpu(plan, 4, saving=Saving(folder=tmp_path, every=2))
    again = tmp_path / "step-00000004"
    again.rename(tmp_path / "other")
    rest = on_gpu(plan, 2, saving=Saving(folder=tmp_path, resume=True))
    assert rest.losses == unbroken.losses[2:]
    for path in sorted((tmp_path / "other").glob("*.npy")):
        np.testing.assert_array_equal(np.load(path), np.load(again / path.name))


def test_weights_begin_a_run_on_a_gpu_as_on_cpus(tmp_path, monkeypatch):
    emulate_gpus(monkeypatch)
    plan, graph, _ = planned("wide-deep", "fp32")
    tensors = graph.tensors_by_name
    name = next(op.outputs[0] for op in graph.ops if op.kind == "variable")
    values = np.random.default_rng(0).normal(0, 0.02, tensors[name].shape).astype(np.float32)
    file = tmp_path / "weights.npz"
    np.savez(file, **{name: values})
    expected = execute(plan, steps=1, weights=file).losses
    losses = on_gpu(plan, 1, weights=file).losses
    np.testing.assert_allclose(losses, expected, atol=1e-5, rtol=0)
    assert abs(losses[0] - reference("wide-deep", 1).losses[0]) > 1e-4, "weights were not taken"
    np.savez(file, **{name: values[:-1]})
    with pytest.raises(DataError, match=f"`{name}` has shape"):
        on_gpu(plan, 1, weights=file)


@pytest.mark.parametrize(
    ("model", "pins"),
    [("gpt", {"dp": 2, "tp": 2}), ("wide-deep", {"dp": 2, "offload": "optimizer"})],
    ids=str,
)
def test_every_rank_holds_its_part_of_all_that_was_loaded(model, pins):
    """Moments of an offloaded plan in the memory of the node, all else on the device."""
    plan, _, actors = planned(model, "fp32", tuple(pins.items()))
    run = DeviceRun(EmulatedDevice(), actors, runs_of(plan, actors))
    registers = [
        (values, index, register, np.arange(np.prod(register.global_shape)) + 1000 * index)
        for values in run.values.values()
        for index, register in enumerate(values.program.registers)
        if register.initial
    ]
    for values, index, register, numbers in registers:
        values.load(index, numbers.reshape(register.global_shape).astype(register.dtype))
    for values, index, register, numbers in registers:
        shard = values.shard(register)
        part = tuple(
            slice(start, start + size)
            for start, size in zip(shard.offsets, shard.shape, strict=True)
        )
        loaded = numbers.reshape(register.global_shape)
        np.testing.assert_array_equal(values.value(index, 0), loaded[part], err_msg=register.name)


def test_a_value_of_a_wrong_shape_names_its_tensor():
    plan, _, actors = planned("gpt", "fp32", (("dp", 2), ("tp", 2)))
    values = DeviceRun(EmulatedDevice(), actors, runs_of(plan, actors)).values[3]
    index, register = next(
        (i, candidate) for i, candidate in enumerate(values.program.registers) if candidate.initial
    )
    shape = (*register.global_shape, 2)
    with pytest.raises(ExecutorError, match=f"`{register.tensor}` has shape"):
        values.load(index, np.zeros(shape, np.float32))
    with pytest.raises(ExecutorError, match=f"rank 3: `{register.tensor}` has shape"):
        values.write(index, 0, np.zeros(shape, np.float32))
