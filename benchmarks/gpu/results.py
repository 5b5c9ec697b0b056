"""Results of the slices of `benchmarks/gpu.sh`: a file for each device, and a table.

`python -m benchmarks.gpu.results [FOLDER] [--out FOLDER] [--markdown]` reads every `*.jsonl` in a
folder (benchmarks/results/lines) and its folders, and writes `gpu-<device>.json` (in
benchmarks/results): `device`, `versions`, `rows` (one per model that was trained, as `rows.py`
has it), `parts`, `facts`, `tests` (counts by file) and `failures`. Of a part that ran several times
the last run counts that came to its end, so all that stands beside each other is of one run. Given
such a file instead of a folder it prints what that holds.
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

from benchmarks.gpu.lines import Line, folded, read
from benchmarks.gpu.rows import lines, lines_without_times, markdown, row
from benchmarks.gpu.trained_models import TRAINED

Figures = dict[str, Any]
RESULTS = Path(__file__).resolve().parents[1] / "results"
ITEMS = ("ours", "torch", "ahead")  # begin what rows are made of
EMULATED = "emulated"  # the device of lines that name none


def main() -> int:
    """Write the files; return 1 where there are no lines."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu.results", description=__doc__)
    asked.add_argument("folder", type=Path, nargs="?", default=RESULTS / "lines")
    asked.add_argument("--out", type=Path, default=RESULTS)
    asked.add_argument("--markdown", action="store_true")
    options = asked.parse_args()
    if is_file := options.folder.suffix == ".json":
        if not (summaries := read_summaries(options.folder)):
            asked.error(f"{options.folder} is no file that this command has written")
    else:
        summaries = by_device(options.folder)
    for device_summary in summaries:
        if not is_file:
            written(device_summary, options.out)
        print(
            markdown(device_summary["rows"])
            if options.markdown
            else "\n".join(summary_lines(device_summary))
        )
    if not summaries:
        print(f"benchmarks.gpu.results: there are no lines in {options.folder}", file=sys.stderr)
    return int(not summaries)


def read_summaries(path: Path) -> list[Figures]:
    """Summaries in a file that this command has written; none where it is no such file."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [document] if isinstance(document, dict) and {"device", "rows"} <= set(document) else []


def summarised(folder: Path, out: Path) -> list[str]:
    """Write the file of every device of which there are lines; return what people want to read."""
    summaries = by_device(folder)
    for device_summary in summaries:
        written(device_summary, out)
    return [text for device_summary in summaries for text in summary_lines(device_summary)]


def written(device_summary: Figures, out: Path) -> None:
    """Replace a device's file at once: it is never half written. What is no number is null."""
    path = out / f"gpu-{slug(device_summary['device'])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    plain = json.loads(json.dumps(device_summary), parse_constant=lambda name: None)
    half.write_text(json.dumps(plain, indent=1) + "\n")
    os.replace(half, path)


def slug(device: str) -> str:
    """Name of a device as file names have it.

    Examples
    --------
    >>> slug("NVIDIA H100 80GB HBM3")
    'h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9]+", "-", device.lower().removeprefix("nvidia ")).strip("-")


def by_device(folder: Path) -> list[Figures]:
    """Summaries of all devices, from all lines in a folder."""
    of_devices: dict[str, list[Line]] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        file_lines = read(path)
        runs = {
            line["run"]: line["figures"]["device"] for line in file_lines if line["name"] == "run"
        }
        for line in file_lines:
            of_devices.setdefault(runs.get(line.get("run"), EMULATED), []).append(line)
    return [summary(device, device_lines) for device, device_lines in sorted(of_devices.items())]


def summary(device: str, device_lines: Sequence[Line]) -> Figures:
    """Join the lines of one device."""
    parts = {part: folded(of) for part, of in _last_runs(device_lines).items()}
    every = [line for of in parts.values() for line in of.values()]
    versions = [line.get("figures") for line in every if line["name"] == "versions"]
    decided = [line for line in every if line["name"].partition(".")[0] not in ITEMS]
    return {
        "device": device,
        "versions": (versions or [None])[-1] or {},
        "rows": _rows(parts),
        "parts": [
            {"name": line["name"].removeprefix("part.")}
            | _plain(line, "run", "ok", "seconds", "error")
            for line in every
            if _of_part(line)
        ],
        "facts": {
            line["name"]: line["figures"]
            for line in decided
            if line.get("figures") and line["name"] not in ("versions", "run", "tests")
        },
        "tests": _counts(line for line in every if "::" in line["name"]),
        "failures": [
            _plain(line, "part", "name", "error", "details")
            for line in decided
            if line["ok"] is False
        ],
    }


def _last_runs(device_lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines by part, those of the last run that came to its end, or else of the last."""
    parts: dict[str, dict[str, list[Line]]] = {}
    for line in device_lines:
        runs = parts.setdefault(line.get("part", ""), {})
        runs.setdefault(line.get("run", ""), []).append(line)
    chosen = {}
    for part, runs in parts.items():
        every = list(runs.values())
        finished = [of for of in every if any(_of_part(line) and "seconds" in line for line in of)]
        chosen[part] = (finished or every)[-1]
    return chosen


def _of_part(line: Line) -> bool:
    return str(line["name"]).startswith("part.")


def _rows(parts: Mapping[str, Mapping[str, Line]]) -> list[Figures]:
    rows = []
    for part, of in parts.items():
        for entry in TRAINED:
            ours, theirs = (of.get(f"{who}.{entry.model}") for who in ("ours", "torch"))
            if ours or theirs:
                rows.append({"part": part} | row(entry, ours or {}, theirs or {}))
    return rows


def _counts(tests: Iterable[Line]) -> dict[str, dict[str, int]]:
    words = {True: "passed", False: "failed", None: "skipped"}
    counts: dict[str, Counter[str]] = {}
    for line in tests:
        word = "not done" if line.get("late") else words[line["ok"]]
        counts.setdefault(line["name"].partition("::")[0], Counter())[word] += 1
    return {name: dict(count_by_ending) for name, count_by_ending in counts.items()}


def _plain(line: Line, *names: str) -> Figures:
    return {name: line[name] for name in names if line.get(name) is not None}


def summary_lines(device_summary: Figures) -> list[str]:
    """Summary of a device in lines for people."""
    text = [f"{device_summary['device']}:"]
    for part in device_summary["parts"]:
        ended = "ok" if part.get("ok") else part.get("error", "its end is not known")
        text.append(f"  {part['name']}: {ended}")
    for name, counts in device_summary["tests"].items():
        text.append(f"  {name}: " + ", ".join(f"{count} {how}" for how, count in counts.items()))
    for failure in device_summary["failures"]:
        text.append(f"  FAILED {failure['name']}: {failure.get('error')}")
    table = lines_without_times if device_summary["device"] == EMULATED else lines
    return text + (table(device_summary["rows"]) if device_summary["rows"] else [])


if __name__ == "__main__":
    sys.exit(main())
