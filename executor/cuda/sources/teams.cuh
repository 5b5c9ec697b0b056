// Teams: the threads that have a row, of which each keeps its packs in registers.
//
// A team is a warp where rows are short, and else a block. PACKS is how many packs a thread keeps,
// so that a row is read once; 0: rows are longer than registers hold, and are read again each time.
#pragma once
#include "packs.cuh"
#include "reduce.cuh"

// Threads of a block, at most, and blocks that a multiprocessor should hold: as few registers as that
// takes hide best how long memory takes. WEIGHTS: threads keep sums too, and there are few blocks.
#define TEAM_BOUNDS(by_warp, packs, weights)             \
  __launch_bounds__((by_warp) ? 256 : 512, (weights) ? 1 \
                                           : (by_warp) ? ((packs) > 2 ? 3 : 4) \
                                                       : ((packs) > 2 ? 1 : 2))

// Packs that a thread keeps of what all rows share, and what it reads again for every row.
__device__ constexpr int shared_packs(int packs) { return packs == 1 ? 1 : 0; }

template <bool BY_WARP> struct Team {
  __device__ static int thread() { return BY_WARP ? threadIdx.x % 32 : threadIdx.x; }
  __device__ static int threads() { return BY_WARP ? 32 : blockDim.x; }
  __device__ static i64 first_row() {
    return BY_WARP ? blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
  }
  __device__ static i64 row_stride() {
    return BY_WARP ? gridDim.x * (i64)(blockDim.x / 32) : gridDim.x;
  }

  // Every thread gets the sums over the team, in an order that does not change from run to run.
  template <int K, typename W> __device__ static void sum(W (&values)[K]) {
    __shared__ W of_warps[K][32];
    int warps = blockDim.x / 32;
#pragma unroll
    for (int k = 0; k < K; k++) values[k] = warp_reduce<Add>(values[k]);
    if (BY_WARP || warps == 1) return;
    __syncthreads();  // what an earlier call left has been read
#pragma unroll
    for (int k = 0; k < K; k++) {
      if (threadIdx.x % 32 == 0) of_warps[k][threadIdx.x / 32] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++) {
      values[k] = of_warps[k][0];
      for (int warp = 1; warp < warps; warp++) values[k] += of_warps[k][warp];
    }
  }
};

// work(number, at): what this thread does with its pack of that number, which begins at column `at`.
template <int N, int PACKS, bool BY_WARP, typename F>
__device__ inline void each_pack(i64 columns, F work) {
  i64 first = (i64)Team<BY_WARP>::thread() * N, stride = (i64)Team<BY_WARP>::threads() * N;
  if (PACKS) {
#pragma unroll
    for (int number = 0; number < PACKS; number++) {
      i64 at = first + number * stride;
      if (at < columns) work(number, at);
    }
  } else {
    for (i64 at = first; at < columns; at += stride) work(0, at);
  }
}

// This thread's packs of a row.
template <typename T, int N, int PACKS, bool BY_WARP> struct Held {
  const T* from;
  Pack<T, N> packs[PACKS ? PACKS : 1];

  __device__ void fetch(const T* row, i64 columns) {
    from = row;
    if (!PACKS) return;
    each_pack<N, PACKS, BY_WARP>(
        columns, [&](int number, i64 at) { packs[number] = *(const Pack<T, N>*)(row + at); });
  }
  __device__ Pack<T, N> at(int number, i64 place) const {
    return PACKS ? packs[number] : *(const Pack<T, N>*)(from + place);
  }
  // The row becomes its sum with another, which is written too.
  __device__ void add(const Held& other, T* sum, i64 columns) {
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 place) {
      Pack<T, N> made = sum_of(at(number, place), other.at(number, place));
      store_pack(sum + place, made);
      if (PACKS) packs[number] = made;
    });
    from = sum;
  }
  // The sum of this thread's squares.
  template <typename W> __device__ W squares(i64 columns) const {
    W found = 0;
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 place) {
      Pack<T, N> pack = at(number, place);
#pragma unroll
      for (int k = 0; k < N; k++) found += (W)wide(pack.of[k]) * (W)wide(pack.of[k]);
    });
    return found;
  }
};
