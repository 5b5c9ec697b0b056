// Sums over rows, column by column, in an order that does not change from run to run.
//
// Rows are cut into slabs. A block sums a slab of 32 N columns: its 8 warps take every eighth row
// each, and what they found is added up warp by warp. A second launch adds up the slabs' sums.
#pragma once
#include "teams.cuh"

const int SLAB_WARPS = 8;

// Columns from `column` on are this thread's: its lane's N of the block's.
template <int N> __device__ inline i64 slab_column() {
  return (blockIdx.x * (i64)32 + threadIdx.x % 32) * N;
}

// Add up what the block's warps found and hand it on: done(column, sum), from column `first` on.
template <int N, typename W, typename F>
__device__ inline void sum_of_warps(const W (&found)[N], i64 first, i64 columns, F done) {
  __shared__ W of_warps[SLAB_WARPS][32 * N];
  int warps = blockDim.x / 32;
  __syncthreads();  // what an earlier call left has been read
#pragma unroll
  for (int k = 0; k < N; k++) of_warps[threadIdx.x / 32][threadIdx.x % 32 * N + k] = found[k];
  __syncthreads();
  for (int at = threadIdx.x; at < 32 * N && first + at < columns; at += blockDim.x) {
    W sum = of_warps[0][at];
    for (int warp = 1; warp < warps; warp++) sum += of_warps[warp][at];
    done(first + at, sum);
  }
}

// The same into a row of `columns` sums.
template <int N, typename W>
__device__ inline void slab_sum(const W (&found)[N], W* sums, i64 columns) {
  sum_of_warps(found, blockIdx.x * (i64)32 * N, columns,
               [&](i64 column, W sum) { sums[column] = sum; });
}

// What the block's teams added up of their packs' columns, into a row of `columns` sums.
template <int N, int PACKS, bool BY_WARP, typename W>
__device__ inline void put_weights(const W (&found)[PACKS][N], W* sums, i64 columns) {
  if (BY_WARP) {
#pragma unroll
    for (int number = 0; number < PACKS; number++) {
      sum_of_warps(found[number], number * 32 * N, columns,
                   [&](i64 column, W sum) { sums[column] = sum; });
    }
  } else {
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      put<N>(sums + at, found[number]);
    });
  }
}

// Go down the rows of slab blockIdx.y, ROWS of this warp's at a time: load(i, row), then add(i), with
// i below ROWS.
template <int ROWS, typename L, typename A>
__device__ inline void each_slab_row(i64 slab_rows, i64 rows, L load, A add) {
  i64 first = blockIdx.y * slab_rows, last = smaller(first + slab_rows, rows);
  for (i64 row = first + threadIdx.x / 32; row < last; row += ROWS * SLAB_WARPS) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      if (row + i * SLAB_WARPS < last) load(i, row + i * SLAB_WARPS);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      if (row + i * SLAB_WARPS < last) add(i);
    }
  }
}

// The sums of slabs, [outputs, slabs, columns], added up; blockIdx.y counts outputs, of two at most.
// A sum is rounded to R, as an output of its own is, and written, or ADDED to what is there.
template <typename W, typename R, typename D, bool ADDED>
__global__ void add_slabs(const W* slab_sums, D* output, D* other, i64 slabs, i64 columns) {
  const W* from = slab_sums + blockIdx.y * slabs * columns;
  D* into = blockIdx.y ? other : output;
  i64 column = slab_column<1>();
  W sum[1] = {0};
  if (column < columns) {
#pragma unroll 8
    for (i64 slab = threadIdx.x / 32; slab < slabs; slab += SLAB_WARPS) {
      sum[0] += from[slab * columns + column];
    }
  }
  sum_of_warps(sum, blockIdx.x * (i64)32, columns, [&](i64 at, W found) {
    R rounded = narrow<R>(found);
    into[at] = ADDED ? narrow<D>(wide(into[at]) + wide(rounded)) : narrow<D>(wide(rounded));
  });
}
