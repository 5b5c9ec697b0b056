"""Facts of a machine with a GPU that the executor relies on, item by item.

Run `python -m benchmarks.gpu.slices.facts [--item NAME] [--budget SECONDS] [--emulated]` from the
root of the repository. Every item of `versions.py` and `items.py` runs in a process of its own with
a limit of time and leaves its line. The exit code is 1 if one failed. `--emulated` leaves out those
that need a GPU, and says so.
"""

import argparse
import sys
import time
from collections.abc import Callable

from benchmarks.gpu.lines import append
from benchmarks.gpu.processes import Figures, run_apart, run_here, unwind_when_asked_to_end

ITEM_S_MAX = 45


def main() -> int:
    """Run one item in this process, or all of them, each in its own."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu.slices.facts", description=__doc__)
    asked.add_argument("--item")
    asked.add_argument("--budget", type=float, default=120.0, help="seconds for all items")
    asked.add_argument("--emulated", action="store_true")
    options = asked.parse_args()
    if options.item is not None:
        return run_here(options.item, items()[options.item])
    unwind_when_asked_to_end()
    began, failed = time.monotonic(), False
    for name in items():
        if options.emulated:
            append(name, None, seconds=0, error="needs a GPU")
            continue
        left_s = options.budget - (time.monotonic() - began)
        line = run_apart(name, min(ITEM_S_MAX, left_s), "benchmarks.gpu.slices.facts")
        failed |= line["ok"] is False or bool(line.get("late"))
        print(f"{name}: {'ok' if line['ok'] else line.get('error')}", flush=True)
    return int(failed)


def items() -> dict[str, Callable[[], Figures]]:
    """Items by name, in the order in which they run."""
    from benchmarks.gpu.slices import items as device_items
    from benchmarks.gpu.slices import versions

    return {**versions.ITEMS, **device_items.ITEMS}


if __name__ == "__main__":
    sys.exit(main())
