// Pooling: the largest or the mean of every window, and the gradients.
//
// Planes of y x inputs and j i outputs, each place with `beside` values: one channel of one sample,
// or all channels of one where they come last, N of which a thread takes at once. `count` are such
// pieces. Gradients are gathered: an input looks at the windows that hold it, in the order of its
// taps there.
#include "reduce.cuh"

struct Dim {
  i64 given, made, size, stride, pad, dilation;
};
struct Pooling {
  Dim y, x;
};

// Windows [first, last] of a dim whose reach holds input `at`; with dilation some of them skip it.
struct Holding {
  int first, last, padded;
  __device__ Holding(const Dim& dim, i64 at) {
    padded = (int)(at + dim.pad);
    int reach = (int)((dim.size - 1) * dim.dilation), stride = (int)dim.stride;
    first = padded > reach ? (padded - reach + stride - 1) / stride : 0;
    last = smaller(padded / stride, (int)dim.made - 1);
  }
  // The tap by which a window reads the input; -1: by none.
  __device__ int tap(const Dim& dim, int window) const {
    int from = padded - window * (int)dim.stride;
    if (dim.dilation == 1) return from;
    return from % dim.dilation == 0 ? (int)(from / dim.dilation) : -1;
  }
};

__device__ inline int input_of(const Dim& dim, int window, int tap) {
  return (int)(window * dim.stride - dim.pad + tap * dim.dilation);
}

// N neighbouring channels of one place.
template <typename T, int N> struct alignas(N * sizeof(T)) Piece { T at[N]; };

template <typename T, int N> __device__ inline Piece<T, N> piece(const T* x) {
  return *(const Piece<T, N>*)x;
}

// What all kernels here know of piece number `at`: its plane, row, column and first channel.
struct Position {
  i64 plane;
  int row, column, channel;
  template <typename I>
  __device__ Position(I at, i64 rows, i64 columns, i64 beside, int width) {
    I pieces = (I)beside / width, place = at / pieces, line = place / (I)columns;
    channel = (int)(at - place * pieces) * width;
    column = (int)(place - line * (I)columns);
    plane = line / (I)rows;
    row = (int)(line - (I)plane * (I)rows);
  }
};

// y of x; a NaN is larger than all.
template <typename T, int N, typename I>
__global__ void max_pool(const T* x, T* y, const Pooling* windows, i64 beside, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place((I)at, of.y.made, of.x.made, beside, N);
    const T* image = x + place.plane * of.y.given * of.x.given * beside + place.channel;
    W best[N];
#pragma unroll
    for (int k = 0; k < N; k++) best[k] = lowest<W>();
    for (int row = 0; row < of.y.size; row++) {
      int down = input_of(of.y, place.row, row);
      if (down < 0 || down >= of.y.given) continue;
      for (int column = 0; column < of.x.size; column++) {
        int across = input_of(of.x, place.column, column);
        if (across < 0 || across >= of.x.given) continue;
        Piece<T, N> values = piece<T, N>(image + (down * of.x.given + across) * beside);
#pragma unroll
        for (int k = 0; k < N; k++) {
          W value = wide(values.at[k]);
          if (value > best[k] || value != value) best[k] = value;
        }
      }
    }
    Piece<T, N> made;
#pragma unroll
    for (int k = 0; k < N; k++) made.at[k] = narrow<T>(best[k]);
    *(Piece<T, N>*)(y + at * N) = made;
  }
}

// Of each of `values`, at tap (row, column) of a window, whether it is the first of its largest: a
// bit per channel.
template <typename T, int N>
__device__ inline unsigned are_first(const T* image, const Pooling& of, i64 beside, int down,
                                     int across, int row, int column, const Piece<T, N>& values) {
  unsigned found = (1u << N) - 1;
  for (int i = 0; i < of.y.size; i++) {
    int y = input_of(of.y, down, i);
    if (y < 0 || y >= of.y.given) continue;
    for (int j = 0; j < of.x.size; j++) {
      int x = input_of(of.x, across, j);
      if (x < 0 || x >= of.x.given) continue;
      Piece<T, N> others = piece<T, N>(image + (y * of.x.given + x) * beside);
      bool earlier = i < row || (i == row && j < column);
#pragma unroll
      for (int k = 0; k < N; k++) {
        Wide<T> value = wide(values.at[k]), other = wide(others.at[k]);
        if (!(other <= value) || (earlier && other == value)) found &= ~(1u << k);
      }
    }
  }
  return found;
}

