"""The page in a browser: it complains of nothing, asks for nothing, and answers hands and keys."""

import re

import msgspec
import pytest

from millrace.comparison import join
from millrace.comparison_page import comparison_page
from tests.browsers import chromium, opened
from tests.millrace.comparison_page.test_page_data import HOSTILE, page_of, renamed
from tests.millrace.comparison_page.wide_traces import wide_comparison
from tests.millrace.traces import two_rank_trace


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def wide_page(tmp_path_factory):
    wide = wide_comparison(actors=240, microbatches=4, ranks=4)
    traces = (wide.predicted, wide.measured)
    page = comparison_page("wide", join(*traces), traces, (wide.graph, wide.cluster))
    path = tmp_path_factory.mktemp("page") / "wide.html"
    path.write_text(page)
    return path


def place(page, x, y):
    """A place on the timelines, as of the window."""
    box = page.locator("#timelines").bounding_box()
    return box["x"] + x, box["y"] + y


def ink(page, canvas):
    """Colours of a canvas, as one text, to see whether it changed."""
    return page.locator(canvas).evaluate("canvas => canvas.toDataURL()")


def settled(page):
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 20)))")


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_on_any_width_without_a_complaint_or_a_request(browser, wide_page, width):
    with opened(browser, wide_page, width) as (page, said):
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for canvas in ("#timelines", "#memory", "#scatter"):
            blank = page.locator(canvas).evaluate(
                """canvas => {
                    const { width, height } = canvas;
                    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
                    return data.every((value) => value === 255);
                }"""
            )
            assert not blank, canvas
        assert said == []


def test_wheel_drag_and_keys_move_timelines_and_memory_together(browser, wide_page):
    with opened(browser, wide_page) as (page, said):
        settled(page)
        unmoved = [ink(page, canvas) for canvas in ("#timelines", "#memory")]
        page.mouse.move(*place(page, 600, 60))
        page.mouse.wheel(0, -600)
        settled(page)
        zoomed = page.locator("#range").inner_text()
        assert re.fullmatch(r"\S+ ms to \S+ ms", zoomed)
        page.mouse.move(*place(page, 600, 200))
        page.mouse.down()
        page.mouse.move(*place(page, 500, 200), steps=4)
        page.mouse.up()
        settled(page)
        assert page.locator("#range").inner_text() != zoomed
        page.locator("#memory").focus()
        page.keyboard.press("+")
        page.keyboard.press("ArrowRight")
        settled(page)
        for canvas, before in zip(("#timelines", "#memory"), unmoved, strict=True):
            assert ink(page, canvas) != before
        page.locator("#timelines").dblclick(position={"x": 500, "y": 100})
        settled(page)
        assert page.locator("#range").inner_text() == ""
        assert said == []


def test_a_bar_tells_both_of_its_times_and_can_be_marked(browser, wide_page):
    with opened(browser, wide_page) as (page, said):
        page.mouse.move(*place(page, 600, 34))
        page.mouse.wheel(0, -900)
        settled(page)
        lines = page.locator("#tip").inner_text().splitlines()
        assert re.fullmatch(r"h\.0\.\d+\.\S+", lines[0])
        assert re.search(r"rank 0 · (compute|dp) · microbatch \d of 4", lines[2])
        assert lines[3].startswith("predicted ")
        assert lines[4].startswith("measured ")
        page.mouse.click(*place(page, 600, 34))
        settled(page)
        assert page.locator("#mark").inner_text().startswith(lines[0])
        page.keyboard.press("]")
        settled(page)
        assert not page.locator("#mark").inner_text().startswith(f"{lines[0]} ")
        page.keyboard.press("Escape")
        assert page.locator("#mark").inner_text() == ""
        assert said == []


