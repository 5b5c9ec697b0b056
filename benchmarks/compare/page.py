"""Fluency of the comparison page: milliseconds of a frame while a large page is panned.

    python -m benchmarks.compare.page [--actors 10000] [--microbatches 32] [--ranks 8]

A page is written of a made-up plan of so many actors, each fired once a microbatch, by both traces.
A headless Chromium opens it and pans through it at several zooms, sixty frames each, then zooms in
and out. Columns: the stretch of time that is in view; the time in which the script draws a frame;
the time from one frame to the next (16.7 ms is a screen's own); median, and the 95th of a hundred.
The browser draws with the processor: with a graphics card it is faster.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from millrace.comparison import join
from millrace.comparison_page import comparison_page
from tests.browsers import chromium, opened
from tests.millrace.comparison_page.wide_traces import wide_comparison

FRAMES = 60
ZOOMS = (1, 8, 64, 512)

# Pans to and fro, or zooms in and out, by events of the wheel, one a frame. The script's own share
# is what its frame callback takes, which runs between those of this one that are asked for before
# and after it.
PAN = """async ([frames, axis]) => {
  const canvas = document.getElementById("timelines");
  const box = canvas.getBoundingClientRect();
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const intervals = [], drawing = [];
  let last = await frame();
  for (let i = 0; i < frames; i++) {
    const before = new Promise((done) => requestAnimationFrame(() => done(performance.now())));
    canvas.dispatchEvent(new WheelEvent("wheel", {
      [axis]: i % 40 < 20 ? -25 : 25, clientX: box.left + 500, clientY: box.top + 60,
      cancelable: true,
    }));
    const after = new Promise((done) => requestAnimationFrame(() => done(performance.now())));
    drawing.push(-(await before) + (await after));
    const now = await frame();
    intervals.push((now - last) / 2);
    last = now;
  }
  return { intervals, drawing };
}"""

ZOOM = """(times) => {
  const canvas = document.getElementById("timelines");
  const box = canvas.getBoundingClientRect();
  for (let i = 0; i < times; i++) {
    canvas.dispatchEvent(new WheelEvent("wheel", {
      deltaY: -100 * Math.LN2 / 0.2, clientX: box.left + 500, clientY: box.top + 60,
      cancelable: true,
    }));
  }
}"""


def main() -> None:
    """Write the page, open it and print a line for each zoom."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=10_000)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path, help="keep the page here")
    options = parser.parse_args()
    begun = time.perf_counter()
    wide = wide_comparison(options.actors, options.microbatches, options.ranks)
    traces = (wide.predicted, wide.measured)
    comparison = join(*traces)
    joined = time.perf_counter()
    title = f"{options.actors:,} actors, {options.microbatches} microbatches, {options.ranks} ranks"
    page = comparison_page(title, comparison, traces, (wide.graph, wide.cluster))
    written = time.perf_counter()
    print(f"{title}: {2 * len(wide.predicted.spans):,} firings")
    print(
        f"traces made and joined in {joined - begun:.1f} s, page of {len(page.encode()) / 1e6:.1f} "
        f"MB written in {written - joined:.1f} s"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = options.output or Path(folder) / "page.html"
        path.write_text(page)
        try:
            with chromium() as browser:
                measure(browser, path.resolve())
        except pytest.skip.Exception as absence:
            sys.exit(str(absence))


def measure(browser: Any, path: Path) -> None:
    """Open a page and print its loading time and a line for each zoom."""
    begun = time.perf_counter()
    with opened(browser, path) as (page, said):
        page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
        print(f"opened and drawn in {time.perf_counter() - begun:.1f} s")
        print(f"{'in view':>8} {'drawing ms':>16} {'frame ms':>16}")
        zoom = 1
        for target in ZOOMS:
            while zoom < target:
                page.evaluate(ZOOM, 1)
                zoom *= 2
            page.evaluate(PAN, [10, "deltaX"])
            stretch = "all" if target == 1 else f"1 / {target}"
            print(line(stretch, page.evaluate(PAN, [FRAMES, "deltaX"])))
        page.locator("#reset").click()
        print(line("zooming", page.evaluate(PAN, [FRAMES, "deltaY"])))
        if said:
            print("the page said:", *said, sep="\n  ")


def line(name: str, times: dict[str, list[float]]) -> str:
    """Line of the table: median and 95th of a hundred, of drawing and of frames."""
    columns = "".join(
        f" {statistics.median(row):7.1f} {sorted(row)[int(0.95 * len(row))]:8.1f}"
        for row in (times["drawing"], times["intervals"])
    )
    return f"{name:>8}{columns}"


if __name__ == "__main__":
    main()
