"""When firings and steps of a device began and ended, as a trace tells it."""

from functools import cache

import numpy as np
import pytest

from millrace import api
from millrace.compare import join
from millrace.executor.gpu.running import TRACED_STEPS
from millrace.executor.recording import trace_of
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import TICK_NS, EmulatedDevice
from tests.executor.gpu.front import LOOPBACK_EAGER, emulate_gpus, on_gpu
from tests.executor.gpu.plans import execute_on_device, loading, planned, runs_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS = 5
SPLIT = (("tp", 2), ("pp", 2))


@cache
def recorded(pins, **how):
    plan, graph, actors = planned("gpt", "fp32", pins)
    run, recordings = execute_on_device(
        EmulatedDevice(3), actors, runs_of(plan, actors), loading(graph), STEPS, **how
    )
    return run, actors, recordings


@pytest.mark.parametrize("pins", [(), SPLIT], ids=str)
@pytest.mark.parametrize("eager", [False, True])
def test_spans_are_of_all_steps_when_eager_and_of_the_last_when_captured(pins, eager):
    run, actors, recordings = recorded(pins, eager=eager, spans=True)
    assert run.driver.captured != eager
    first = 0 if eager else STEPS - TRACED_STEPS
    for recording in recordings:
        program = actors.programs[actors.program_of(recording.rank)]
        at = 0
        for actor in program.actors:
            count = actor.firings * STEPS
            starts, ends = (x[at : at + count] for x in (recording.starts_ns, recording.ends_ns))
            at += count
            kept = np.arange(count) // actor.firings >= first
            assert (starts[~kept] == -1).all()
            assert (ends[~kept] == -1).all()
            assert (ends[kept] >= starts[kept]).all()
        assert at == len(recording.starts_ns)


def test_spans_lie_inside_their_steps_and_steps_follow_one_another():
    _, actors, recordings = recorded(SPLIT, eager=True, spans=True)
    for recording in recordings:
        ends = recording.step_end_ns
        assert (np.diff(ends) > TICK_NS).all()
        program = actors.programs[actors.program_of(recording.rank)]
        trace = trace_of(actors, [recording])
        for span in trace.spans:
            step = span.firing // program.actors[span.actor].firings
            assert span.end_ns <= ends[step]
            assert step == 0 or span.start_ns >= ends[step - 1]


def test_firings_of_one_queue_follow_its_order():
    _, actors, recordings = recorded(SPLIT, eager=True, spans=True)
    trace = trace_of(actors, recordings)
    for lane in trace.lanes:
        program = actors.programs[actors.program_of(lane.rank)]
        compute = {index for index, actor in enumerate(program.actors) if actor.meeting is None}
        spans = [one for one in trace.spans if one.rank == lane.rank and one.actor in compute]
        assert spans == sorted(spans, key=lambda one: one.start_ns)


def test_without_spans_only_ends_of_steps_are_kept():
    _, _, recordings = recorded(())
    assert len(recordings[0].step_end_ns) == STEPS
    assert len(recordings[0].starts_ns) == 0


@pytest.mark.parametrize("backend", [None, LOOPBACK_EAGER], ids=["captured", "eager"])
def test_prediction_and_measurement_are_joined(backend, monkeypatch):
    emulate_gpus(monkeypatch)
    plan, _, actors = planned("gpt", "fp32", SPLIT)
    told = []
    how = {} if backend is None else {"backend": backend}
    found = on_gpu(plan, STEPS, trace=True, progress=lambda *one: told.append(one), **how)
    assert told == list(enumerate(found.losses))
    assert found.backend == "cupy"
    assert found.ranks == actors.ranks
    joined = join(api.simulate(plan).trace, found.trace)
    assert joined.plan_digest == plan.digest()
    assert joined.measured_step_time_s > 0
    assert all(row.measured_s is not None for row in joined.actors if row.kind == "matmul")
