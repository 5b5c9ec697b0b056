// Sums and products of two tensors, broadcast by label; y = F(a, b).
#include "packs.cuh"
#include "strides.cuh"

struct Sum {
  template <typename W> __device__ static inline W of(W a, W b) { return a + b; }
};
struct Times {
  template <typename W> __device__ static inline W of(W a, W b) { return a * b; }
};
struct Prelu {  // of x and the slope of its channel
  template <typename W> __device__ static inline W of(W x, W slope) {
    return x < (W)0 ? x * slope : x;
  }
};

template <typename F, typename A, typename B, typename Y, int N>
__device__ inline Pack<Y, N> joined(const Pack<A, N>& left, const Pack<B, N>& right) {
  typedef Joined<A, B> W;
  W values[N];
#pragma unroll
  for (int k = 0; k < N; k++) values[k] = F::of((W)wide(left.of[k]), (W)wide(right.of[k]));
  Pack<Y, N> made;
  narrow_all(made.of, values);
  return made;
}

// Both lie as the output does. y may be a or b.
template <typename F, typename A, typename B, typename Y>
__global__ void join_flat(const A* a, const B* b, Y* y, i64 count) {
  const int N = pack_of<A, B, Y>();
  for (i64 start = first_pack<N>(); start < count; start += pack_stride<N>()) {
    Pack<A, N> left[TOGETHER];
    Pack<B, N> right[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      left[i] = load_pack<N>(a, start + i * next_pack<N>(), count);
      right[i] = load_pack<N>(b, start + i * next_pack<N>(), count);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      store_pack(y, start + i * next_pack<N>(), count, joined<F, A, B, Y, N>(left[i], right[i]));
    }
  }
}

// a lies as the output does; b has `period` values, each for `inner` neighbours, again and again.
template <typename F, typename A, typename B, typename Y, typename I>
__global__ void join_repeated(const A* a, const B* b, Y* y, i64 inner, i64 period, i64 count) {
  const int N = pack_of<A, B, Y>();
  I near = (I)inner, turn = (I)period;
  bool shared = near % N == 0, in_line = near == 1 && turn % N == 0;
  for (i64 start = first_pack<N>(); start < count; start += pack_stride<N>()) {
    Pack<A, N> left[TOGETHER];
    Pack<B, N> right[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      i64 at = start + i * next_pack<N>();
      left[i] = load_pack<N>(a, at, count);
      if (in_line) {
        right[i] = *(const Pack<B, N>*)(b + (I)at % turn);
      } else {
        B same = b[(I)at / near % turn];
#pragma unroll
        for (int k = 0; k < N; k++) {
          right[i].of[k] = shared ? same : b[((I)at + k) / near % turn];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      store_pack(y, start + i * next_pack<N>(), count, joined<F, A, B, Y, N>(left[i], right[i]));
    }
  }
}

// Both at the places that a table says.
template <typename F, typename A, typename B, typename Y, typename I>
__global__ void join_strided(const A* a, const B* b, Y* y, const i64* table, int dims,
                             i64 count) {
  typedef Joined<A, B> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Places from = places_of((I)at, table, dims);
    y[at] = narrow<Y>(F::of((W)wide(a[from.first]), (W)wide(b[from.second])));
  }
}
