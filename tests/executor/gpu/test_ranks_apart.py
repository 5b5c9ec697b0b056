"""Ranks on devices of their own: each with its own command buffer, meeting by flat collectives.

What NCCL is told (packing, order, groups, lanes) is carried out between emulated devices, and whole
steps must find the losses of the NumPy reference.
"""

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns

import numpy as np
import pytest

from millrace.executor.gpu.running import DeviceRun
from millrace.models.graph import Graph
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.plan import Plan
from tests.bucketed_plans import compiled, searched
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.meeting_place import MeetingDevice, MeetingPlace, PlaceCollectives
from tests.executor.gpu.plans import (
    execute_on_device,
    loading,
    planned,
    reference,
    runs_of,
)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS = 4
CASES = [
    ("gpt", {"dp": 2, "tp": 2}),
    ("gpt", {"tp": 2, "pp": 2}),
    ("llama", {"dp": 2, "tp": 2, "sequence_parallel": True}),
    ("llama", {"cp": 2}),
    ("mixtral", {"dp": 2, "ep": 2, "zero": 1}),
    ("gpt", {"dp": 2, "zero": 3}),
    ("face", {"dp": 2, "tp": 2}),
]


@pytest.mark.parametrize(
    ("model", "pins"), CASES, ids=lambda x: x if isinstance(x, str) else str(x)
)
def test_ranks_on_devices_of_their_own_equal_the_reference(model, pins):
    plan, graph, actors = planned(model, "fp32", tuple(pins.items()))
    losses, _ = trained(plan, graph, actors)
    np.testing.assert_allclose(losses, reference(model, STEPS).losses, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["dp 4", "ZeRO 2", "ZeRO 3", "ZeRO 1 with tp"])
def test_buckets_between_devices_change_no_bit(name):
    (alone, together), (plan, graph) = compiled(name), searched(name)
    losses, parameters = trained(plan, graph, alone)
    found, values = trained(plan, graph, together)
    assert found == losses
    assert values.keys() == parameters.keys()
    for key, value in parameters.items():
        np.testing.assert_array_equal(values[key], value, err_msg=str(key))
    np.testing.assert_allclose(found, reference("gpt", STEPS).losses, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["dp 2", "ZeRO 2"])
def test_buckets_between_ranks_on_one_device_change_no_bit(name):
    plan, graph = searched(name)
    found = []
    for actors in compiled(name):
        runs = runs_of(plan, actors)
        execute_on_device(EmulatedDevice(0), actors, runs, loading(graph), STEPS)
        found.append(runs[0].totals)
    assert found[0] == found[1]


def trained(
    plan: Plan, graph: Graph, actors: ActorGraph
) -> tuple[list[float], dict[tuple[int, str], np.ndarray]]:
    """Losses of some steps, and what every rank's variables hold after them."""
    runs = runs_of(plan, actors)
    parameters = {}
    place, load = MeetingPlace(), loading(graph)

    def rank_of(rank: int) -> None:
        try:
            device = MeetingDevice(place, seed=rank)
            collectives = PlaceCollectives(actors, rank, device)
            run = DeviceRun(device, actors, {rank: runs[rank]}, collectives)
            load((run.values[rank],))
            run.train(STEPS, perf_counter_ns())
            values = run.values[rank]
            for index, register in enumerate(values.program.registers):
                if register.initial:
                    parameters[rank, register.name] = np.array(values.value(index, 0))
        except BaseException:
            with place.changed:
                place.failed = True
                place.changed.notify_all()
            raise

    with ThreadPoolExecutor(actors.ranks) as pool:
        list(pool.map(rank_of, range(actors.ranks)))
    totals = max((run.totals for run in runs.values()), key=len)
    return [loss / count for loss, count, _ in totals], parameters
