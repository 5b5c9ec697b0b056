#!/usr/bin/env bash
# Everything that a machine with a GPU can show, by one command: under ten minutes, no network.
# Usage: bash benchmarks/gpu.sh (PYTHON names the interpreter). Writes benchmarks/results/gpu.json
# whatever happens; the exit code is not 0 if a part that checks for correctness failed or did not
# run. How libraries fare that we can do without is written down and decides nothing.
set -u
cd "$(dirname "$0")/.." || exit 2

python=${PYTHON:-$(command -v python3 || command -v python || echo python3)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
export CUPY_CACHE_DIR=${CUPY_CACHE_DIR:-$work/cupy}
results=benchmarks/results/gpu.json
mkdir -p benchmarks/results
rm -f "$results"

# part NAME SECONDS COMMAND...: run with a limit of time; note the exit code and how long it took.
part() {
  local name=$1 limit=$2 begun=$SECONDS code
  shift 2
  printf '\n== %s (at most %s s)\n' "$name" "$limit"
  timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$work/$name.log"
  code=${PIPESTATUS[0]}
  printf '%s %s %s\n' "$name" "$code" "$((SECONDS - begun))" >>"$work/parts"
}

part first_gpu 330 "$python" -m benchmarks.first_gpu --out "$work/first_gpu.json" --budget 310
part tests 220 "$python" -m pytest -m gpu tests/gpu -q -p no:cacheprovider \
  --junitxml="$work/tests.xml"

"$python" - "$work" "$results" <<'JOIN' && exit 0
import json
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

work, results = map(Path, sys.argv[1:])
found = {"device": None, "versions": {}, "rows": []}
first, passed = work / "first_gpu.json", 0
if first.exists():
    found = json.loads(first.read_text())
if (work / "tests.xml").exists():
    for case in xml.parse(work / "tests.xml").iter("testcase"):
        wrong = next((one for one in case if one.tag in ("failure", "error")), None)
        skipped = next((one for one in case if one.tag == "skipped"), None)
        row = {
            "name": f"{case.get('classname')}.{case.get('name')}",
            "ok": False if wrong is not None else None if skipped is not None else True,
            "seconds": float(case.get("time", 0)),
        }
        said = wrong if wrong is not None else skipped
        if said is not None:
            row["error"] = (said.get("message") or "")[:500]
            row["details"] = (said.text or "")[-2000:]
        found["rows"].append(row)
        passed += row["ok"] is True
failed = False
for line in (work / "parts").read_text().splitlines():
    name, code, seconds = line.split()
    if name == "tests" and code == "0" and not passed:
        code = "5"  # pytest is content where every test was skipped
    row = {"name": f"part.{name}", "ok": code == "0", "seconds": int(seconds)}
    if code != "0":
        failed = True
        row["error"] = {
            "124": "not done in its time",
            "137": "killed after its time",
            "5": "no test ran",
        }.get(code, f"exit code {code}")
        row["details"] = (work / f"{name}.log").read_text(errors="replace")[-2000:]
    found["rows"].append(row)
results.write_text(json.dumps(found, indent=1) + "\n")
print(f"\n{results}: {sum(row['ok'] is True for row in found['rows'])} of {len(found['rows'])} rows")
for row in found["rows"]:
    if row["ok"] is not True:
        print(f"  {'FAILED' if row['ok'] is False else 'not run'} {row['name']}: {row.get('error')}")
sys.exit(failed)
JOIN

# Reached where a part failed, or where there is no Python that could say so.
if [ ! -s "$results" ]; then
  printf '{"device": null, "versions": {}, "rows": [{"name": "part.python", "ok": false, "seconds": 0, "error": "%s did not run"}]}\n' \
    "$python" >"$results"
fi
exit 1