// dx of (x, dy): dy goes to the first of a window's largest.
template <typename T, int N, typename I>
__global__ void max_pool_grad(const T* x, const T* dy, T* dx, const Pooling* windows, i64 beside,
                              i64 count) {
  const Pooling of = *windows;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place((I)at, of.y.given, of.x.given, beside, N);
    const T* image = x + place.plane * of.y.given * of.x.given * beside + place.channel;
    const T* slopes = dy + place.plane * of.y.made * of.x.made * beside + place.channel;
    Holding rows(of.y, place.row), columns(of.x, place.column);
    Piece<T, N> values = piece<T, N>(x + at * N);
    Wide<T> sums[N] = {};
    for (int down = rows.last; down >= rows.first; down--) {
      int row = rows.tap(of.y, down);
      if (row < 0) continue;
      for (int across = columns.last; across >= columns.first; across--) {
        int column = columns.tap(of.x, across);
        if (column < 0) continue;
        unsigned first = are_first(image, of, beside, down, across, row, column, values);
        if (!first) continue;
        Piece<T, N> here = piece<T, N>(slopes + (down * of.x.made + across) * beside);
#pragma unroll
        for (int k = 0; k < N; k++) {
          if (first >> k & 1) sums[k] += wide(here.at[k]);
        }
      }
    }
    Piece<T, N> made;
#pragma unroll
    for (int k = 0; k < N; k++) made.at[k] = narrow<T>(sums[k]);
    *(Piece<T, N>*)(dx + at * N) = made;
  }
}

// y of x: the mean of every window, its padding counted as zeros.
template <typename T, int N, typename I>
__global__ void avg_pool(const T* x, T* y, const Pooling* windows, i64 beside, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  W share = (W)1 / (W)(of.y.size * of.x.size);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place((I)at, of.y.made, of.x.made, beside, N);
    const T* image = x + place.plane * of.y.given * of.x.given * beside + place.channel;
    W sums[N] = {};
    for (int row = 0; row < of.y.size; row++) {
      int down = input_of(of.y, place.row, row);
      if (down < 0 || down >= of.y.given) continue;
      for (int column = 0; column < of.x.size; column++) {
        int across = input_of(of.x, place.column, column);
        if (across < 0 || across >= of.x.given) continue;
        Piece<T, N> values = piece<T, N>(image + (down * of.x.given + across) * beside);
#pragma unroll
        for (int k = 0; k < N; k++) sums[k] += wide(values.at[k]);
      }
    }
    Piece<T, N> made;
#pragma unroll
    for (int k = 0; k < N; k++) made.at[k] = narrow<T>(sums[k] * share);
    *(Piece<T, N>*)(y + at * N) = made;
  }
}

// The same where a plane is one window: one block per plane.
template <typename T>
__global__ void plane_means(const T* x, T* y, i64 planes, i64 size) {
  typedef Wide<T> W;
  for (i64 plane = blockIdx.x; plane < planes; plane += gridDim.x) {
    W sum = 0;
    for (i64 at = threadIdx.x; at < size; at += blockDim.x) sum += wide(x[plane * size + at]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[plane] = narrow<T>(sum * ((W)1 / (W)size));
  }
}

// dx of dy: every window's share at each of its places.
template <typename T, int N, typename I>
__global__ void avg_pool_grad(const T* dy, T* dx, const Pooling* windows, i64 beside, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  W share = (W)1 / (W)(of.y.size * of.x.size);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place((I)at, of.y.given, of.x.given, beside, N);
    const T* slopes = dy + place.plane * of.y.made * of.x.made * beside + place.channel;
    Holding rows(of.y, place.row), columns(of.x, place.column);
    W sums[N] = {};
    for (int down = rows.last; down >= rows.first; down--) {
      if (rows.tap(of.y, down) < 0) continue;
      for (int across = columns.last; across >= columns.first; across--) {
        if (columns.tap(of.x, across) < 0) continue;
        Piece<T, N> here = piece<T, N>(slopes + (down * of.x.made + across) * beside);
#pragma unroll
        for (int k = 0; k < N; k++) sums[k] += wide(here.at[k]) * share;
      }
    }
    Piece<T, N> made;
#pragma unroll
    for (int k = 0; k < N; k++) made.at[k] = narrow<T>(sums[k]);
    *(Piece<T, N>*)(dx + at * N) = made;
  }
}
