#!/usr/bin/env bash
# What a machine with a GPU and without a network lacks, into the folder .carry (git ignores it).
# Usage: bash benchmarks/gpu/carry.sh (PYTHON names the interpreter; PYTHON_VERSION that of the
# machine, 3.12 unless set). Downloads wheels, writes the plans that tests and benchmarks there run,
# and says what all of it weighs, with the files of the repository. On the machine, gpu.sh
# installs what is here. It must bring the rest: cupy, numpy, torch, mpi4py, networkx, typer, rich,
# hypothesis, pytest and NVIDIA's libraries (cuBLAS, cuDNN, NCCL, NVRTC).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v python3 || command -v python)}
version=${PYTHON_VERSION:-3.12}
limit_mib=64 # what one command may bring along where this was first used

# pip takes a platform's name to the letter; of what fits several it takes the newest.
platforms=()
for glibc in 28 27 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
mkdir -p .carry
rm -f .carry/*.whl
"$python" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
  --python-version "$version" "${platforms[@]}" --platform manylinux2014_x86_64 --dest .carry \
  'ortools==9.15.*' 'mpich>=4.2' 'nvidia-cudnn-frontend>=1.22,<1.23' 'msgspec>=0.19' 'simpy>=4.1' \
  immutabledict 'protobuf>=6.33.1,<6.34'
"$python" -m benchmarks.gpu.slices.plans .carry/plans

carried=$(du -sb --apparent-size .carry | cut -f1)
tracked=$(git ls-files -z | xargs -0 du -cb --apparent-size | tail -n 1 | cut -f1)
for path in .carry/*.whl; do
  printf '%8.1f MiB  %s\n' "$(awk "BEGIN {print $(stat -c %s "$path") / 2^20}")" "${path#.carry/}"
done
awk -v carried="$carried" -v tracked="$tracked" -v limit="$limit_mib" 'BEGIN {
  printf "%8.1f MiB  .carry with its plans\n%8.1f MiB  the repository\n", carried / 2^20, tracked / 2^20
  all = (carried + tracked) / 2^20
  printf "%8.1f MiB  of at most %d\n", all, limit
  exit all > limit }'
