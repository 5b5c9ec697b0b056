"""A Trace says how long steps took: by the slowest rank, each from the end of the one before."""

from typing import Any

import msgspec
import pytest

from millrace.planner.actors.trace import Span, Trace
from millrace.planner.actors.trace_lanes import lane_of
from millrace.planner.errors import PlanError
from tests.millrace.traces import two_rank_trace
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
    measured = trace((30, 60, 70, 78, 85, 95))  # steps of 30, 30, 10, 8, 7, 10
    assert measured.step_time_ns(warm_up) == expected


def test_a_lane_stands_for_its_own_rank_and_names_what_its_spans_are_of() -> None:
    actor_graph = graph(chain())
    lane = lane_of(actor_graph, 0)
    assert (lane.rank, lane.represents) == (0, 1)
    assert lane.actors == tuple(actor.name for actor in actor_graph.programs[0].actors)
    assert lane.firings == tuple(actor.firings for actor in actor_graph.programs[0].actors)
    assert lane_of(actor_graph, 0, represents=8).represents == 8


def changed(place: tuple[str | int, ...], value: object) -> Trace:
    """A sound trace of four steps but for the value at one place."""
    document = msgspec.to_builtins(two_rank_trace("measured", steps=4))
    holder: Any = document
    for key in place[:-1]:
        if isinstance(holder[key], tuple):
            holder[key] = list(holder[key])
        holder = holder[key]
    holder[place[-1]] = value
    return msgspec.convert(document, Trace)


def test_a_sound_trace_is_valid() -> None:
    sound = two_rank_trace("measured", steps=4)
    assert sound.validate() is sound


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("lanes", 0, "phases"), ["forward"], r"2 entries - at `\$.lanes\[0\]`"),
        (("lanes", 1, "queues"), [], r"2 entries - at `\$.lanes\[1\]`"),
        (("lanes", 1, "firings"), [2, 0], r"at least 1 - at `\$.lanes\[1\]`"),
        (("lanes", 0, "represents"), 0, r"at least 1 - at `\$.lanes\[0\]`"),
        (("lanes", 0, "rank"), 1, r"two lanes are of one rank - at `\$.lanes`"),
        (("lanes", 0, "rank"), 7, r"no firing 0 of actor 0 on rank 0 - at `\$.spans\[0\]`"),
        (("steps",), 40, r"of 40 steps 4 have an end - at `\$.step_end_ns\[0\]`"),
        (("step_end_ns",), [[1, 2, 3, 4]], r"1 - at `\$.step_end_ns`"),
        (("step_end_ns", 1), [1, 3, 2, 4], r"before it begins - at `\$.step_end_ns\[1\]`"),
        (("step_end_ns", 1), [0, 1, 2, 3], r"before it begins - at `\$.step_end_ns\[1\]`"),
        (("spans", 2), [0, 2**63, 0, 0, 1], r"no firing 0 of actor \d+ on rank 0"),
        (("spans", 2), [0, -1, 0, 0, 1], r"actor -1 on rank 0 - at `\$.spans\[2\]`"),
        (("spans", 2), [0, 1, 4, 0, 1], r"no firing 4 of actor 1"),
        (("spans", 2), [0, 1, -1, 0, 1], r"no firing -1 of actor 1"),
        (("spans", 2), [0, 1, 0, 1, 0], r"ends before it begins - at `\$.spans\[2\]`"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_place(
    place: tuple[str | int, ...], value: object, said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        changed(place, value).validate()


def test_a_span_of_an_older_file_does_not_say_how_long_it_had_a_core() -> None:
    span = msgspec.json.decode(b"[0, 3, 1, 20, 50]", type=Span)
    assert span == Span(0, 3, 1, 20, 50)
    assert span.cpu_ns == span.queued_ns == 0
