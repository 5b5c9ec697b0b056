"""What the parts of `benchmarks/gpu.sh` left behind, joined to one file.

`python -m benchmarks.gpu_results WORK RESULTS PARTS`: WORK holds a file of every part that ran, and
`parts`, a line for each with its exit code and seconds. RESULTS gets `device`, `versions`, `rows`
(one per model that was trained) and `checks` (single facts and tests, and the parts themselves). Of
an older RESULTS what other parts left stays. The exit code is 1 where a part that decides failed or
ran no test.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu_rows import lines

Row = dict[str, Any]
TESTS = ("kernels", "training", "runs")
UNDECIDED = ("peers",)  # their rows are there; they decide nothing
CODES = {"124": "not done in its time", "137": "killed after its time", "5": "no test ran"}
DETAILS = 2000  # characters at the end of what a part said


def main(work: Path, results: Path, parts: list[str]) -> int:
    """Write the file, print what is not well, return the exit code."""
    found = joined(work, _before(results), parts)
    results.write_text(json.dumps(found, indent=1) + "\n")
    checks = found["checks"]
    passed = sum(row["ok"] is True for row in checks)
    print(f"\n{results}: {passed} of {len(checks)} checks, {len(found['rows'])} rows")
    for row in checks:
        if row["ok"] is not True:
            said = "FAILED" if row["ok"] is False else "not run"
            print(f"  {said} {row['name']}: {row.get('error')}")
    if found["rows"]:
        print("\n".join(lines(found["rows"])))
    return int(any(row["decides"] and not row["ok"] for row in checks if "decides" in row))


def _before(results: Path) -> Row:
    try:
        found: Row = json.loads(results.read_text())
        return found if {"rows", "checks"} <= set(found) else {}
    except (OSError, ValueError):
        return {}


def joined(work: Path, before: Row, parts: list[str]) -> Row:
    """Join what is in a folder with what was known; a part that ran replaces what it had left."""
    found: Row = {"device": None, "versions": {}} | {
        key: before[key] for key in ("device", "versions") if before.get(key)
    }
    rows = [] if "rows" in parts else before.get("rows", [])
    if (path := work / "rows.json").exists():
        rows = json.loads(path.read_text())["rows"]
    checks = [one for one in before.get("checks", []) if one.get("part") not in (None, *parts)]
    passed = set()
    for part in parts:
        for row in _of_part(work, part):
            checks.append({"part": part, **row})
            if row["ok"]:
                passed.add(part)
        if part == "facts" and (path := work / "facts.json").exists():
            read = json.loads(path.read_text())
            found |= {key: read[key] for key in ("device", "versions")}
    checks += _parts(work, passed)
    return found | {"rows": rows, "checks": checks}


def _of_part(work: Path, part: str) -> Iterator[Row]:
    """What a part found, fact by fact or test by test."""
    if part in ("facts", "peers") and (path := work / f"{part}.json").exists():
        yield from json.loads(path.read_text())["rows"]
    report = work / f"{part}.xml"
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = next((one for one in case if one.tag in ("failure", "error")), None)
        skipped = next((one for one in case if one.tag == "skipped"), None)
        row: Row = {
            "name": f"{case.get('classname')}.{case.get('name')}",
            "ok": False if wrong is not None else None if skipped is not None else True,
            "seconds": float(case.get("time", 0)),
        }
        said = wrong if wrong is not None else skipped
        if said is not None:
            row["error"] = (said.get("message") or "")[:500]
            row["details"] = (said.text or "")[-DETAILS:]
        yield row


def _parts(work: Path, passed: set[str]) -> Iterator[Row]:
    """A check for every part that was begun."""
    for line in (work / "parts").read_text().splitlines():
        name, code, seconds = line.split()
        if name in TESTS and code == "0" and name not in passed:
            code = "5"  # pytest is content where every test was skipped
        row: Row = {
            "part": name,
            "name": f"part.{name}",
            "ok": code == "0",
            "seconds": int(seconds),
            "decides": name not in UNDECIDED,
        }
        if code != "0":
            row["error"] = CODES.get(code, f"exit code {code}")
            row["details"] = (work / f"{name}.log").read_text(errors="replace")[-DETAILS:]
        yield row


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split()))
