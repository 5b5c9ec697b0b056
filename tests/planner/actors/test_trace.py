"""A Trace says how long steps took: by the slowest rank, each from the end of the one before."""

import pytest

from millrace.planner.actors.lanes import lane_of
from millrace.planner.actors.trace import Trace
from tests.planner.actors.nets import chain, graph


def trace(*step_end_ns: tuple[int, ...]) -> Trace:
    return Trace(
        source="simulated",
        plan_digest="",
        device="",
        steps=len(step_end_ns[0]),
        lanes=(),
        step_end_ns=step_end_ns,
    )


def test_a_step_lasts_from_the_slowest_ranks_end_to_its_next_end() -> None:
    assert trace((10, 25, 31), (12, 20, 40)).step_times_ns() == (12, 13, 15)


@pytest.mark.parametrize(("warm_up", "expected"), [(0, 10), (2, 9), (9, 10)])
def test_step_time_is_the_median_behind_the_warm_up(warm_up: int, expected: int) -> None:
    found = trace((30, 60, 70, 78, 85, 95))  # steps of 30, 30, 10, 8, 7, 10
    assert found.step_time_ns(warm_up) == expected


def test_a_lane_stands_for_its_own_rank_and_names_what_its_spans_are_of() -> None:
    found = graph(chain())
    lane = lane_of(found, 0)
    assert (lane.rank, lane.represents) == (0, 1)
    assert lane.actors == tuple(actor.name for actor in found.programs[0].actors)
    assert lane.firings == tuple(actor.firings for actor in found.programs[0].actors)
    assert lane_of(found, 0, represents=8).represents == 8
