"""A headless browser for tests of pages: where there is none, these tests skip and say what to do.

It is Debian's or anybody's Chromium, driven by Playwright, which brings no browser of its own here.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extras import optional

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium_path() -> str | None:
    """Path of the first browser of `CHROMIUM` that is installed."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window, or a skip where there is none."""
    playwright = optional("playwright.sync_api", "browser")
    path = chromium_path()
    if path is None:
        pytest.skip("no browser: apt-get install chromium", allow_module_level=True)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Any, html: Path, width: int = 1280, scripts: bool = True
) -> Iterator[tuple[Any, list[str]]]:
    """A page without a network, and a list that fills with what it complains of or asks for."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, offline=True, java_script_enabled=scripts
    )
    context.set_default_timeout(10_000)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (said.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: asked(request.url))

    def asked(url: str) -> None:
        if url != html.as_uri():
            said.append(f"request: {url}")

    try:
        page.goto(html.as_uri())
        yield page, said
    finally:
        context.close()
