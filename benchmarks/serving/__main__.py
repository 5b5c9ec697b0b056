"""The page of `millrace serve`: how soon it is painted, planned, and answers a slider; 500 attacks.

Needs Chromium and `pip install -e '.[test,browser]'`. Times mean something only while nothing else
runs. `--hostile-only` needs no browser.
"""

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from time import perf_counter
from typing import Annotated, Any

import typer

from benchmarks.serving.hostile import hostile_requests, sent

PAINTS = 7
PAUSE_MS = 150  # of a hand, between an answer and the next move
# Questions by name, as the page's link has them; sliders are moved on each plan.
QUESTIONS = {
    "gpt2-small, 4 A100": "model=gpt2-small&cluster=a100:4x1&global_batch=32",
    "llama3-8b, 16 H100": "model=llama3-8b&cluster=h100:8x2&global_batch=256",
    "llama3-70b, 64 H100, pinned": (
        "model=llama3-70b&cluster=h100:8x8&global_batch=256&seq_len=8192&pins.pp=4&pins.tp=8"
        "&pins.micro_batch=1&pins.interleave=1&pins.zero=1&pins.recompute=none"
    ),
}
SLIDERS = ("straggler_factor", "jitter", "network", "links", "compute")
MOVE = """([name, position]) => new Promise((resolve) => {
  const input = document.getElementById(`if-${name}`);
  const began = performance.now(), times = [];
  const observer = new MutationObserver(() => {
    times.push(performance.now() - began);
    if (times.length < 2) return;
    observer.disconnect();
    resolve(times);
  });
  observer.observe(document.body, { attributeFilter: ["data-answers"] });
  input.value = position;
  input.dispatchEvent(new Event("input", { bubbles: true }));
})"""


@contextmanager
def running_server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Address of a server in a process of its own, and the process."""
    command = [sys.executable, "-m", "millrace", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        match = re.search(r"http://\S+/", process.stderr.readline())
        assert match is not None
        try:
            yield match[0], process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def spread(times_ms: list[float]) -> str:
    """Median, 95th percentile and maximum of times, as text."""
    p95 = quantiles(times_ms, n=20)[-1] if len(times_ms) > 1 else times_ms[0]
    return f"p50 {median(times_ms):4.0f} ms, p95 {p95:4.0f} ms, most {max(times_ms):4.0f} ms"


def main(
    hostile_only: Annotated[bool, typer.Option("--hostile-only", help="No browser.")] = False,
) -> None:
    """Measure the page, and attack its server."""
    began = perf_counter()
    with running_server() as (address, process):
        print(f"address printed after {perf_counter() - began:.2f} s")
        if not hostile_only:
            _measure(address)
        _attack(address, process)


def _measure(address: str) -> None:
    from tests.browsers import chromium

    with chromium() as browser:
        paints, readies = zip(*(_painted(browser, address) for _ in range(PAINTS)), strict=True)
        print(f"first paint  {spread(list(paints))} ({PAINTS} times, nothing cached)")
        print(f"form filled  {spread(list(readies))}")
        everything: list[float] = []
        for name, question in QUESTIONS.items():
            everything += _moved(browser, address, name, question)
        print(f"all sliders  {spread(everything)}, of {len(everything)} moves")


def _painted(browser: Any, address: str) -> tuple[float, float]:
    """Milliseconds from the navigation to the first contentful paint, and to a filled form."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    ready_ms = page.evaluate("performance.now()")
    paint_ms = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? performance.now()"
    )
    context.close()
    return paint_ms, ready_ms


def _moved(browser: Any, address: str, name: str, question: str) -> list[float]:
    """Milliseconds from every move of a slider to the new figures."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    began = perf_counter()
    page.goto(f"{address}#{question}")
    page.wait_for_selector("#plans:not([hidden])", timeout=300_000)
    planned_s = perf_counter() - began
    page.wait_for_selector(".stage-bar", timeout=60_000)
    shown_s = perf_counter() - began
    figures_ms: list[float] = []
    charts_ms: list[float] = []
    for slider in SLIDERS:
        input_of = page.locator(f"#if-{slider}")
        if not input_of.is_visible():
            continue
        before, most = int(input_of.input_value()), int(input_of.get_attribute("max"))
        for position in [*range(most + 1), before]:
            if position == int(input_of.input_value()):
                continue
            page.wait_for_timeout(PAUSE_MS)
            figures, charts = page.evaluate(MOVE, [slider, position])
            figures_ms.append(figures)
            charts_ms.append(charts)
    context.close()
    print(f"{name}: planned in {planned_s:.1f} s, drawn {shown_s - planned_s:.2f} s later")
    print(f"  figures    {spread(figures_ms)}, {len(figures_ms)} moves")
    print(f"  and charts {spread(charts_ms)}")
    return figures_ms


def _attack(address: str, process: "subprocess.Popen[str]") -> None:
    statuses: Counter[int] = Counter()
    mute: list[str] = []
    count = 0
    began = perf_counter()
    for name, request in hostile_requests():
        status, sentence = sent(address, request)
        count += 1
        statuses[status] += 1
        if not 400 <= status < 500 or not sentence:
            mute.append(f"{name}: {status} {sentence!r}")
    listed = ", ".join(f"{status} × {number}" for status, number in sorted(statuses.items()))
    print(f"{count} hostile requests in {perf_counter() - began:.0f} s: {listed}")
    print(f"  without a sentence and 4xx: {len(mute)}")
    for line in mute[:20]:
        print(f"    {line}")
    alive = process.poll() is None and sent(address, (b"GET", b"/api/catalogue", {}, b""))[0] == 200
    print(f"  the server {'answers as before' if alive else 'has ended'}")


if __name__ == "__main__":
    typer.run(main)
