"""The page in a headless browser: at two widths, light and dark, by keyboard alone, under axe."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browsers import chromium
from tests.extras import optional
from tests.millrace.serving.conftest import SMALL, ServedPage

LINK = "#model=gpt2-small&cluster=a100:2x1&global_batch=32&seq_len=512&pins.pp=2&pins.micro_batch=4"
SECOND = LINK[1:].replace("model", "2.model", 1).replace("&", "&2.").replace("batch=4", "batch=8")
# The least that is asked of text beside its ground, of names, of the order of headings and more.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@contextmanager
def opened_page(
    browser: Any, address: str, width: int = 1280, scheme: str = "light"
) -> Iterator[tuple[Any, list[str]]]:
    """The page at an address, and a list that fills with what it complains of or asks elsewhere."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(60_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    server = re.match(r"http://[^/]+/", address)
    assert server is not None

    def asked(request: Any) -> None:
        if not request.url.startswith(server[0]):
            complaints.append(request.url)

    page.on("request", asked)
    try:
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        yield page, complaints
    finally:
        context.close()


def wait_for_plan(page: Any) -> None:
    page.wait_for_selector("#plans:not([hidden]) .stage-bar")


def violations(page: Any) -> list[str]:
    """Rules of axe that the page breaks, with the first place of each."""
    axe = optional("axe_playwright_python.sync_playwright", "test").Axe()
    results = axe.run(page, options={"runOnly": {"type": "tag", "values": RULES}})
    return [
        f"{broken['id']}: {broken['nodes'][0]['html'][:120]}"
        for broken in results.response["violations"]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_page_fits_and_breaks_no_rule_of_axe(
    browser: Any, served: ServedPage, small_plan: str, width: int, scheme: str
) -> None:
    with opened_page(browser, served.address, width, scheme) as (page, complaints):
        assert violations(page) == []
        page.goto(f"{served.address}{LINK}&{SECOND}&if.links=0.5")
        wait_for_plan(page)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


def test_a_plan_is_made_and_changed_with_the_keyboard_alone(
    browser: Any, served: ServedPage, small_plan: str
) -> None:
    def press_until(page: Any, selector: str) -> None:
        for _ in range(80):
            if page.evaluate(f"document.activeElement.matches('{selector}')"):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {selector}")

    with opened_page(browser, served.address) as (page, complaints):
        for selector, text in (
            ("#model", "gpt2-small"),
            ("#device", "a100-sxm-80gb"),
            ("#per_node", "2"),
            ("#nodes", "1"),
            ("#global_batch", "32"),
            ("#seq_len", "512"),
        ):
            press_until(page, selector)
            if selector != "#device":
                page.keyboard.press("Control+A")
            page.keyboard.type(text)
        press_until(page, "#plan")
        page.keyboard.press("Enter")
        wait_for_plan(page)
        assert "gpt2-small on a100-sxm-80gb:2x1" in page.inner_text("#plans")
        press_until(page, "#if-straggler_factor")
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(".readout:has-text('+')")
        assert "if.straggler_factor=1.3" in page.url
        press_until(page, "canvas")
        before = page.evaluate("document.activeElement.toDataURL()")
        page.keyboard.press("+")
        page.wait_for_timeout(200)
        assert page.evaluate("document.activeElement.toDataURL()") != before
        page.keyboard.press("]")
        page.wait_for_selector("#spoken:has-text('rank')", state="attached")
        assert complaints == []


def test_a_link_holds_both_questions_and_the_what_ifs(
    browser: Any, served: ServedPage, small_plan: str
) -> None:
    with opened_page(browser, f"{served.address}{LINK}&{SECOND}&if.links=0.25") as (page, _):
        wait_for_plan(page)
        differences = page.inner_text(".differences")
        assert "micro batch" in differences
        assert "sequence" not in differences  # which is equal in both
        page.wait_for_selector(".readout:has-text('B: ')")
        link = page.url
    with opened_page(browser, link) as (page, _):
        wait_for_plan(page)
        assert page.inner_text(".differences") == differences
        assert page.input_value("#pin-pp") == "2"
        page.click("text=Close B")
        assert page.locator(".differences").count() == 0
        assert "2.model" not in page.url


def test_a_refusal_stands_beside_its_field(browser: Any, served: ServedPage) -> None:
    with opened_page(browser, f"{served.address}{LINK}&pins.tp=5") as (page, _):
        page.wait_for_selector("#pin-tp[aria-invalid=true]")
        assert "without --tp" in page.inner_text("#pin-tp-error")
        page.fill("#global_batch", "")
        page.click("#plan")
        assert "say how many" in page.inner_text("#global_batch-error")
        assert page.locator("#pin-tp[aria-invalid]").count() == 0


def test_the_plan_and_the_report_are_one_link_away(
    browser: Any, served: ServedPage, small_plan: str
) -> None:
    with opened_page(browser, served.address + LINK) as (page, _):
        wait_for_plan(page)
        with page.expect_download() as download:
            page.click("text=Plan as JSON")
        assert download.value.suggested_filename == f"plan-{small_plan}.json"
        with page.context.expect_page() as report:
            page.click("text=Report of the step")
        report.value.wait_for_load_state()
        assert "Where the step of each stage goes" in report.value.inner_text("body")


def test_the_question_of_the_tests_is_that_of_the_link() -> None:
    assert f"model={SMALL['model']}&cluster={SMALL['cluster']}" in LINK
