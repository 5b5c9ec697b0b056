// Sums over some labels of a tensor, or of a product of two, always in the same order.
//
// Tables (strides.cuh) lead from the number of an output, and from that of a term, to the places of
// both operands. Terms are cut into gridDim.y parts of `part` terms; where there are several, y
// holds the sums of the parts, which a second launch adds up.
#include "slabs.cuh"
#include "strides.cuh"

struct Single {  // of a tensor; the second operand is not read
  template <typename W, typename A, typename B>
  __device__ static inline W at(const A* a, const B*, Places place) {
    return (W)wide(a[place.first]);
  }
};
struct Product {
  template <typename W, typename A, typename B>
  __device__ static inline W at(const A* a, const B* b, Places place) {
    return (W)wide(a[place.first]) * (W)wide(b[place.second]);
  }
};
struct Below {  // gradient of prelu's slope, of x and dy
  template <typename W, typename A, typename B>
  __device__ static inline W at(const A* x, const B* dy, Places place) {
    W given = (W)wide(x[place.first]);
    return given > (W)0 ? (W)0 : given * (W)wide(dy[place.second]);
  }
};

// A thread for every output and part: y is [parts, outputs].
template <typename F, typename A, typename B, typename Y, typename I>
__global__ void sum_by_thread(const A* a, const B* b, Y* y, const i64* kept, const i64* summed,
                              int kept_dims, int summed_dims, i64 outputs, i64 terms, i64 part) {
  typedef Joined<A, B> W;
  i64 first = blockIdx.y * part, last = smaller(first + part, terms);
  for (i64 at = first_element(); at < outputs; at += element_stride()) {
    Places from = places_of((I)at, kept, kept_dims);
    const A* left = a + from.first;
    const B* right = b + from.second;
    W sum = 0;
    if (summed_dims == 1) {  // nothing to divide: the loads of several terms overlap
      i64 down = summed[DIMS_MAX], down_second = summed[2 * DIMS_MAX];
#pragma unroll 8
      for (i64 term = first; term < last; term++) {
        sum += F::template at<W>(left, right, Places{term * down, term * down_second});
      }
    } else {
      for (i64 term = first; term < last; term++) {
        sum += F::template at<W>(left, right, places_of((I)term, summed, summed_dims));
      }
    }
    y[blockIdx.y * outputs + at] = narrow<Y>(sum);
  }
}

// A block for every output and part: y is [outputs, parts].
template <typename F, typename A, typename B, typename Y, typename I>
__global__ void sum_by_block(const A* a, const B* b, Y* y, const i64* kept, const i64* summed,
                             int kept_dims, int summed_dims, i64 outputs, i64 terms, i64 part) {
  typedef Joined<A, B> W;
  i64 first = blockIdx.y * part, last = smaller(first + part, terms);
  for (i64 at = blockIdx.x; at < outputs; at += gridDim.x) {
    Places from = places_of((I)at, kept, kept_dims);
    const A* left = a + from.first;
    const B* right = b + from.second;
    W sum = 0;
    for (i64 term = first + threadIdx.x; term < last; term += blockDim.x) {
      sum += F::template at<W>(left, right, places_of((I)term, summed, summed_dims));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[at * gridDim.y + blockIdx.y] = narrow<Y>(sum);
  }
}

// Sums over the rows of a slab of x, [slabs, columns]; gridDim.y slabs.
template <typename X, typename W, int N>
__global__ void column_sums(const X* x, W* slab_sums, i64 slab_rows, i64 rows, i64 columns) {
  W sums[N] = {};
  Pack<X, N> here[4];
  i64 column = slab_column<N>();
  if (column < columns) {
    each_slab_row<4>(
        slab_rows, rows,
        [&](int i, i64 row) { here[i] = *(const Pack<X, N>*)(x + row * columns + column); },
        [&](int i) {
#pragma unroll
          for (int k = 0; k < N; k++) sums[k] += (W)wide(here[i].of[k]);
        });
  }
  slab_sum(sums, slab_sums + blockIdx.y * columns, columns);
}
