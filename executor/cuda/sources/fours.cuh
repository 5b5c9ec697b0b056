// Four neighbours at once: what a thread of an elementwise kernel reads and writes.
//
// Operands begin on 64 bytes (ALIGNMENT of planner/compile/draft.py), so four neighbours from a
// multiple of four on lie in one piece that a single instruction moves.
#pragma once
#include "scalar.cuh"

template <typename T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four { T at[4]; };

// The element at which a thread begins, and how far it goes on.
__device__ inline i64 first_four() { return 4 * first_element(); }
__device__ inline i64 four_stride() { return 4 * element_stride(); }

// Elements from `start` on, a multiple of four, of `count`; what lies behind them is 0.
template <typename T> __device__ inline Four<T> load_four(const T* x, i64 start, i64 count) {
  if (start + 4 <= count) return *(const Four<T>*)(x + start);
  Four<T> found = {};
  for (int i = 0; start + i < count; i++) found.at[i] = x[start + i];
  return found;
}

template <typename T>
__device__ inline void store_four(T* y, i64 start, i64 count, const Four<T>& values) {
  if (start + 4 <= count) {
    *(Four<T>*)(y + start) = values;
  } else {
    for (int i = 0; start + i < count; i++) y[start + i] = values.at[i];
  }
}
