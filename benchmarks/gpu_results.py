"""What the slices of `benchmarks/gpu.sh` found, from their lines: a file for each device, a table.

`python -m benchmarks.gpu_results [FOLDER] [--out FOLDER] [--markdown]` reads every `*.jsonl` in a
folder (benchmarks/results/lines) and its folders, and writes `gpu-<device>.json` (in
benchmarks/results): `device`, `versions`, `rows` (one per model that was trained, as `gpu_rows.py`
has it), `parts`, `facts`, `tests` (counts by file) and `failures`. Of a part that ran several times
the last run counts that came to its end, so all that stands beside each other is of one run.
`--markdown` prints the rows as a table of a README.
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_lines import Line, folded, read
from benchmarks.gpu_models import TRAINED
from benchmarks.gpu_rows import lines, markdown, row

Figures = dict[str, Any]
RESULTS = Path(__file__).resolve().parent / "results"
EMULATED = "emulated"  # the device of lines that name none


def main() -> int:
    """Write the files; return 1 where something failed."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path, nargs="?", default=RESULTS / "lines")
    asked.add_argument("--out", type=Path, default=RESULTS)
    asked.add_argument("--markdown", action="store_true")
    options = asked.parse_args()
    for found in by_device(options.folder):
        written(found, options.out)
        print(markdown(found["rows"]) if options.markdown else "\n".join(said(found)))
    return 0


def summarised(folder: Path, out: Path) -> list[str]:
    """Write the file of every device of which there are lines; return what people want to read."""
    found = by_device(folder)
    for one in found:
        written(one, out)
    return [text for one in found for text in said(one)]


def written(found: Figures, out: Path) -> None:
    """Replace a device's file at once: it is never half written."""
    path = out / f"gpu-{slug(found['device'])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(half, path)


def slug(device: str) -> str:
    """Return a device's name as file names have it.

    Examples
    --------
    >>> slug("NVIDIA H100 80GB HBM3")
    'h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9]+", "-", device.lower().removeprefix("nvidia ")).strip("-")


def by_device(folder: Path) -> list[Figures]:
    """Return what every device showed, from all lines in a folder."""
    of_devices: dict[str, list[Line]] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        found = read(path)
        runs = {line["run"]: line["figures"]["device"] for line in found if line["name"] == "run"}
        for line in found:
            of_devices.setdefault(runs.get(line.get("run"), EMULATED), []).append(line)
    return [summary(device, found) for device, found in sorted(of_devices.items())]


def summary(device: str, found: Sequence[Line]) -> Figures:
    """Join the lines of one device."""
    parts = {part: folded(of) for part, of in _last_runs(found).items()}
    every = {name: line for of in parts.values() for name, line in of.items()}
    tests = {name: line for name, line in every.items() if "::" in name}
    decided = {
        name: line
        for name, line in every.items()
        if name.partition(".")[0] not in ("ours", "torch")
    }
    return {
        "device": device,
        "versions": (every.get("versions") or {}).get("figures") or {},
        "rows": _rows(parts),
        "parts": [
            {"name": name.removeprefix("part.")} | _plain(line, "run", "ok", "seconds", "error")
            for name, line in every.items()
            if name.startswith("part.")
        ],
        "facts": {
            name: line["figures"]
            for name, line in decided.items()
            if line.get("figures") and name not in ("versions", "run", "tests")
        },
        "tests": _counts(tests),
        "failures": [
            _plain(line, "part", "name", "error", "details")
            for line in decided.values()
            if line["ok"] is False
        ],
    }


def _last_runs(found: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines by part, those of the last run that came to its end, or else of the last."""
    parts: dict[str, dict[str, list[Line]]] = {}
    for line in found:
        runs = parts.setdefault(line.get("part", ""), {})
        runs.setdefault(line.get("run", ""), []).append(line)
    chosen = {}
    for part, runs in parts.items():
        whole = [of for of in runs.values() if any("seconds" in one and _ends(one) for one in of)]
        chosen[part] = (whole or list(runs.values()))[-1]
    return chosen


def _ends(line: Line) -> bool:
    return str(line["name"]).startswith("part.")


def _rows(parts: Mapping[str, Mapping[str, Line]]) -> list[Figures]:
    found = []
    for part, of in parts.items():
        for entry in TRAINED:
            ours, theirs = (of.get(f"{who}.{entry.model}") for who in ("ours", "torch"))
            if ours or theirs:
                found.append({"part": part} | row(entry, ours or {}, theirs or {}))
    return found


def _counts(tests: Mapping[str, Line]) -> dict[str, dict[str, int]]:
    words = {True: "passed", False: "failed", None: "skipped"}
    counts: dict[str, Counter[str]] = {}
    for name, line in tests.items():
        counts.setdefault(name.partition("::")[0], Counter())[words[line["ok"]]] += 1
    return {name: dict(found) for name, found in counts.items()}


def _plain(line: Line, *names: str) -> Figures:
    return {name: line[name] for name in names if line.get(name) is not None}


def said(found: Figures) -> list[str]:
    """Return a summary as people read it."""
    text = [f"{found['device']}:"]
    for part in found["parts"]:
        ended = "ok" if part.get("ok") else part.get("error", "failed")
        text.append(f"  {part['name']}: {ended}")
    for name, counts in found["tests"].items():
        text.append(f"  {name}: " + ", ".join(f"{count} {how}" for how, count in counts.items()))
    for failure in found["failures"]:
        text.append(f"  FAILED {failure['name']}: {failure.get('error')}")
    return text + (lines(found["rows"]) if found["rows"] else [])


if __name__ == "__main__":
    sys.exit(main())