def test_each_measured_rank_is_beside_the_simulated_one_that_stands_for_it(browser, tmp_path):
    predicted, measured = two_rank_trace("simulated"), two_rank_trace("measured", steps=8)
    folded = msgspec.structs.replace(
        predicted,
        lanes=(msgspec.structs.replace(predicted.lanes[0], represents=2),),
        step_end_ns=predicted.step_end_ns[:1],
        spans=tuple(span for span in predicted.spans if span.rank == 0),
    )
    last_steps = msgspec.structs.replace(
        measured, spans=tuple(span for span in measured.spans if span.start_ns >= 6 * 1600)
    )
    path = tmp_path / "folded.html"
    path.write_text(page_of(folded, last_steps))
    with opened(browser, path) as (page, said):
        for rank, top in ((0, 34), (1, 105)):
            page.mouse.move(*place(page, 600, top))
            settled(page)
            name, _, where, before, after, *_ = page.locator("#tip").inner_text().splitlines()
            assert (name, where) == ("mul", f"rank {rank} · compute · microbatch 1 of 2")
            assert (before[:16], after[:15]) == ("predicted 600 ns", "measured 600 ns")
        assert page.locator("#memory").count() == 0
        assert said == []


def test_actors_are_filtered_sorted_and_lead_to_their_bars(browser, wide_page):
    with opened(browser, wide_page) as (page, said):
        rows = page.locator("#actors tbody tr")
        assert rows.count() == 40
        page.locator("#more").click()
        assert rows.count() == 240
        page.locator("#filter").fill("all_reduce h.2")
        page.locator("#matches", has_text="6 of 240").wait_for()
        page.locator("#actors th button", has_text="measured a step").click()
        times = page.evaluate(
            "[...document.querySelectorAll('#actors tbody tr')].map(r => r.cells[8].textContent)"
        )
        in_us = [float(text.split()[0]) * {"µs": 1, "ms": 1000}[text.split()[1]] for text in times]
        assert in_us == sorted(in_us, reverse=True)
        rows.first.locator("code").click()
        name = rows.first.locator("code").inner_text()
        assert page.locator("#mark").inner_text().startswith(name)
        assert said == []


def test_a_point_of_the_scatter_filters_the_table(browser, wide_page):
    with opened(browser, wide_page) as (page, said):
        page.locator("#scatter").focus()
        page.keyboard.press("ArrowRight")
        name = page.locator("#point").inner_text().split(" · ")[0]
        assert name.startswith("h.")
        kind = page.locator("#kinds button").first
        kind.click()
        assert re.fullmatch(r"\d+ of 240", page.locator("#matches").inner_text())
        kinds = page.locator("#actors tbody td:nth-child(2)").all_inner_texts()
        assert set(kinds) == {kind.inner_text()}
        assert said == []


def test_hostile_names_run_nothing(browser, tmp_path):
    traces = [renamed(two_rank_trace(source), HOSTILE) for source in ("simulated", "measured")]
    path = tmp_path / "hostile.html"
    path.write_text(comparison_page(HOSTILE, join(*traces), tuple(traces)))
    with opened(browser, path) as (page, said):
        page.mouse.move(*place(page, 500, 34))
        settled(page)
        assert page.locator("#tip").inner_text().startswith("</script>")
        assert page.locator("img").count() == 0
        assert said == []


def test_the_page_forbids_the_network_to_itself(browser, wide_page):
    with opened(browser, wide_page) as (page, _):
        blocked = page.evaluate(
            """() => new Promise((done) => {
                document.addEventListener(
                    "securitypolicyviolation", (event) => done(event.effectiveDirective));
                const image = new Image();
                image.src = "http://127.0.0.1:9/";
            })"""
        )
        assert blocked == "img-src"


def test_without_scripts_there_are_pictures_and_tables(browser, wide_page):
    with opened(browser, wide_page, scripts=False) as (page, said):
        assert page.locator("noscript svg").count() == 2
        assert page.locator("noscript svg").first.is_visible()
        assert not page.locator("#timelines").is_visible()
        assert page.locator("#actors tbody tr").count() == 200
        assert said == []
