// Sums over rows, column by column, in an order that does not change from run to run.
//
// Rows are cut into slabs. A block sums a slab of 32 N columns: its 8 warps take every eighth row
// each, and what they found is added up warp by warp. A second launch adds up the slabs' sums.
#pragma once
#include "rows.cuh"

const int SLAB_WARPS = 8;

// Columns from `column` on are this thread's: its lane's N of the block's.
template <int N> __device__ inline i64 slab_column() {
  return (blockIdx.x * (i64)32 + threadIdx.x % 32) * N;
}

// Add up what the block's warps found and write it into a row of `columns` sums.
template <int N, typename W, typename D>
__device__ inline void slab_sum(const W (&found)[N], D* sums, i64 columns) {
  __shared__ W of_warps[SLAB_WARPS][32 * N];
  i64 first = blockIdx.x * (i64)32 * N;
  __syncthreads();  // what an earlier call left has been read
  for (int k = 0; k < N; k++) of_warps[threadIdx.x / 32][threadIdx.x % 32 * N + k] = found[k];
  __syncthreads();
  for (int at = threadIdx.x; at < 32 * N && first + at < columns; at += blockDim.x) {
    W sum = of_warps[0][at];
    for (int warp = 1; warp < SLAB_WARPS; warp++) sum += of_warps[warp][at];
    sums[first + at] = narrow<D>(sum);
  }
}

// The sums of slabs, [outputs, slabs, columns], added up; blockIdx.y counts outputs, of two at most.
template <typename W, typename D>
__global__ void add_slabs(const W* slab_sums, D* output, D* other, i64 slabs, i64 columns) {
  const W* from = slab_sums + blockIdx.y * slabs * columns;
  i64 column = slab_column<1>();
  W sum[1] = {0};
  if (column < columns) {
    for (i64 slab = threadIdx.x / 32; slab < slabs; slab += SLAB_WARPS) {
      sum[0] += from[slab * columns + column];
    }
  }
  slab_sum(sum, blockIdx.y ? other : output, columns);
}
