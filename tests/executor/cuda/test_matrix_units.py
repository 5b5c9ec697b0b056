"""The matrix units and asynchronous copies of `sources/matrix_units.cuh`: one warp, against NumPy.

Kernels here lie beside the tests: each is one use of the header. What compiles for a device is
looked at too, where the compiler is installed.
"""

import ctypes

import numpy as np
import pytest

from benchmarks.gpu.kernel_resources import resources_of
from millrace.executor.cuda.source_text import FOLDER
from millrace.executor.kernels.context import Array
from tests.executor.cuda.calling import aligned_buffer, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, EmulatedKernel, compiled, reseed
from tests.executor.cuda.kept_code import kept_cubin_of
from tests.extras import optional

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

TYPES = {"bfloat16": "bf16", "float16": "f16"}
STRIDE = 24  # elements between rows of a tile of 16
KERNELS = """
const int STRIDE = 24;

// Rows of 16 into shared memory, both halves of a row by one lane each.
template <typename T> __device__ inline void stage(const T* from, T* tile) {
  int row = threadIdx.x / 2, half = threadIdx.x % 2 * 8;
  copy_async_16(tile + row * STRIDE + half, from + row * 16 + half);
}
template <typename T>
__device__ inline void write_sums(float* to, const float (&first)[4], const float (&second)[4]) {
  int row = threadIdx.x / 4, pair = threadIdx.x % 4 * 2;
  for (int at = 0; at < 4; at++) {
    to[(row + at / 2 * 8) * 16 + pair + at % 2] = first[at];
    to[(row + at / 2 * 8) * 16 + 8 + pair + at % 2] = second[at];
  }
}

// d = a b, or with `turned` sides aᵀ b, a bᵀ: every way to load a side.
template <typename T, bool LEFT_TURNED, bool RIGHT_TURNED>
__global__ void product(const T* a, const T* b, float* d) {
  alignas(16) __shared__ T left[16 * STRIDE], right[16 * STRIDE];
  stage(a, left);
  stage(b, right);
  commit();
  wait<0>();
  __syncthreads();
  unsigned x[4], y[2], z[2];
  LEFT_TURNED ? load_left_trans(x, left, STRIDE) : load_left(x, left, STRIDE);
  RIGHT_TURNED ? load_right(y, z, right, STRIDE) : load_right_trans(y, z, right, STRIDE);
  float first[4] = {}, second[4] = {};
  mma_16816<T>(first, x, y);
  mma_16816<T>(second, x, z);
  write_sums<T>(d, first, second);
}

// d = (a b) b + (a b) b, the first product rounded to T in between.
template <typename T> __global__ void chain(const T* a, const T* b, float* d) {
  alignas(16) __shared__ T left[16 * STRIDE], right[16 * STRIDE];
  stage(a, left);
  stage(b, right);
  commit();
  wait<0>();
  __syncthreads();
  unsigned x[4], y[2], z[2];
  load_left(x, left, STRIDE);
  load_right_trans(y, z, right, STRIDE);
  float first[4] = {}, second[4] = {}, of_first[4] = {}, of_second[4] = {};
  mma_16816<T>(first, x, y);
  mma_16816<T>(second, x, z);
  pack_left<T>(x, first, second);
  for (int turn = 0; turn < 2; turn++) {
    mma_16816<T>(of_first, x, y);
    mma_16816<T>(of_second, x, z);
  }
  write_sums<T>(d, of_first, of_second);
}

// Eight bytes of a row through two groups of copies; what is not there becomes zero.
__global__ void copied(const int* from, int* to, int there) {
  alignas(16) __shared__ int rows[2][4 * 32];
  for (int group = 0; group < 2; group++) {
    for (int at = 0; at < 4; at++) rows[group][4 * threadIdx.x + at] = -1;
    int first = group * 128 + 4 * threadIdx.x;
    if (group == 0) {
      copy_async_16(rows[0] + 4 * threadIdx.x, from + first, (int)threadIdx.x < there);
    } else {
      for (int at = 0; at < 4; at++) {
        copy_async_4(rows[1] + 4 * threadIdx.x + at, from + first + at, (int)threadIdx.x < there);
      }
    }
    commit();
  }
  wait<1>();
  __syncthreads();
  for (int at = 0; at < 4; at++) to[32 * at + threadIdx.x] = rows[0][32 * at + threadIdx.x];
  wait<0>();
  __syncthreads();
  for (int at = 0; at < 4; at++) to[128 + 32 * at + threadIdx.x] = rows[1][32 * at + threadIdx.x];
}

// Turned around in shared memory that the launch asks for.
__global__ void turned(const int* from, int* to) {
  DYNAMIC_SHARED(memory);
  int* row = (int*)memory;
  row[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = row[31 - threadIdx.x];
}

// Faults: the wait, or the barrier behind it, is left out.
__global__ void not_awaited(const int* from, int* to) {
  alignas(16) __shared__ int row[4 * 32];
  for (int at = 0; at < 4; at++) row[4 * threadIdx.x + at] = -1;
  copy_async_16(row + 4 * threadIdx.x, from + 4 * threadIdx.x);
  commit();
  wait<1>();
  __syncthreads();
  to[threadIdx.x] = row[threadIdx.x];
}
__global__ void not_joined(const int* from, int* to) {
  alignas(16) __shared__ int row[4 * 32];
  copy_async_16(row + 4 * threadIdx.x, from + 4 * threadIdx.x);
  commit();
  wait<0>();
  to[threadIdx.x] = row[threadIdx.x];
}
__global__ void overtaken(const int* from, int* to) {
  alignas(16) __shared__ int row[4 * 32];
  for (int at = 0; at < 4; at++) row[4 * threadIdx.x + at] = -1;
  __syncthreads();
  to[threadIdx.x] = row[threadIdx.x];
  copy_async_16(row + 4 * threadIdx.x, from + 4 * threadIdx.x);
  commit();
  wait<0>();
}
__global__ void misplaced(const int* from, int* to) {
  alignas(16) __shared__ int row[4 * 32 + 4];
  copy_async_16(row + 4 * threadIdx.x + 1, from + 4 * threadIdx.x);
}
"""
TEXT = "\n".join(
    (FOLDER / name).read_text().replace("#pragma once\n", "").replace('#include "scalar.cuh"\n', "")
    for name in ("scalar.cuh", "matrix_units.cuh")
)
PRODUCTS = [
    f"product<{type_name}, {left}, {right}>"
    for type_name in TYPES.values()
    for left in ("false", "true")
    for right in ("false", "true")
]
CHAINS = [f"chain<{type_name}>" for type_name in TYPES.values()]
FAULTS = {
    "not_joined": "with no barrier between|has not written",
    "overtaken": "with no barrier between",
    "misplaced": "not aligned",
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, EmulatedKernel]:
    names = [*PRODUCTS, *CHAINS, "copied", "turned", "not_awaited", *FAULTS]
    return compiled("matrix_units", TEXT + KERNELS, names)


