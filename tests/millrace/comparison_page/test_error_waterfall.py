"""The waterfall leads from the predicted to the measured step; both paths keep all their time."""

import msgspec
import pytest

from millrace.comparison import Comparison, join
from millrace.comparison.comparison import (
    CriticalPaths,
    ErrorCause,
    ErrorItem,
    PathRow,
    PathSegment,
)
from millrace.comparison_page import comparison_page
from millrace.comparison_page.error_waterfall import (
    SHOWN_SEGMENTS,
    fall_rows,
    path_columns,
    path_tables,
    waterfall,
)
from tests.millrace.comparison_page.test_page_data import HOSTILE, inlined
from tests.millrace.traces import two_rank_trace


def comparison(*seconds: float) -> Comparison:
    """A comparison of 10 s predicted, with one cause for each number of seconds."""
    causes = tuple(
        ErrorCause(
            name=f"cause {number}",
            seconds=share,
            items=(ErrorItem(name=HOSTILE, seconds=share),),
        )
        for number, share in enumerate(seconds)
    )
    measured_s = 10.0 + sum(seconds)
    return Comparison(
        plan_digest="00",
        predicted_step_time_s=10.0,
        measured_step_time_s=measured_s,
        step_time_error=10.0 / measured_s - 1,
        actors=(),
        causes=(),
        phases=(),
        error_causes=causes,
    )


def segments(count: int, seconds: float) -> tuple[PathSegment, ...]:
    return tuple(
        PathSegment(
            actor="mul",
            rank=0,
            firing=number % 2,
            start_s=number * seconds,
            seconds=seconds * (1 + number % 3),
            idle_s=0.0,
        )
        for number in range(count)
    )


def test_bars_follow_one_another_from_predicted_to_measured():
    rows = fall_rows(comparison(6.0, -2.0, 1.0))
    assert [(row.low_s, row.high_s) for row in rows] == [
        (0.0, 10.0),
        (10.0, 16.0),
        (14.0, 16.0),
        (14.0, 15.0),
        (0.0, 15.0),
    ]
    assert [row.style for row in rows] == ["predicted", "longer", "shorter", "longer", "measured"]


@pytest.mark.parametrize(("seconds", "cut"), [((0.02, -0.01), True), ((30.0, -4.0), False)])
def test_small_causes_are_drawn_large_and_the_axis_says_so(seconds, cut):
    text = "".join(waterfall(comparison(*seconds)))
    assert ("step time, from " in text) == cut
    assert "&lt;/script&gt;" in text
    assert "<img" not in text


def test_a_comparison_without_causes_or_paths_has_neither_section():
    assert waterfall(comparison()) == []
    assert path_tables(None) == []
    assert path_columns(None, {}) == []


def test_a_path_shows_its_longest_segments_and_sums_the_others():
    paths = CriticalPaths(
        predicted=segments(90, 1e-3),
        measured=segments(2, 2e-3),
        rows=(PathRow(actor="mul", rank=0, predicted_s=0.18, measured_s=0.006),),
    )
    text = "".join(path_tables(paths))
    long_path, short_path = text.split("measured: ")
    assert long_path.count("<code>mul</code>") == SHOWN_SEGMENTS
    assert "shorter firings" in long_path
    assert "shorter firing" not in short_path
    assert "90 firings, 180 ms" in text
    assert "+174 ms" in text


def test_the_script_is_given_both_paths():
    traces = (two_rank_trace("simulated"), two_rank_trace("measured"))
    paths = CriticalPaths(predicted=segments(2, 1e-6), measured=segments(1, 1e-6), rows=())
    joined = msgspec.structs.replace(join(*traces), critical_paths=paths)
    data = inlined(comparison_page("two ranks", joined, traces))
    mul = data["actors"]["name"].index("mul")
    assert data["paths"] == [
        {"rank": [0, 0], "actor": [mul, mul], "firing": [0, 1]},
        {"rank": [0], "actor": [mul], "firing": [0]},
    ]
