"""Timelines, their pictures and Chrome's form show each firing once, where it was."""

import xml.etree.ElementTree as ET

import pytest

from millrace.comparison_page import timeline_svg
from millrace.palette import PHASES
from millrace.traces.chrome import chrome_trace
from millrace.traces.timeline import Bar, timeline
from tests.millrace.traces import two_rank_trace


def test_a_timeline_is_one_step_counted_from_its_start():
    chart = timeline(two_rank_trace("measured", steps=8))
    assert chart.duration_ns == 1600
    assert [row.queue for row in chart.rows] == ["compute", "dp", "compute", "dp"]
    assert [(bar.row, bar.start_ns, bar.end_ns) for bar in chart.bars[:3]] == [
        (0, 0, 600),
        (0, 600, 1200),
        (1, 1200, 1500),
    ]
    assert {bar.what for bar in chart.bars} == {"forward", "communication"} <= PHASES.keys()


def test_bars_too_small_to_see_are_drawn_together_and_lose_no_time():
    chart = timeline(two_rank_trace("measured"))
    drawn = ET.fromstring(timeline_svg(chart, 10_000_000))
    bars = [rect for rect in drawn.iter("rect") if rect.find("title") is not None]
    assert len(bars) == 4  # the two firings of a compute queue became one
    assert "mul …: 1.20 µs" in [rect.findtext("title") for rect in bars]


def test_a_limited_picture_holds_no_more_bars_and_keeps_the_time_they_cover():
    chart = timeline(two_rank_trace("measured", steps=2))
    many = chart._replace(
        bars=tuple(bar for i in range(50) for bar in _shifted(chart.bars[:2], 3000 * i))
    )
    drawn = ET.fromstring(timeline_svg(many, 200_000, bars_max=12))
    hues = {f"var(--{hue})" for hue in PHASES.values()}
    bars = [rect for rect in drawn.iter("rect") if rect.get("fill") in hues]
    assert len(bars) <= 12
    covered = sum(float(rect.attrib["width"]) for rect in bars)
    assert covered >= 970 * 50 * 1200 / 200_000


def _shifted(bars: tuple[Bar, ...], by_ns: int) -> list[Bar]:
    return [bar._replace(start_ns=bar.start_ns + by_ns, end_ns=bar.end_ns + by_ns) for bar in bars]


def test_chromes_form_has_a_process_per_rank_and_a_track_per_queue():
    trace = two_rank_trace("measured", steps=2)
    document = chrome_trace(trace)
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == len(trace.spans)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert names == {(0, 0): "compute", (0, 1): "dp", (1, 0): "compute", (1, 1): "dp"}
    assert sum(event["dur"] for event in spans if event["pid"] == 0) == pytest.approx(3.0)
    assert {event["args"]["step"] for event in spans} == {0, 1}
