// Reductions over the threads of a block, in an order that does not change from run to run.
//
// Every thread of the block calls them, and every thread gets the result. Blocks have whole warps.
#pragma once
#include "scalar.cuh"

struct Add {
  template <typename W> __device__ static inline W of(W x, W y) { return x + y; }
};
struct Larger {
  template <typename W> __device__ static inline W of(W x, W y) { return x > y ? x : y; }
};

template <typename Join, typename W> __device__ inline W warp_reduce(W value) {
  for (int lane = 16; lane > 0; lane /= 2) {
    value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  return value;
}

template <typename Join, typename W> __device__ inline W block_reduce(W value) {
  __shared__ W of_warps[32];
  int warps = blockDim.x / 32;
  value = warp_reduce<Join>(value);
  if (warps == 1) return value;
  __syncthreads();  // what an earlier call left has been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  W joined = of_warps[0];
  for (int warp = 1; warp < warps; warp++) joined = Join::of(joined, of_warps[warp]);
  return joined;
}

template <typename W> __device__ inline W block_sum(W value) { return block_reduce<Add>(value); }
template <typename W> __device__ inline W block_max(W value) { return block_reduce<Larger>(value); }
