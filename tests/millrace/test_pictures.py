"""Timelines, the HTML page and Chrome's form show each firing once, where it was."""

import xml.etree.ElementTree as ET

import pytest

from millrace.compare import join
from millrace.comparison_page import comparison_page, timeline_svg
from millrace.traces.chrome import chrome_trace
from millrace.traces.timeline import COLOURS, timeline
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
    assert {bar.what for bar in chart.bars} == {"forward", "communication"} <= COLOURS.keys()


def test_the_page_holds_both_timelines_on_one_scale_and_nothing_from_elsewhere():
    predicted, measured = two_rank_trace("simulated"), two_rank_trace("measured", compute_ns=900)
    page = comparison_page(
        "a <model>", join(predicted, measured), [timeline(predicted), timeline(measured)]
    )
    assert page.count("<svg") == 2
    assert "a &lt;model&gt;" in page
    for outside in ("http:", "https:", "src=", "@import", "<script", "<link"):
        assert outside not in page
    assert page.index("Simulated: step") < page.index("Measured: step")


def test_bars_too_small_to_see_are_drawn_together_and_lose_no_time():
    chart = timeline(two_rank_trace("measured"))
    drawn = ET.fromstring(timeline_svg(chart, 10_000_000))
    bars = [rect for rect in drawn.iter("rect") if rect.find("title") is not None]
    assert len(bars) == 4  # the two firings of a compute queue became one
    assert "mul …: 1.20 µs" in [rect.findtext("title") for rect in bars]


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
