"""What holds on a machine with a GPU, item by item: the facts that no machine without one can show.

Run `python -m benchmarks.first_gpu [--out FILE] [--which all/ours/peers] [--item NAME] [--list]`
from the root of the repository. Every item of `benchmarks/gpu_versions.py`, `gpu_items.py` and
`gpu_peers.py` runs in a process of its own with a limit of time, so that one that crashes, hangs or
breaks its context spoils no other. Prints a row per item; the file holds `device`, `versions` and
`rows`, each with `name`, `ok`, `seconds`, `figures` and `error`. `ok` is null where a library that
we can do without is not installed. The exit code is 1 if an item failed that is not of such a
library.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Figures = dict[str, object]
MARK = "FIGURES "  # begins the line in which an item's process hands over what it found
PEERS = ("torch_", "cudnn_", "triton_", "external_")  # begin items of what we do not depend on
OPTIONAL = {"torch", "triton", "cudnn", "cuda"}  # modules of theirs
ITEM_S_MAX = 60
PEER_S_MAX = 90  # torch.compile alone takes half a minute


def main() -> None:
    """Run one item in this process, or all of them, each in its own."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--item")
    asked.add_argument("--list", action="store_true")
    asked.add_argument("--which", choices=("all", "ours", "peers"), default="all")
    asked.add_argument("--budget", type=float, default=360.0, help="seconds for all items")
    options = asked.parse_args()
    if options.list:
        print("\n".join(items()))
    elif options.item is not None:
        sys.exit(run_here(options.item, items()))
    else:
        rows = run_all(options.budget, options.out, options.which)
        sys.exit(any(row["ok"] is False for row in rows if not is_peer(row)))


def items() -> dict[str, Callable[[], Figures]]:
    """Return every item by name, in the order in which they run."""
    from benchmarks import gpu_items, gpu_versions

    return {**gpu_versions.ITEMS, **gpu_items.ITEMS}


def is_peer(row: Figures) -> bool:
    """True for an item of another library, whose failure is none of ours."""
    return str(row["name"]).startswith(PEERS)


def run_here(name: str, items: Mapping[str, Callable[[], Figures]]) -> int:
    """Run one item and print what it found."""
    row: Figures = {"ok": True}
    try:
        row["figures"] = items[name]()
    except ModuleNotFoundError as missing:
        absent = (missing.name or "").partition(".")[0] in OPTIONAL
        row = {"ok": None if absent else False, "error": str(missing)}
    except BaseException as caught:
        row = {"ok": False, "error": f"{type(caught).__name__}: {caught}"}
        traceback.print_exc()
    print(MARK + json.dumps(row), flush=True)
    return int(row["ok"] is False)


def hand_over(figures: Figures) -> None:
    """Print what an item has found so far: all that is left of it, should it not end."""
    print(MARK + json.dumps({"ok": True, "figures": figures}), flush=True)


def run_all(budget_s: float, out: Path | None, which: str = "all") -> list[Figures]:
    """Run every item, or only ours or those of peers, and write the file after each."""
    begun, rows = time.monotonic(), []
    found: Figures = {"device": None, "versions": {}, "rows": rows}
    for name in items():
        if which != "all" and (which == "peers") != name.startswith(PEERS):
            continue
        left_s = budget_s - (time.monotonic() - begun)
        limit_s = PEER_S_MAX if name.startswith(PEERS) else ITEM_S_MAX
        row = run_apart(name, min(limit_s, left_s))
        rows.append(row)
        if name == "versions" and row["ok"]:
            found["versions"] = row["figures"]
            found["device"] = row["figures"]["device"]
        print(json.dumps(row), flush=True)
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n")
    return rows


def run_apart(
    name: str,
    limit_s: float,
    module: str = "benchmarks.first_gpu",
    arguments: Sequence[str] = (),
    **environment: str,
) -> Figures:
    """Run one item of a module in a process of its own; return its row.

    Of an item that is not done in time the row has the figures that it handed over before, and is
    `late`.
    """
    if limit_s < 1:
        return {"name": name, "ok": False, "seconds": 0, "late": True, "error": "no time was left"}
    begun = time.monotonic()
    command = [sys.executable, "-m", module, "--item", name, *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as late:
        out, said = map(_text, (late.stdout, late.stderr))
        row = row_of(subprocess.CompletedProcess(command, 0, out, said))
        row |= {"ok": False, "late": True, "error": f"not done after {limit_s:.0f} s"}
        row["details"] = said[-2000:]
    else:
        row = row_of(done)
    seconds = round(time.monotonic() - begun, 2)
    return {"name": name, "ok": False, "seconds": seconds, **row}


def _text(said: bytes | str | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


def row_of(done: subprocess.CompletedProcess[str]) -> Figures:
    """What a process handed over, or how it ended."""
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            row: Figures = json.loads(line.removeprefix(MARK))
            return {**row, "details": done.stderr[-2000:]} if row["ok"] is False else row
    ended = f"exit code {done.returncode}"
    if done.returncode < 0:
        ended = signal.Signals(-done.returncode).name
    return {"ok": False, "error": f"the process ended: {ended}", "details": done.stderr[-2000:]}


if __name__ == "__main__":
    main()
