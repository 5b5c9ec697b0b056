// Sums and products of two tensors, broadcast by label; y = F(a, b).
#include "fours.cuh"
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

// Both lie as the output does. y may be a or b.
template <typename F, typename A, typename B, typename Y>
__global__ void join_flat(const A* a, const B* b, Y* y, i64 count) {
  typedef Joined<A, B> W;
  for (i64 start = first_four(); start < count; start += four_stride()) {
    Four<A> left = load_four(a, start, count);
    Four<B> right = load_four(b, start, count);
    Four<Y> made;
    for (int i = 0; i < 4; i++) {
      made.at[i] = narrow<Y>(F::of((W)wide(left.at[i]), (W)wide(right.at[i])));
    }
    store_four(y, start, count, made);
  }
}

// a lies as the output does; b has `period` values, each for `inner` neighbours, again and again.
template <typename F, typename A, typename B, typename Y, typename I>
__global__ void join_repeated(const A* a, const B* b, Y* y, i64 inner, i64 period, i64 count) {
  typedef Joined<A, B> W;
  I near = (I)inner, turn = (I)period;
  bool shared = near % 4 == 0, in_line = near == 1 && turn % 4 == 0;
  for (i64 start = first_four(); start < count; start += four_stride()) {
    Four<A> left = load_four(a, start, count);
    Four<B> right;
    if (in_line) {
      right = *(const Four<B>*)(b + (I)start % turn);
    } else {
      B same = b[(I)start / near % turn];
      for (int i = 0; i < 4; i++) {
        right.at[i] = shared ? same : b[((I)start + i) / near % turn];
      }
    }
    Four<Y> made;
    for (int i = 0; i < 4; i++) {
      made.at[i] = narrow<Y>(F::of((W)wide(left.at[i]), (W)wide(right.at[i])));
    }
    store_four(y, start, count, made);
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
