// Packs: neighbours that a thread reads and writes at once, up to 16 bytes by one instruction.
//
// Operands begin on 64 bytes (ALIGNMENT of planner/compile/stage_ir.py), so N neighbours from a
// multiple of N on lie in as few pieces as can be. Arrays are indexed by what is known when they
// are compiled, as what is not moves them out of registers.
#pragma once
#include "scalar.cuh"

template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T of[N];
};

// Elements of a pack of tensors of these types: 16 bytes of the narrowest.
template <typename... T> __device__ constexpr int pack_of() {
  int least = 16;
  ((least = (int)sizeof(T) < least ? (int)sizeof(T) : least), ...);
  return 16 / least;
}

// A thread of an elementwise kernel has so many packs on their way at once, each a block's width
// behind the one before it (calls.py launches as many threads as that takes).
const int TOGETHER = 2;
template <int N> __device__ inline i64 first_pack() {
  return (blockIdx.x * (i64)TOGETHER * blockDim.x + threadIdx.x) * N;
}
template <int N> __device__ inline i64 next_pack() { return (i64)blockDim.x * N; }
template <int N> __device__ inline i64 pack_stride() {
  return (i64)gridDim.x * TOGETHER * blockDim.x * N;
}

// A whole pack, 16 bytes or 8 by one instruction. Said outright, as a compiler that finds out by
// itself that neighbours are stored does not always: then a pack takes a store for every element.
#ifdef ON_CPU
template <typename T, int N> __device__ inline void store_pack(T* into, const Pack<T, N>& pack) {
  *(Pack<T, N>*)into = pack;
}
#else
__device__ inline void store_words(char* at, const unsigned (&of)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "l"(at), "r"(of[0]), "r"(of[1]), "r"(of[2]), "r"(of[3]) : "memory");
}
__device__ inline void store_words(char* at, const unsigned (&of)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" :: "l"(at), "r"(of[0]), "r"(of[1]) : "memory");
}
__device__ inline void store_words(char* at, const unsigned (&of)[1]) { *(unsigned*)at = of[0]; }
template <typename T, int N> __device__ inline void store_pack(T* into, const Pack<T, N>& pack) {
  const int BYTES = sizeof(T) * N, WORDS = BYTES < 16 ? BYTES / 4 : 4;
  if constexpr (WORDS == 0) {
    *into = pack.of[0];
  } else {
#pragma unroll
    for (int at = 0; at < BYTES; at += 4 * WORDS) {
      unsigned words[WORDS];
      memcpy(words, (const char*)pack.of + at, sizeof words);
      store_words((char*)into + at, words);
    }
  }
}
#endif

template <int N, typename W, typename T> __device__ inline void take(W (&into)[N], const T* from) {
  Pack<T, N> pack = *(const Pack<T, N>*)from;
#pragma unroll
  for (int k = 0; k < N; k++) into[k] = (W)wide(pack.of[k]);
}
template <int N, typename W, typename T> __device__ inline void put(T* into, const W (&from)[N]) {
  Pack<T, N> pack;
  narrow_all(pack.of, from);
  store_pack(into, pack);
}

template <typename T, int N>
__device__ inline Pack<T, N> sum_of(const Pack<T, N>& x, const Pack<T, N>& y) {
  Wide<T> sums[N];
#pragma unroll
  for (int k = 0; k < N; k++) sums[k] = wide(x.of[k]) + wide(y.of[k]);
  Pack<T, N> found;
  narrow_all(found.of, sums);
  return found;
}

// Elements from `start` on, a multiple of N, of `count`; what lies behind them is 0.
template <int N, typename T>
__device__ inline Pack<T, N> load_pack(const T* x, i64 start, i64 count) {
  if (start + N <= count) return *(const Pack<T, N>*)(x + start);
  Pack<T, N> found = {};
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (start + k < count) found.of[k] = x[start + k];
  }
  return found;
}

template <int N, typename T>
__device__ inline void store_pack(T* y, i64 start, i64 count, const Pack<T, N>& values) {
  if (start + N <= count) {
    store_pack(y + start, values);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (start + k < count) y[start + k] = values.of[k];
  }
}
