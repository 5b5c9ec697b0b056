"""Small models trained on emulated devices: one run of a plan for all that look at the result."""

from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.kernels.context import Array
from millrace.executor.recording import Recording
from millrace.executor.shards import RankValues
from millrace.planner.actors.graph import ActorGraph
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import (
    Pinned,
    loading,
    planned,
    reference,
    runs_of,
)
from tests.executor.gpu.rounding import losses_and_norms

STEPS = 4  # fired eagerly, captured and replayed, replayed in either half of the stage again
PARALLEL_STEPS = 2  # fired eagerly, captured and replayed
EXACT = 1e-9  # relative: what is left of float64 after sums in another order


class TrainedRun(NamedTuple):
    """A run that has ended, and what its steps told."""

    device: EmulatedDevice
    run: DeviceRun
    actors: ActorGraph
    recordings: list[Recording]
    totals: Array  # per step of rank 0: the loss, and the norm of gradients

    def variables(self) -> dict[tuple[int, str], Array]:
        """Values that every rank holds at the end and that the next step would read."""
        return {
            (rank, register.name): values.value(index, len(self.totals) % register.slots)
            for rank, values in self.run.values.items()
            for index, register in enumerate(values.program.registers)
            if register.initial
        }


def train(
    model: str,
    precision: str,
    pins: Pinned = (),
    *,
    device: EmulatedDevice,
    steps: int = STEPS,
    **how: Any,
) -> TrainedRun:
    """Train all ranks of a plan on one device, which must take the memory that the plan says."""
    plan, graph, actors = planned(model, precision, pins)
    runs = runs_of(plan, actors, loss_scale=2.0**10)
    run = DeviceRun(device, actors, runs)
    loading(graph)(tuple(run.values.values()))
    before = device.allocations
    recordings = run.train(steps, perf_counter_ns(), **how)
    run.finish()
    assert device.allocations == before
    for rank, use in run.memory().items():
        program = actors.programs[actors.program_of(rank)]
        assert set(use.regions) == {"arena", "workspace", "tables", "stage", "control"}
        assert use.regions["arena"] == program.memory_bytes
        assert use.device_used_bytes >= sum(use.regions.values())
        assert use.grown_bytes == 0
    return TrainedRun(device, run, actors, recordings, losses_and_norms(runs[0].totals))


def assert_equal_to_a_single_device(
    model: str, losses: Array, values: dict[int, RankValues], steps: int
) -> None:
    """Assert that losses and all parts of all variables, in float64, are the reference's."""
    expected = reference(model, steps, precision="fp64")
    np.testing.assert_allclose(losses, expected.losses, rtol=EXACT, atol=0)
    seen = set()
    for rank, rank_values in values.items():
        for index, register in enumerate(rank_values.program.registers):
            if not register.initial or register.tensor not in expected.parameters[steps]:
                continue
            seen.add(register.tensor)
            shard = rank_values.shard(register)
            part = tuple(
                slice(start, start + size)
                for start, size in zip(shard.offsets, shard.shape, strict=True)
            )
            actual = rank_values.value(index, steps % register.slots)
            full_value = expected.parameters[steps][register.tensor]
            name = f"rank {rank}: {register.tensor}"
            np.testing.assert_allclose(
                actual, full_value[part], rtol=EXACT, atol=EXACT, err_msg=name
            )
    assert seen == expected.parameters[steps].keys()
