#!/usr/bin/env bash
# Everything that a machine with a GPU can show, by one command: under ten minutes, no network.
# Usage: bash benchmarks/gpu.sh [--dry-run] (PYTHON names the interpreter). Writes
# benchmarks/results/gpu.json whatever happens; the exit code is not 0 if there is no GPU, or a part
# that checks for correctness failed or did not run. How libraries fare that we can do without is
# written down and decides nothing. --dry-run says what would run and what is predicted.
set -u
cd "$(dirname "$0")/.." || exit 2

python=${PYTHON:-$(command -v python3 || command -v python || echo python3)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
export CUPY_CACHE_DIR=${CUPY_CACHE_DIR:-$work/cupy}
results=benchmarks/results/gpu.json
total=570 # seconds for all parts

if [ "${1:-}" = --dry-run ]; then
  "$python" -m benchmarks.first_gpu --list && "$python" -m benchmarks.gpu --dry-run
  exit
elif [ $# -gt 0 ]; then
  echo "benchmarks/gpu.sh: $1 is not known; it takes --dry-run or nothing" >&2
  exit 2
fi
mkdir -p benchmarks/results
rm -f "$results"

# part NAME SECONDS COMMAND...: run with a limit of time; note the exit code and how long it took.
part() {
  local name=$1 limit=$2 begun=$SECONDS code
  shift 2
  if [ "$limit" -gt $((total - SECONDS)) ]; then limit=$((total - SECONDS)); fi
  if [ "$limit" -lt 1 ]; then limit=1; fi
  printf '\n== %s (at most %s s)\n' "$name" "$limit"
  timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$work/$name.log"
  code=${PIPESTATUS[0]}
  printf '%s %s %s\n' "$name" "$code" "$((SECONDS - begun))" >>"$work/parts"
}

if ! "$python" -c 'import sys; from benchmarks.gpu import missing_gpu as m; sys.exit(m())'; then
  printf '%s\n' 'benchmarks/gpu.sh: nothing was run, for what the line above says' >&2
  printf '{"device": null, "versions": {}, "rows": [{"name": "part.gpu", "ok": false, "seconds": 0, "error": "no usable GPU"}]}\n' \
    >"$results"
  exit 1
fi
# tests NAME SECONDS FILE...: a part that runs some of the tests; pytest writes its report at the end.
tests() {
  local name=$1 limit=$2
  shift 2
  part "$name" "$limit" "$python" -m pytest -m gpu "${@/#/tests/gpu/}" -q -p no:cacheprovider \
    --durations=5 --junitxml="$work/$name.xml"
}

part first_gpu 90 "$python" -m benchmarks.first_gpu --which ours --out "$work/first_gpu.json" \
  --budget 85
tests test_kernels 130 test_kernels.py test_products.py test_collectives.py
tests test_training 170 test_training.py
part training 160 "$python" -m benchmarks.gpu --out "$work/training.json" --budget 155
tests test_runs 150 test_memory.py test_front_door.py test_failures.py
part peers 120 "$python" -m benchmarks.first_gpu --which peers --out "$work/peers.json" --budget 110

"$python" - "$work" "$results" <<'JOIN' && exit 0
import json
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

work, results = map(Path, sys.argv[1:])
found = {"device": None, "versions": {}, "rows": []}
passed = set()
for name in ("first_gpu", "training", "peers"):
    path = work / f"{name}.json"
    if path.exists():
        read = json.loads(path.read_text())
        found["rows"] += read["rows"]
        if name == "first_gpu":
            found |= {key: read[key] for key in ("device", "versions")}
for report in sorted(work.glob("*.xml")):
    for case in xml.parse(report).iter("testcase"):
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
        if row["ok"]:
            passed.add(report.stem)
failed = False
for line in (work / "parts").read_text().splitlines():
    name, code, seconds = line.split()
    if name == "peers":
        continue  # its rows are there; they decide nothing
    if name.startswith("test_") and code == "0" and name not in passed:
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
