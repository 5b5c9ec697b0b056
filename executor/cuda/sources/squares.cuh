// Sums of squares in double, of what a thread goes over in packs: pack number `first`, then every
// `stride`-th behind it, four of them on their way at once.
#pragma once
#include "packs.cuh"
#include "reduce.cuh"

template <typename X>
__device__ inline double squares(const X* x, i64 first, i64 stride, i64 count) {
  const int N = pack_of<X>();
  double sum = 0;
  for (i64 start = first * N; start < count; start += 4 * stride * N) {
    Pack<X, N> given[4];
#pragma unroll
    for (int i = 0; i < 4; i++) given[i] = load_pack<N>(x, start + i * stride * N, count);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        double value = (double)wide(given[i].of[k]);
        sum += value * value;
      }
    }
  }
  return sum;
}
