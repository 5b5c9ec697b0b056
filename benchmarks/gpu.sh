#!/usr/bin/env bash
# What a machine with one GPU can show, in slices of ten minutes, without a network.
# Usage: bash benchmarks/gpu.sh SLICE [--seconds N] [--emulated] (PYTHON names the interpreter)
#   1  facts, cuDNN and products, GPT-2 small beside PyTorch
#   2  every kernel, collectives on one rank, training; a Llama of 1.2 billion parameters
#   3  runs and failures, a profile and predictions by it, ResNet-50, a mixture of experts
# What carry.sh brought along is installed first, into the interpreter's environment.
# Everything that is found is a line in $OUT/slice-SLICE.jsonl as soon as it is found (without OUT in
# benchmarks/results/lines), what was printed is in slice-SLICE.log beside it, and gpu-<device>.json
# is what the lines come to. Exit codes: 0 all is well, 1 something is not, 2 bad arguments,
# 3 there is no GPU or something is missing. --emulated needs no GPU: it shows that all of it runs.
set -u
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-$(command -v python3 || command -v python || echo python3)}

lacks() { # NAME...: whether a package of these is not installed
  ! "$python" -c 'import sys; from importlib.metadata import version as v; [*map(v, sys.argv[1:])]' \
    "$@" 2>/dev/null
}
if compgen -G '.carry/*.whl' >/dev/null && lacks msgspec simpy mpich nvidia-cudnn-frontend; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile .carry/*.whl 2>/dev/null ||
    # What lacks then, says so.
    echo "benchmarks/gpu.sh: $python cannot have the wheels in .carry" >&2
fi
exec "$python" -m benchmarks.gpu.slices "$@"
