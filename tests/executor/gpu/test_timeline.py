"""Times at which firings and steps of a device began and ended, as a trace tells them."""

import numpy as np
import pytest

from millrace.comparison import join
from millrace.executor.gpu.device_run import TRACED_STEPS
from millrace.executor.recording import trace_of
from millrace.executor.training.orders import Supervision
from millrace.simulator import predict
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import TICK_NS, EmulatedDevice
from tests.executor.gpu.front import LOOPBACK, LOOPBACK_EAGER, emulate_gpus, on_gpu
from tests.executor.gpu.plans import Pinned, planned
from tests.executor.gpu.trained import TrainedRun, assert_equal_to_a_single_device, train

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS = TRACED_STEPS + 2  # one fired eagerly, one replayed, and those that are traced
SPLIT = (("tp", 2), ("pp", 2))
STAGES = (("pp", 2),)


def recorded(eager: bool, pins: Pinned) -> TrainedRun:
    device = EmulatedDevice(3)
    return train("llama", "fp64", pins, device=device, steps=STEPS, eager=eager, spans=True)


def assert_spans_are_of_steps_from(first: int, trained: TrainedRun) -> None:
    """Assert that spans are of all firings of these steps, and of no other."""
    for recording in trained.recordings:
        program = trained.actors.programs[trained.actors.program_of(recording.rank)]
        position = 0
        for actor in program.actors:
            count = actor.firings * STEPS
            starts, ends = (
                x[position : position + count] for x in (recording.starts_ns, recording.ends_ns)
            )
            position += count
            is_traced = np.arange(count) // actor.firings >= first
            assert (starts[~is_traced] == -1).all()
            assert (ends[~is_traced] == -1).all()
            assert (starts[is_traced] > 0).all()
            assert (ends[is_traced] >= starts[is_traced]).all()
        assert position == len(recording.starts_ns)


def test_spans_of_a_captured_run_are_of_its_last_steps() -> None:
    trained = recorded(eager=False, pins=SPLIT)
    assert trained.run.driver.captured
    losses = trained.totals[:, 0]
    assert_equal_to_a_single_device("llama", losses, trained.run.values, STEPS)
    assert_spans_are_of_steps_from(STEPS - TRACED_STEPS, trained)


def test_spans_of_an_eager_run_lie_in_all_its_steps_in_the_order_of_their_queues() -> None:
    trained = recorded(eager=True, pins=STAGES)
    assert not trained.run.driver.captured
    assert_spans_are_of_steps_from(0, trained)
    for recording in trained.recordings:
        ends = recording.step_end_ns
        assert (np.diff(ends) > TICK_NS).all()
        program = trained.actors.programs[trained.actors.program_of(recording.rank)]
        for span in trace_of(trained.actors, [recording]).spans:
            step = span.firing // program.actors[span.actor].firings
            assert span.end_ns <= ends[step]
            assert step == 0 or span.start_ns >= ends[step - 1]
    trace = trace_of(trained.actors, trained.recordings)
    for lane in trace.lanes:
        program = trained.actors.programs[trained.actors.program_of(lane.rank)]
        compute = {index for index, actor in enumerate(program.actors) if actor.meeting is None}
        spans = [span for span in trace.spans if span.rank == lane.rank and span.actor in compute]
        assert spans == sorted(spans, key=lambda span: span.start_ns)


@pytest.mark.parametrize(
    ("backend", "traced"),
    [(LOOPBACK, TRACED_STEPS), (LOOPBACK_EAGER, STEPS)],
    ids=["captured", "eager"],
)
def test_prediction_and_measurement_are_joined(backend, traced, monkeypatch):
    emulate_gpus(monkeypatch)
    plan, _, actors = planned("llama", "fp32", STAGES)
    told = []
    watched = Supervision(progress=lambda *progress: told.append(progress))
    measured = on_gpu(plan, STEPS, trace=True, backend=backend, supervision=watched)
    assert told == list(enumerate(measured.losses))
    assert measured.backend == "cupy"
    assert measured.ranks == actors.ranks
    firings = sum(sum(lane.firings) for lane in measured.trace.lanes)
    assert len(measured.trace.spans) == traced * firings
    joined = join(predict(plan).trace, measured.trace, plan)
    assert joined.plan_digest == plan.digest()
    assert joined.measured_step_time_s > 0
    assert all(row.measured_s is not None for row in joined.actors if row.kind == "matmul")
    causes = {cause.name: cause.seconds for cause in joined.error_causes}
    error_s = joined.measured_step_time_s - joined.predicted_step_time_s
    assert sum(causes.values()) == pytest.approx(error_s)
    assert "waiting for a core" not in causes  # devices do not say when they had none
    assert joined.critical_paths.measured
