#!/usr/bin/env bash
# Everything that a machine with a GPU can show, by one command: under ten minutes, no network.
# Usage: bash benchmarks/gpu.sh [--dry-run] [--only PART...] (PYTHON names the interpreter). Parts, in
# the order in which they run: facts kernels training runs (what must hold), profile rows (how fast
# training is beside PyTorch, by the prediction of a profile of this GPU), peers (single kernels
# beside libraries'). Writes benchmarks/results/gpu.json whatever happens: `rows`, one per model that
# is trained, and `checks`. With --only it keeps the rows and checks of parts that do not run. The
# exit code is not 0 if there is no GPU, or a part failed or did not run. How libraries fare that we
# can do without is written down and decides nothing. --dry-run says what would run and what is
# predicted.
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

parts="facts kernels training runs profile rows peers"
if [ "${1:-}" = --dry-run ]; then
  "$python" -m benchmarks.first_gpu --list && "$python" -m benchmarks.gpu --dry-run
  exit
elif [ "${1:-}" = --only ] && [ $# -gt 1 ]; then
  shift
  for one in "$@"; do
    case " $parts " in
      *" $one "*) ;;
      *) echo "benchmarks/gpu.sh: there is no part $one; parts are $parts" >&2; exit 2 ;;
    esac
  done
  parts=$*
elif [ $# -gt 0 ]; then
  echo "benchmarks/gpu.sh: $1 is not known; it takes --dry-run, --only PART... or nothing" >&2
  exit 2
fi
mkdir -p benchmarks/results

# wants PART: whether it is to run.
wants() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

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
  printf '{"device": null, "versions": {}, "rows": [], "checks": [{"name": "part.gpu", "ok": false, "seconds": 0, "error": "no usable GPU"}]}\n' \
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

if wants facts; then
  part facts 60 "$python" -m benchmarks.first_gpu --which ours --out "$work/facts.json" --budget 55
fi
if wants kernels; then tests kernels 90 test_kernels.py test_products.py test_collectives.py; fi
if wants training; then tests training 80 test_training.py; fi
if wants runs; then tests runs 60 test_memory.py test_front_door.py test_failures.py; fi
profile=()
if wants profile; then
  part profile 80 "$python" -m millrace profile --device gpu --ranks 1 -o "$work/profile.json"
  if [ -s "$work/profile.json" ]; then profile=(--profile "$work/profile.json"); fi
fi
if wants rows; then
  left=$((total - SECONDS - 10))
  part rows "$left" "$python" -m benchmarks.gpu --out "$work/rows.json" --budget $((left - 10)) \
    ${profile[@]+"${profile[@]}"}
fi
if wants peers; then
  part peers 120 "$python" -m benchmarks.first_gpu --which peers --out "$work/peers.json" \
    --budget 110
fi

"$python" -m benchmarks.gpu_results "$work" "$results" "$parts" && exit 0

# Reached where a part failed, or where there is no Python that could say so.
if [ ! -s "$results" ]; then
  printf '{"device": null, "versions": {}, "rows": [], "checks": [{"name": "part.python", "ok": false, "seconds": 0, "error": "%s did not run"}]}\n' \
    "$python" >"$results"
fi
exit 1
