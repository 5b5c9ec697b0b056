"""The pipeline that firings are timed on: its orders, its ideal step, and that it ends."""

from benchmarks.executor.firing import STAGES, ideal_step_ms
from benchmarks.executor.meeting_graphs import one_f_one_b, pipeline_graph
from millrace.planner.actors.null_clock import run_to_completion


def test_the_ideal_step_of_1f1b_is_that_of_its_formula() -> None:
    for microbatches in (1, 4, 8):
        assert ideal_step_ms(5.0, microbatches) == (microbatches + STAGES - 1) * 10.0


def test_the_last_stage_takes_turns_from_the_start() -> None:
    assert one_f_one_b(3, 4, 2) == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]
    assert one_f_one_b(0, 4, 2) == [("F", 0), ("F", 1), ("B", 0), ("B", 1)]


def test_the_pipeline_runs_to_its_end() -> None:
    for microbatches in (1, 3, 8):
        run_to_completion(pipeline_graph(STAGES, microbatches, 64), steps=3)
