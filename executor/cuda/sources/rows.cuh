// Rows in packs of 16 bytes, which a thread reads and writes at once.
//
// Tensors begin on a multiple of 16 bytes. Where rows hold a whole number of packs, a thread takes
// its packs by column (take, put). Otherwise a row begins and ends inside a pack: `Row` goes over
// the packs that touch it and leaves alone what is not its own.
#pragma once
#include "reduce.cuh"

template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T of[N]; };

template <int N, typename W, typename T> __device__ inline void take(W (&into)[N], const T* from) {
  Pack<T, N> pack = *(const Pack<T, N>*)from;
  for (int k = 0; k < N; k++) into[k] = (W)wide(pack.of[k]);
}
template <int N, typename W, typename T> __device__ inline void put(T* into, const W (&from)[N]) {
  Pack<T, N> pack;
  for (int k = 0; k < N; k++) pack.of[k] = narrow<T>(from[k]);
  *(Pack<T, N>*)into = pack;
}

// A row of any length, of tensors of T; `at` counts elements of the whole tensor.
template <typename T> struct Row {
  static const int N = 16 / sizeof(T);
  i64 start, end;

  __device__ Row(i64 row, i64 columns) : start(row * columns), end(start + columns) {}
  __device__ i64 first() const { return start / N * N + (i64)threadIdx.x * N; }
  __device__ i64 stride() const { return (i64)blockDim.x * N; }
  __device__ i64 column(i64 at) const { return at - start; }
  __device__ bool has(i64 at) const { return at >= start && at < end; }
  __device__ bool has_pack(i64 at) const { return at >= start && at + N <= end; }

  // What lies outside of the row reads as `outside`, and is not written.
  template <typename W> __device__ void take_at(W (&into)[N], const T* from, i64 at, W outside) {
    if (has_pack(at)) return take<N>(into, from + at);
    for (int k = 0; k < N; k++) into[k] = has(at + k) ? (W)wide(from[at + k]) : outside;
  }
  template <typename W> __device__ void put_at(T* into, i64 at, const W (&from)[N]) {
    if (has_pack(at)) return put<N>(into + at, from);
    for (int k = 0; k < N; k++) {
      if (has(at + k)) into[at + k] = narrow<T>(from[k]);
    }
  }
};
