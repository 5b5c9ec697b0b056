"""The page's inlined data are the firings of both traces, and no text in them is taken for HTML."""

import json
import re

import msgspec
import pytest

from millrace.comparison import join
from millrace.comparison_page import comparison_page
from millrace.comparison_page.firing_columns import time_unit_ns
from millrace.comparison_page.inlined_script import DATA_ID, policy, script
from millrace.planner.actors.trace import Trace
from tests.millrace.traces import two_rank_trace

HOSTILE = '</script><img src=x onerror="alert(1)"><!-- \u2028 &amp;'


def inlined(page: str) -> dict:
    """The data of a page, as its script reads them."""
    (text,) = re.findall(rf'<script type="application/json" id="{DATA_ID}">(.*?)</script>', page)
    return json.loads(text)


def renamed(trace: Trace, name: str) -> Trace:
    """A trace whose first actor has another name."""
    lanes = tuple(
        msgspec.structs.replace(lane, actors=(name, *lane.actors[1:])) for lane in trace.lanes
    )
    return msgspec.structs.replace(trace, lanes=lanes)


def page_of(predicted: Trace, measured: Trace) -> str:
    return comparison_page("a <model>", join(predicted, measured), (predicted, measured))


def bars(columns: dict) -> list[tuple[int, int, int, int]]:
    """Start, end, actor and firing of a row's bars."""
    rows, time, actor = [], 0, 0
    for gap, duration, difference, firing in zip(
        *(columns[name] for name in ("gap", "duration", "actor", "firing")), strict=True
    ):
        start, time, actor = time + gap, time + gap + duration, actor + difference
        rows.append((start, time, actor, firing))
    return rows


def test_columns_hold_every_firing_of_the_step_and_its_place():
    page = page_of(two_rank_trace("simulated"), two_rank_trace("measured", steps=8, compute_ns=900))
    data = inlined(page)
    assert data["unit_ns"] == 1
    predicted, measured = data["timelines"]
    assert (predicted["rank"], predicted["queue"]) == ([0, 0, 1, 1], ["compute", "dp"] * 2)
    mul, total = (data["actors"]["name"].index(name) for name in ("mul", "sum"))
    assert bars(predicted["bars"][0]) == [(0, 600, mul, 0), (600, 1200, mul, 1)]
    assert bars(measured["bars"][3]) == [(1800, 2100, total, 0)]
    assert measured["duration"] == 2200


def test_actors_have_their_medians_and_their_firings():
    measured = two_rank_trace("measured", compute_ns=900)
    actors = inlined(page_of(renamed(two_rank_trace("simulated"), "old"), measured))["actors"]
    rows = {
        name: [actors[key][number] for key in ("predicted_median_ns", "measured_median_ns")]
        for number, name in enumerate(actors["name"])
    }
    assert rows == {"old": [600, None], "mul": [None, 900], "sum": [300, 300]}
    assert actors["firings"][actors["name"].index("mul")] == 2


def test_a_name_is_text_wherever_it_stands():
    page = page_of(
        renamed(two_rank_trace("simulated"), HOSTILE), renamed(two_rank_trace("measured"), HOSTILE)
    )
    assert HOSTILE in inlined(page)["actors"]["name"]
    assert "<img" not in page
    assert page.count("</script>") == 2  # the data's and the script's
    assert "a &lt;model&gt;" in page


def test_the_page_asks_for_nothing_from_elsewhere_and_forbids_it():
    page = page_of(two_rank_trace("simulated"), two_rank_trace("measured"))
    for outside in ("http:", "https:", "src=", "@import", "<link", "url("):
        assert outside not in page
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    assert policy(script()) in page
    assert "fetch(" not in script()


def test_without_a_script_the_page_has_both_pictures_and_the_tables():
    page = page_of(two_rank_trace("simulated"), two_rank_trace("measured", compute_ns=900))
    (plain,) = re.findall(r"<noscript>(.*?)</noscript>", page, re.S)
    assert plain.count("<svg") == 2
    assert plain.index("Simulated: step") < plain.index("Measured: step")
    body = re.sub(r"<noscript>.*?</noscript>|<script.*?</script>", "", page, flags=re.S)
    assert body.count("<code>compute: matmul</code>") == 1
    assert "<code>mul</code>" in body
    assert "−600 ns" in body


@pytest.mark.parametrize(
    ("longest_ns", "unit_ns"),
    [(1, 1), (9_999_999, 1), (349_000_000, 10), (20_000_000_000, 1000)],
)
def test_units_of_time_are_fine_enough_for_the_step(longest_ns, unit_ns):
    assert time_unit_ns(longest_ns) == unit_ns
