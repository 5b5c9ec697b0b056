"""When firings and steps of a device began and ended, as a trace tells it."""

import numpy as np
import pytest

from millrace import api
from millrace.compare import join
from millrace.executor.gpu.running import TRACED_STEPS
from millrace.executor.recording import trace_of
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import TICK_NS, EmulatedDevice
from tests.executor.gpu.front import LOOPBACK, LOOPBACK_EAGER, emulate_gpus, on_gpu
from tests.executor.gpu.plans import planned
from tests.executor.gpu.trained import Trained, train

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS = TRACED_STEPS + 2  # one fired eagerly, one replayed, and those that are traced
SPLIT = (("tp", 2), ("pp", 2))


def recorded(eager: bool) -> Trained:
    device = EmulatedDevice(3)
    return train("llama", "fp64", SPLIT, device=device, steps=STEPS, eager=eager, spans=True)


def assert_spans_are_of_steps_from(first: int, found: Trained) -> None:
    """Of all firings of these steps, and of no other."""
    for recording in found.recordings:
        program = found.actors.programs[found.actors.program_of(recording.rank)]
        at = 0
        for actor in program.actors:
            count = actor.firings * STEPS
            starts, ends = (x[at : at + count] for x in (recording.starts_ns, recording.ends_ns))
            at += count
            kept = np.arange(count) // actor.firings >= first
            assert (starts[~kept] == -1).all()
            assert (ends[~kept] == -1).all()
            assert (starts[kept] > 0).all()
            assert (ends[kept] >= starts[kept]).all()
        assert at == len(recording.starts_ns)


def test_spans_of_a_captured_run_are_of_its_last_steps() -> None:
    found = recorded(eager=False)
    assert found.run.driver.captured
    assert_spans_are_of_steps_from(STEPS - TRACED_STEPS, found)


def test_spans_of_an_eager_run_lie_in_all_its_steps_in_the_order_of_their_queues() -> None:
    found = recorded(eager=True)
    assert not found.run.driver.captured
    assert_spans_are_of_steps_from(0, found)
    for recording in found.recordings:
        ends = recording.step_end_ns
        assert (np.diff(ends) > TICK_NS).all()
        program = found.actors.programs[found.actors.program_of(recording.rank)]
        for span in trace_of(found.actors, [recording]).spans:
            step = span.firing // program.actors[span.actor].firings
            assert span.end_ns <= ends[step]
            assert step == 0 or span.start_ns >= ends[step - 1]
    trace = trace_of(found.actors, found.recordings)
    for lane in trace.lanes:
        program = found.actors.programs[found.actors.program_of(lane.rank)]
        compute = {index for index, actor in enumerate(program.actors) if actor.meeting is None}
        spans = [one for one in trace.spans if one.rank == lane.rank and one.actor in compute]
        assert spans == sorted(spans, key=lambda one: one.start_ns)


@pytest.mark.parametrize(
    ("backend", "traced"),
    [(LOOPBACK, TRACED_STEPS), (LOOPBACK_EAGER, STEPS)],
    ids=["captured", "eager"],
)
def test_prediction_and_measurement_are_joined(backend, traced, monkeypatch):
    emulate_gpus(monkeypatch)
    plan, _, actors = planned("llama", "fp32", SPLIT)
    told = []
    found = on_gpu(plan, STEPS, trace=True, backend=backend, progress=lambda *one: told.append(one))
    assert told == list(enumerate(found.losses))
    assert found.backend == "cupy"
    assert found.ranks == actors.ranks
    firings = sum(sum(lane.firings) for lane in found.trace.lanes)
    assert len(found.trace.spans) == traced * firings
    joined = join(api.simulate(plan).trace, found.trace)
    assert joined.plan_digest == plan.digest()
    assert joined.measured_step_time_s > 0
    assert all(row.measured_s is not None for row in joined.actors if row.kind == "matmul")
