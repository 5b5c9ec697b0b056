"""The report of one step: rows, page and counters say the same, with nothing from elsewhere."""

import json
from xml.etree import ElementTree

import pytest

from millrace.files import write_document
from millrace.reporting import memory_counters, report_page, report_rows
from millrace.reporting.bars import bar_hues, moving_hues, stage_pieces
from millrace.reporting.step_page import SHOWN_STAGES, _chosen
from millrace.simulator import predict
from millrace.simulator.account import account_of
from tests.millrace.plans import data_parallel_pipeline
from tests.simulator.test_stages import planned


@pytest.fixture
def called(call, tmp_path):
    """Return the exit code and the output of `simulate` on a small plan."""
    path = tmp_path / "plan.json"
    write_document(path, data_parallel_pipeline())
    return lambda *arguments: call("simulate", path, *arguments)[:2]


def test_the_command_line_writes_rows_that_add_up_to_its_figures(called, tmp_path):
    page, trace = tmp_path / "step.html", tmp_path / "step.chrome.json"
    code, out = called("--json", "--html", page, "--trace", trace)
    assert code == 0
    figures = json.loads(out)
    step_s, stages = figures["step_time_s"], figures["stages"]
    exposed = sum(row["exposed_s"] for row in figures["communication"])
    assert exposed == pytest.approx(figures["exposed_communication_s"], abs=2e-9)
    for row in stages:
        assert row["busy_s"] + row["exposed_s"] + row["bubble_s"] == pytest.approx(step_s)
        assert row["memory_bytes_max"] == sum(row["memory_by_kind"].values())
    bubble = sum(row["bubble_s"] for row in stages) / len(stages)
    assert bubble == pytest.approx(figures["bubble_fraction"] * step_s, abs=2e-9)
    assert sum(row["share"] for row in figures["compute"]) == pytest.approx(
        1 - figures["bubble_fraction"] - exposed / step_s, abs=1e-6
    )
    assert max(row["memory_bytes_max"] for row in stages) == figures["memory_bytes_max"]
    counters = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "C"]
    assert {event["pid"] for event in counters} == {0, 2}
    assert all(size >= 0 for event in counters for size in event["args"].values())
    text = page.read_text()
    assert not any(word in text for word in ("<script", "http:", "https:", "url(", "<link", "NaN"))
    assert called("--html", page)[0] == 0
    assert page.read_text() == text


def test_a_page_cannot_go_where_no_folder_is(called, tmp_path):
    code, _ = called("--html", tmp_path / "nowhere" / "step.html")
    assert code == 2


@pytest.mark.parametrize("fidelity", ["op", "stage"])
def test_a_page_is_well_formed_and_its_bars_fill_the_step(fidelity):
    plan = planned("ZeRO 3 on stages")
    prediction = predict(plan, fidelity=fidelity, detailed=True)
    account = account_of(plan, prediction)
    text = report_page(plan, prediction, account, [("step time", "<now>")])
    body = text[text.index("<body>") : text.index("</body>") + len("</body>")]
    assert "&lt;now&gt;" in body
    svgs = [element for element in ElementTree.fromstring(body).iter() if element.tag == "svg"]
    assert len(svgs) == 2 + plan.stages
    hues = moving_hues(account)
    for stage in account.stages:
        pieces = stage_pieces(stage, hues)
        assert sum(piece.ns for piece in pieces) == pytest.approx(account.step_time_ns)
    legend = bar_hues(account)
    assert {"forward", "bubble", "exposed reduce_scatter over dp"} <= legend.keys()
    assert [row["kind"] for row in report_rows(account)["communication"]]
    assert {event["pid"] for event in memory_counters(account.memory)} == {0, 2}


def test_of_many_stages_the_ends_and_the_fullest_are_drawn():
    assert _chosen([1, 2]) == [0, 1]
    for fullest in range(40):
        sizes = [5 + (stage == fullest) for stage in range(40)]
        chosen = _chosen(sizes)
        assert len(chosen) == SHOWN_STAGES
        assert {0, fullest, 39} <= set(chosen)
