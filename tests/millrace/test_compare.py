"""The join of two traces: what each figure is, and what is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.comparison import exposed_ns_by_kind, join
from millrace.planner.errors import PlanError
from tests.millrace.traces import two_rank_trace


def causes(comparison):
    return {row.name: (row.predicted_s, row.measured_s) for row in comparison.causes}


def test_a_trace_against_itself_has_no_error():
    trace = two_rank_trace("measured", steps=7)
    comparison = join(trace, trace)
    assert comparison.step_time_error == 0
    assert all(
        row.predicted_s == row.measured_s for row in (*comparison.actors, *comparison.causes)
    )


def test_actors_and_causes_are_seconds_per_step_on_the_average_rank():
    comparison = join(
        two_rank_trace("simulated"), two_rank_trace("measured", steps=8, compute_ns=800)
    )
    assert comparison.predicted_step_time_s == pytest.approx(1600e-9)
    assert comparison.measured_step_time_s == pytest.approx(2000e-9)
    assert comparison.step_time_error == pytest.approx(1600 / 2000 - 1)
    rows = {row.name: row for row in comparison.actors}
    assert rows["mul"].predicted_s == pytest.approx(1200e-9)
    assert rows["mul"].measured_s == pytest.approx(1600e-9)
    assert causes(comparison) == {
        "compute: matmul": (pytest.approx(1200e-9), pytest.approx(1600e-9)),
        "communication: all_reduce": (pytest.approx(300e-9), pytest.approx(300e-9)),
        "idle": (pytest.approx(100e-9), pytest.approx(100e-9)),
    }


def test_a_trace_with_spans_of_its_last_steps_alone_gives_the_same_figures():
    complete = two_rank_trace("measured", steps=9)
    late = tuple(span for span in complete.spans if span.firing // (2 - span.actor) >= 7)
    predicted = two_rank_trace("simulated")
    comparison = join(predicted, msgspec.structs.replace(complete, spans=late))
    assert late != complete.spans
    assert comparison == join(predicted, complete)


def test_the_largest_difference_comes_first():
    comparison = join(two_rank_trace("simulated"), two_rank_trace("measured", compute_ns=900))
    assert comparison.actors[0].name == "mul"
    assert comparison.causes[0].name == "compute: matmul"


def test_causes_add_up_to_the_step_time_where_nothing_overlaps():
    comparison = join(two_rank_trace("simulated"), two_rank_trace("measured", wait_ns=70, steps=9))
    assert sum(row.predicted_s for row in comparison.causes) == pytest.approx(1600e-9)
    assert sum(row.measured_s for row in comparison.causes) == pytest.approx(1370e-9)
    assert sum(row.measured_s for row in comparison.phases) == pytest.approx(1370e-9)


def test_a_folded_trace_weighs_as_the_ranks_it_stands_for():
    folded = two_rank_trace("simulated", represents=64)
    assert causes(join(folded, two_rank_trace("measured")))["idle"][0] == pytest.approx(100e-9)


def test_an_actor_of_one_trace_only_has_no_figure_in_the_other():
    measured = two_rank_trace("measured")
    lanes = tuple(msgspec.structs.replace(lane, actors=("mul", "other")) for lane in measured.lanes)
    comparison = join(two_rank_trace("simulated"), msgspec.structs.replace(measured, lanes=lanes))
    rows = {row.name: row for row in comparison.actors}
    assert rows["sum"].measured_s is None
    assert rows["other"].predicted_s is None


def test_traces_of_two_plans_are_refused_with_both_digests():
    with pytest.raises(PlanError, match=r"ffff.*00112233aabbccdd.*give the plan that was run"):
        join(two_rank_trace("simulated"), two_rank_trace("measured", digest="ffff"))


def test_a_trace_without_a_step_is_refused():
    empty = msgspec.structs.replace(two_rank_trace("measured"), step_end_ns=((), ()), steps=0)
    with pytest.raises(PlanError, match="no finished step"):
        join(two_rank_trace("simulated"), empty)


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple))


@given(INTERVALS, INTERVALS)
def test_each_unit_that_no_compute_covers_goes_to_one_meeting_or_to_none(compute, times):
    meetings = [(first, last, f"k{position % 2}") for position, (first, last) in enumerate(times)]
    exposed = exposed_ns_by_kind(compute, meetings, (5, 35))
    covered = {unit for first, last in compute for unit in range(first, last)}
    met = {unit for first, last, _ in meetings for unit in range(first, last)}
    window = set(range(5, 35)) - covered
    assert exposed.get("", 0) == len(window - met)
    assert sum(exposed.values()) == len(window)


def test_communication_that_compute_hides_is_no_cause():
    exposed = exposed_ns_by_kind([(0, 10)], [(2, 8, "all_reduce")], (0, 12))
    assert exposed == {"": 2}


def test_a_rank_that_the_plan_has_not_is_refused():
    measured = two_rank_trace("measured")
    lanes = tuple(msgspec.structs.replace(lane, rank=lane.rank + 1) for lane in measured.lanes)
    with pytest.raises(PlanError, match="the trace has rank 2, the plan has ranks 0 to 1"):
        join(two_rank_trace("simulated"), msgspec.structs.replace(measured, lanes=lanes))
