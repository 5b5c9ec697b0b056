"""How fast whole training steps are on one GPU, beside what their plans say and PyTorch does.

Run `python -m benchmarks.gpu [--out FILE] [--budget SECONDS] [--item NAME] [--dry-run]` from the
root of the repository. Every item of `benchmarks/gpu_training.py` runs in a process of its own; the
file holds a row for each, with `name`, `ok`, `seconds`, `figures` and `error`, and is written after
every item. The exit code is 1 where there is no GPU or an item of ours failed. `--dry-run` needs no
GPU: it plans the items and prints what is predicted.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.first_gpu import Figures, is_peer, run_apart, run_here
from executor.gpu.availability import require_compiler, require_gpu

ITEM_S_MAX = 80


def main() -> None:
    """Run one item in this process, or all of them, each in its own."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--item")
    asked.add_argument("--budget", type=float, default=200.0, help="seconds for all items")
    asked.add_argument("--dry-run", action="store_true", help="plan and predict, run nothing")
    options = asked.parse_args()
    if options.dry_run:
        dry_run()
        return
    if (missing := missing_gpu()) is not None:
        sys.exit(f"benchmarks.gpu: {missing}")
    if options.item is not None:
        from benchmarks.gpu_training import ITEMS

        sys.exit(run_here(options.item, ITEMS))
    rows = run_all(options.budget, options.out)
    sys.exit(any(row["ok"] is False for row in rows if not is_peer(row)))


def missing_gpu() -> str | None:
    """Say what a run on a GPU lacks on this machine; None where it lacks nothing."""
    try:
        require_gpu(1)
        require_compiler()
    except (RuntimeError, ValueError) as missing:
        return str(missing)
    return None


def run_all(budget_s: float, out: Path | None) -> list[Figures]:
    """Run every item within the time, and write the file after each."""
    from benchmarks.gpu_training import ITEMS

    begun, rows = time.monotonic(), []
    for name in ITEMS:
        left_s = budget_s - (time.monotonic() - begun)
        rows.append(run_apart(name, min(ITEM_S_MAX, left_s), module="benchmarks.gpu"))
        print(json.dumps(rows[-1]), flush=True)
        if out is not None:
            out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return rows


def dry_run() -> None:
    """Print what would run and what its plans say."""
    from benchmarks.gpu_training import ITEMS, PLANNED, predicted

    for name, item in ITEMS.items():
        print(f"{name}: {(item.__doc__ or '').splitlines()[0]}")
        if name in PLANNED:
            print(f"  predicted: {json.dumps(predicted(name))}")
    print(f"nothing was run; this machine: {missing_gpu() or 'has a GPU'}")


if __name__ == "__main__":
    main()
