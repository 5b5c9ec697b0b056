// The largest of some numbers and the sum of exp(number - largest), in one pass over them.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018: the sum is brought to
// a larger number as soon as there is one. Minus infinity adds nothing; NaN stays NaN.
#pragma once
#include "reduce.cuh"

template <typename W> __device__ inline W exp_below(W x, W largest) {
  return x == lowest<W>() ? (W)0 : exp_of(x - largest);
}

template <typename W> struct Online {
  W largest = lowest<W>();
  W sum = 0;

  template <int N> __device__ void add(const W (&numbers)[N]) {
    W before = largest;
#pragma unroll
    for (int k = 0; k < N; k++) largest = larger(numbers[k], largest);
    sum *= before == largest ? (W)1 : exp_of(before - largest);
    W shift = largest == lowest<W>() ? (W)0 : largest;
#pragma unroll
    for (int k = 0; k < N; k++) sum += exp_of(numbers[k] - shift);
  }
  // Of all threads of the block; every thread gets it.
  __device__ void join() {
    W own = largest;
    largest = block_max(own);
    sum = block_sum(own == largest ? sum : sum * exp_of(own - largest));
  }
};
