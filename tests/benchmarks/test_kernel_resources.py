"""Resources of functions as cubins state them, against the assembler's report when it made them."""

from math import prod

import pytest

from benchmarks.gpu.kernel_resources import Resources, occupancy, resources_of, shared_bytes
from millrace.executor.cuda.compiling import cubin_of
from millrace.executor.errors import ExecutorError
from tests.executor.cuda.kept_code import assembler_resources
from tests.extras import optional

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# Nothing spills but `spills`, whose blocks are so large that a thread has 64 registers for 120
# values; `indexed` has an array that no register can hold, since a run says what is read of it.
TEXT = """
extern "C" __global__ void __launch_bounds__(1024) spills(float* a, const float* b, int n) {
  float r[120];
#pragma unroll
  for (int i = 0; i < 120; i++) r[i] = b[i * n + threadIdx.x];
  for (int k = 0; k < n; k++) {
#pragma unroll
    for (int i = 0; i < 120; i++) r[i] = r[i] * r[(i + 1) % 120] + b[k + i];
  }
#pragma unroll
  for (int i = 0; i < 120; i++) a[i * n + threadIdx.x] = r[i];
}
extern "C" __global__ void indexed(float* a, int n) {
  float r[400];
  for (int i = 0; i < n; i++) r[(i * 7) % 400] = a[i];
  for (int i = 0; i < n; i++) a[i] = r[(i * 3 + n) % 400];
}
extern "C" __global__ void shares(float* a, int n) {
  __shared__ float s[100];
  s[threadIdx.x] = a[n];
  __syncthreads();
  a[threadIdx.x] = s[n];
}
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_cubin_says_what_the_assembler_said(architecture: str) -> None:
    optional("cuda.core", extra="test")
    cubin = cubin_of(TEXT, "three", ("spills", "indexed", "shares"), architecture)
    by_function, told = resources_of(cubin.code), assembler_resources(cubin)
    assert set(by_function) == {"spills", "indexed", "shares"}
    for name, resources in by_function.items():
        without = resources._replace(shared_bytes=shared_bytes(resources, architecture))
        assert without == told[name], (name, cubin.report)
    spilled = cubin.spilled_bytes()
    assert spilled["spills"] > 0
    assert spilled["indexed"] == spilled["shares"] == 0
    assert by_function["spills"].stack_bytes > 0
    assert by_function["indexed"].stack_bytes == 1600
    assert by_function["shares"].stack_bytes == 0


@pytest.mark.parametrize(
    ("taken", "threads", "architecture", "expected"),
    [
        # Registers, shared memory and threads that just fit, and one more of each.
        (Resources(32, 0), 1024, "sm_90", (2, 228, 2, 2)),
        (Resources(33, 0), 1024, "sm_90", (1, 228, 2, 1)),
        (Resources(255, 0), 256, "sm_80", (1, 164, 8, 1)),
        (Resources(16, 48 * 1024), 128, "sm_80", (32, 3, 16, 3)),
        (Resources(16, 49 * 1024), 128, "sm_90", (32, 4, 16, 4)),
        (Resources(16, 0), 32, "sm_86", (128, 100, 16, 16)),
    ],
)
def test_occupancy_is_what_runs_out_first(
    taken: Resources, threads: int, architecture: str, expected: tuple[int, int, int, int]
) -> None:
    occupied = occupancy(taken, threads, architecture)
    assert occupied[:4] == expected
    most = 1536 if architecture == "sm_86" else 2048
    assert occupied.warps_share == prod((expected[3], threads)) / most


def test_an_architecture_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(ExecutorError, match="sm_70: choose one of sm_80"):
        occupancy(Resources(32, 0), 256, "sm_70")
