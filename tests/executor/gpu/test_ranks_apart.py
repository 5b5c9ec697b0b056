"""Ranks on devices of their own: each with its own command buffer, meeting by flat collectives.

What NCCL is told (packing, order, groups, lanes) is carried out between emulated devices, and whole
steps must find what NumPy finds on a single device.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from time import perf_counter_ns

import numpy as np
import pytest

from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.shards import RankValues
from millrace.models.graph import Graph
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from tests.bucketed_plans import searched
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.meeting_place import MeetingDevice, MeetingPlace, PlaceCollectives
from tests.executor.gpu.plans import (
    execute_on_device,
    loading,
    planned,
    runs_of,
)
from tests.executor.gpu.rounding import assert_off_by_rounding_alone, losses_and_norms
from tests.executor.gpu.trained import assert_equal_to_a_single_device

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

MODEL = "llama"
STEPS = 3  # fired eagerly, captured and replayed, replayed again
CASES = [
    ("llama", {"tp": 2, "pp": 2}),
    ("llama", {"dp": 2, "tp": 2, "sequence_parallel": True}),
    ("llama", {"cp": 2}),
    ("mixtral", {"dp": 2, "ep": 2, "zero": 1}),
    ("face", {"dp": 2, "tp": 2}),
]


@pytest.mark.parametrize(
    ("model", "pins"), CASES, ids=lambda x: x if isinstance(x, str) else str(x)
)
def test_ranks_on_devices_of_their_own_equal_a_single_device(model, pins):
    plan, graph, actors = planned(model, "fp64", tuple(pins.items()))
    totals, values = trained(plan, graph, actors)
    assert_equal_to_a_single_device(model, totals[:, 0], values, STEPS)


@cache
def bucketed(name: str) -> tuple[Plan, Graph, ActorGraph, ActorGraph]:
    """A plan of a model of two layers; its actors with collectives one by one, and in buckets."""
    plan, graph = searched(name, model=MODEL)
    alone, together = (compile_plan(plan, in_buckets=in_buckets) for in_buckets in (False, True))
    parts = [
        (actor.kind, actor.meeting.axes)
        for actor in together.programs[0].actors
        if actor.meeting is not None and actor.meeting.parts > 1
    ]
    over = {axes for _, axes in parts}
    assert len(parts) > len(set(parts)) or len(over) > 1, "buckets of one kind, or over other axes"
    return plan, graph, alone, together


@pytest.mark.parametrize("name", ["dp 2", "ZeRO 3", "ZeRO 1 with tp"])
def test_buckets_between_devices_change_no_bit(name):
    plan, graph, alone, together = bucketed(name)
    expected, parameters = trained(plan, graph, alone)
    totals, values = trained(plan, graph, together)
    np.testing.assert_array_equal(totals, expected)
    assert values.keys() == parameters.keys()
    for rank, rank_values in values.items():
        others = _variables(parameters[rank])
        for key, value in _variables(rank_values).items():
            np.testing.assert_array_equal(value, others[key], err_msg=f"rank {rank}: {key}")
    assert_off_by_rounding_alone(expected, MODEL, "fp32")


@pytest.mark.parametrize("name", ["dp 2", "ZeRO 3"])
def test_buckets_between_ranks_on_one_device_change_no_bit(name):
    plan, graph, *both = bucketed(name)
    totals = []
    for actors in both:
        runs = runs_of(plan, actors)
        execute_on_device(EmulatedDevice(0), actors, runs, loading(graph), STEPS)
        totals.append(runs[0].totals)
    assert totals[0] == totals[1]
    assert_off_by_rounding_alone(losses_and_norms(totals[0]), MODEL, "fp32")


def trained(
    plan: Plan, graph: Graph, actors: ActorGraph
) -> tuple[np.ndarray, dict[int, RankValues]]:
    """Totals that the steps told, and values that every rank holds after them."""
    runs = runs_of(plan, actors)
    values: dict[int, RankValues] = {}
    place, load = MeetingPlace(), loading(graph)

    def rank_of(rank: int) -> None:
        try:
            device = MeetingDevice(place, seed=rank)
            collectives = PlaceCollectives(actors, rank, device)
            run = DeviceRun(device, actors, {rank: runs[rank]}, collectives)
            load((run.values[rank],))
            run.train(STEPS, perf_counter_ns())
            values[rank] = run.values[rank]
        except BaseException:
            with place.changed:
                place.failed = True
                place.changed.notify_all()
            raise

    with ThreadPoolExecutor(actors.ranks) as pool:
        list(pool.map(rank_of, range(actors.ranks)))
    return losses_and_norms(max((run.totals for run in runs.values()), key=len)), values


def _variables(values: RankValues) -> dict[str, np.ndarray]:
    """Values that a rank holds at the end and that the next step would read."""
    return {
        register.name: values.value(index, STEPS % register.slots)
        for index, register in enumerate(values.program.registers)
        if register.initial
    }
