#!/usr/bin/env bash
# The rehearsal of gpu.sh on a machine without a GPU: what a machine with one will run.
# Usage: bash benchmarks/gpu/rehearse.sh (PYTHON names the interpreter, with PyTorch and the tests'
# tools; MACHINE_PYTHON one of the version that carry.sh brings wheels for, python3.12 unless set)
# 1. carry.sh: wheels and plans, and what they weigh
# 2. every slice on the emulated device, fifteen minutes in all at most; nothing is planned there
# 3. slice 1 in an environment that has what an image for GPUs has, without PyTorch, and what was carried
# Planted failures and kills are tests/benchmarks/test_gpu_rehearsal.py. Needs a network, for 1 and 3.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHON=${PYTHON:-$(command -v python3 || command -v python)}
machine=${MACHINE_PYTHON:-python3.12}
image=(numpy networkx pytest hypothesis typer rich mpi4py) # of what such an image brings, what we use
limit_s=900
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "what is carried"
bash benchmarks/gpu/carry.sh

step "the slices, emulated"
began=$SECONDS
for slice in 1 2 3; do
  OUT="$work/slices" bash benchmarks/gpu.sh "$slice" --emulated
done
took=$((SECONDS - began))
printf '%s s of at most %s\n' "$took" "$limit_s"
[ "$took" -le "$limit_s" ]
if grep -h '"planned_here": true' "$work"/slices/*.jsonl; then exit 1; fi

step "slice 1 with what is carried and nothing else"
"$machine" -m venv "$work/machine"
"$work/machine/bin/python" -m pip install --quiet "${image[@]}"
PYTHON="$work/machine/bin/python" OUT="$work/carried" bash benchmarks/gpu.sh 1 --emulated

step "all is well"