def launched(
    kernel: EmulatedKernel, arrays: list[Array], *more: ctypes.c_int32, shared_bytes: int = 0
) -> str | None:
    reseed(0)
    return kernel.run(
        (1, 1, 1),
        (32, 1, 1),
        [*(ctypes.c_void_p(array.ctypes.data) for array in arrays), *more],
        [(array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays],
        shared_bytes,
    )


def sides(dtype: str) -> tuple[Array, Array, Array]:
    """Two sides as stored, and room for the product."""
    rng = np.random.default_rng(0)
    a, b = (to_device(rng.standard_normal((16, 16)), dtype) for _ in range(2))
    return a, b, aligned_buffer(4 * 256).view(np.float32).reshape(16, 16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_a_product_of_either_side_as_it_lies_and_turned(
    dtype: str, left: bool, right: bool, kernels: dict[str, EmulatedKernel]
):
    a, b, d = sides(dtype)
    name = f"product<{TYPES[dtype]}, {str(left).lower()}, {str(right).lower()}>"
    assert launched(kernels[name], [a, b, d]) is None
    x, y = (loaded(side, dtype).astype(np.float64) for side in (a, b))
    np.testing.assert_allclose(d, (x.T if left else x) @ (y.T if right else y), atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_are_packed_as_the_left_side_of_a_next_product(
    dtype: str, kernels: dict[str, EmulatedKernel]
):
    a, b, d = sides(dtype)
    assert launched(kernels[f"chain<{TYPES[dtype]}>"], [a, b, d]) is None
    x, y = (loaded(side, dtype) for side in (a, b))
    between = loaded(to_device(x @ y, dtype), dtype).astype(np.float64)
    np.testing.assert_allclose(d, 2 * between @ y.astype(np.float64), atol=1e-2)


@pytest.mark.parametrize("there", [0, 5, 32])
def test_copies_arrive_and_what_is_not_there_is_zero(
    there: int, kernels: dict[str, EmulatedKernel]
):
    source, target = (aligned_buffer(4 * 256).view(np.int32) for _ in range(2))
    source[:], target[:] = np.arange(1, 257), -2
    assert launched(kernels["copied"], [source, target], ctypes.c_int32(there)) is None
    expected = source.reshape(2, 32, 4).copy()
    expected[:, there:] = 0
    np.testing.assert_array_equal(target, expected.ravel())


def test_what_is_not_awaited_has_not_arrived(kernels: dict[str, EmulatedKernel]):
    source, target = (aligned_buffer(4 * 128).view(np.int32) for _ in range(2))
    source[:] = np.arange(128)
    assert launched(kernels["not_awaited"], [source, target]) is None
    assert (target[:32] == -1).all()


def test_a_kernel_has_the_shared_memory_that_its_launch_asks_for(
    kernels: dict[str, EmulatedKernel],
):
    source, target = (aligned_buffer(4 * 32).view(np.int32) for _ in range(2))
    source[:] = np.arange(32)
    assert launched(kernels["turned"], [source, target], shared_bytes=128) is None
    np.testing.assert_array_equal(target, source[::-1])
    assert launched(kernels["turned"], [source, target], shared_bytes=124) is not None


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_copy_is_reported(name: str, kernels: dict[str, EmulatedKernel]):
    source, target = (aligned_buffer(4 * 128).view(np.int32) for _ in range(2))
    source[:] = np.arange(128)
    fault = launched(kernels[name], [source, target])
    assert fault is not None
    with pytest.raises(AssertionError, match=FAULTS[name]):
        raise AssertionError(fault)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_header_compiles_for_every_architecture(architecture: str):
    optional("cuda.core", extra="test")
    names = (*PRODUCTS, *CHAINS, "copied", "turned")
    cubin = kept_cubin_of(TEXT + KERNELS, "matrix_units", names, architecture)
    assert set(cubin.symbols.values()) <= set(resources_of(cubin.code))
