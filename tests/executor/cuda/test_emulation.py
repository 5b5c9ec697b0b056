"""The emulated device reports what a GPU would only sometimes show: kernels with one fault each."""

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest

from millrace.executor.kernels.context import Array
from tests.executor.cuda.calling import aligned_buffer
from tests.executor.cuda.emulation.machine import COMPILER, EmulatedKernel, compiled, reseed

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

THREADS = 64
KERNELS = """
__global__ void turned(const int* x, int* y) {
  __shared__ int tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
__global__ void without_a_barrier(const int* x, int* y) {
  __shared__ int tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
__global__ void written_too_early(const int* x, int* y) {
  __shared__ int tile[64];
  for (int turn = 0; turn < 2; turn++) {
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
  }
}
__global__ void by_warp(const int* x, int* y) {
  __shared__ int tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x ^ 1];
}
__global__ void by_shuffle_alone(const int* x, int* y) {
  __shared__ int tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  int one = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
  y[threadIdx.x] = tile[threadIdx.x ^ 1] + 0 * one;
}
__global__ void never_written(const int* x, int* y) {
  __shared__ int tile[64];
  if (threadIdx.x < 32) tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void a_barrier_for_some(const int* x, int* y) {
  if (threadIdx.x < 32) return;
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void two_barriers(const int* x, int* y) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    y[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
  }
}
__global__ void a_shuffle_for_some(const int* x, int* y) {
  if (threadIdx.x % 2) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 2);
}
__global__ void one_too_far(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
__global__ void blocks_that_meet(const int* x, int* y) { y[threadIdx.x] = x[blockIdx.x]; }
__global__ void all_blocks_read(const int* x, int* y) {
  int found = x[threadIdx.x];
  if (found < 0) *y = found;
  if (blockIdx.x == 1) ((int*)x)[threadIdx.x] = found + 1;
}
struct alignas(16) Quad { int of[4]; };
__global__ void apart(const int* x, int* y) {
  *(Quad*)(y + 4 * (threadIdx.x / 16)) = *(const Quad*)(x + threadIdx.x % 4);
}
__global__ void overflowing(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] + 0x7fffffff; }
__global__ void past_an_array(const int* x, int* y) {
  __shared__ int tile[64];
  tile[threadIdx.x + 1] = x[threadIdx.x];
}
__global__ void order_of_warps(const int* x, int* y) { atomicMin(y, (int)threadIdx.x); }
"""
FAULTS = {
    "without_a_barrier": r"(read|write) of shared memory|read of shared memory that the block has",
    "written_too_early": "of shared memory .* with no barrier between",
    "by_shuffle_alone": "of shared memory .* with no barrier between",
    "never_written": "read of shared memory that the block has not written",
    "a_barrier_for_some": "a barrier that",
    "two_barriers": "barriers in two places",
    "a_shuffle_for_some": "a barrier that not all threads reach",
    "one_too_far": "read of 4 bytes outside of the operands",
    "blocks_that_meet": "write of global memory .* of another block",
    "all_blocks_read": "of another block",
    "apart": "not aligned",
    "overflowing": "an overflow of a sum",
    "past_an_array": "an index outside of its array",
}
SOUND = ("turned", "by_warp", "order_of_warps")


@pytest.fixture(scope="module")
def kernels() -> dict[str, EmulatedKernel]:
    return compiled("faults", KERNELS, [*SOUND, *FAULTS])


def numbers() -> tuple[Array, Array]:
    x, y = (aligned_buffer(4 * THREADS).view(np.int32) for _ in range(2))
    x[:], y[:] = np.arange(1, THREADS + 1), 0
    return x, y


def launched(
    kernel: EmulatedKernel, arrays: Sequence[Array], seed: int, blocks: int = 1
) -> str | None:
    reseed(seed)
    return kernel.run(
        (blocks, 1, 1),
        (THREADS, 1, 1),
        [ctypes.c_void_p(array.ctypes.data) for array in arrays],
        [(array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays],
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_in_any_order(name: str, seed: int, kernels: dict[str, EmulatedKernel]):
    blocks = 2 if name in ("blocks_that_meet", "all_blocks_read") else 1
    fault = launched(kernels[name], numbers(), seed, blocks)
    assert fault is not None
    with pytest.raises(AssertionError, match=FAULTS[name]):
        raise AssertionError(fault)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_is_not_reported(name: str, seed: int, kernels: dict[str, EmulatedKernel]):
    assert launched(kernels[name], numbers(), seed, 3 if name == "order_of_warps" else 1) is None


def test_after_a_fault_the_next_launch_is_sound(kernels: dict[str, EmulatedKernel]):
    x, y = numbers()
    assert launched(kernels["without_a_barrier"], (x, y), 0) is not None
    assert launched(kernels["turned"], (x, y), 0) is None
    np.testing.assert_array_equal(y, x[::-1])


def test_the_order_follows_from_the_seed():
    text = """
__global__ void unordered(int* next, int* order) {
  order[atomicAdd(next, 1)] = threadIdx.x + 64 * blockIdx.x;
}
"""
    kernel = compiled("order", text, ["unordered"])["unordered"]
    orders = []
    for seed in (0, 0, 1):
        following, order = np.zeros(1, np.int32), np.zeros(4 * THREADS, np.int32)
        assert launched(kernel, (following, order), seed, 4) is None
        np.testing.assert_array_equal(np.sort(order), np.arange(4 * THREADS))
        orders.append(order.tolist())
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("block", [48, 1056])
def test_a_block_that_no_gpu_launches_is_refused(block: int, kernels: dict[str, EmulatedKernel]):
    fault = kernels["turned"].run((1, 1, 1), (block, 1, 1), [])
    assert fault is not None
    assert "block" in fault
