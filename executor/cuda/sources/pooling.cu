// Pooling: the largest or the mean of every window, and the gradients.
//
// Planes of y x inputs and j i outputs, each place with `beside` values: one channel of one sample,
// or all channels of one where they come last, N of which a thread takes at once. `count` are such
// pieces. Gradients are gathered: an input looks at the windows that hold it, in the order of its
// taps there. That of the largest takes two passes, the first of which finds every window's largest
// once. I is the type of an index, 32 bits where they do.
#include "reduce.cuh"

struct Dim {
  int given, made, size, stride, pad, dilation;
  // Inputs from a window's first tap to its last.
  __device__ int reach() const { return (size - 1) * dilation + 1; }
  // The first input of a window.
  __device__ int first(int window) const { return window * stride - pad; }
  // Groups of `stride` inputs, from a window's first to the next one's.
  __device__ int cells() const { return (given - 1 + pad) / stride + 1; }
  __device__ bool holds(int input) const { return input >= 0 && input < given; }
};
struct Pooling {
  Dim y, x;
  // The number of a place in a window's reach; numbers of taps grow from row to row.
  __device__ int number(int down, int across) const { return down * x.reach() + across; }
};

// N neighbouring channels of one place.
template <typename T, int N> struct alignas(N * sizeof(T)) Piece { T at[N]; };

template <typename T, int N> __device__ inline Piece<T, N> piece(const T* x) {
  return *(const Piece<T, N>*)x;
}

// Of piece number `at` of places or cells: its plane, row, column and first channel.
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

// The taps of a window along a dim that lie inside the image: behind its first input by `first`, on
// by the dilation, below `end`.
struct Inside {
  int first, end, start;
  __device__ Inside(const Dim& dim, int window) {
    start = dim.first(window);
    for (first = 0; start + first < 0;) first += dim.dilation;
    end = smaller(dim.reach(), dim.given - start);
  }
  __device__ bool any() const { return first < end; }
};

// work(number, values) of every tap of a window that is inside the image, row by row; so many of a
// row are on their way at once.
template <int N, int AT_ONCE, typename I, typename T, typename F>
__device__ inline void each_tap(const T* image, const Pooling& of, const Inside& rows,
                                const Inside& columns, i64 beside, F work) {
  I step = (I)of.x.dilation * (I)beside;
  for (int down = rows.first; down < rows.end; down += of.y.dilation) {
    I place = ((I)(rows.start + down) * of.x.given + columns.start + columns.first) * (I)beside;
    int number = of.number(down, columns.first), end = of.number(down, columns.end);
#pragma unroll AT_ONCE
    for (; number < end; number += of.x.dilation, place += step) {
      work(number, piece<T, N>(image + place));
    }
  }
}

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
    Inside rows(of.y, place.row), columns(of.x, place.column);
    each_tap<N, 3, I>(image, of, rows, columns, beside, [&](int, const Piece<T, N>& values) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        W value = wide(values.at[k]);
        if (value > best[k] || value != value) best[k] = value;
      }
    });
    Piece<T, N> made;
#pragma unroll
    for (int k = 0; k < N; k++) made.at[k] = narrow<T>(best[k]);
    *(Piece<T, N>*)(y + at * N) = made;
  }
}

// The number of the first of every window's largest; all bits of A where a value is NaN.
template <typename T, int N, typename A, typename I>
__global__ void __launch_bounds__(256, sizeof(T) < 8 ? 5 : 4)
    largest_taps(const T* x, A* taps, const Pooling* windows, i64 beside, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place((I)at, of.y.made, of.x.made, beside, N);
    const T* image = x + place.plane * of.y.given * of.x.given * beside + place.channel;
    Inside rows(of.y, place.row), columns(of.x, place.column);
    int found[N], first = -1;
    if (rows.any() && columns.any()) first = of.number(rows.first, columns.first);
    W best[N], size = 0;  // a sum without signs, which is NaN where a value is
#pragma unroll
    for (int k = 0; k < N; k++) best[k] = lowest<W>(), found[k] = first;
    each_tap<N, 1, I>(image, of, rows, columns, beside, [&](int number, const Piece<T, N>& values) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        W value = wide(values.at[k]);
        if (value > best[k]) best[k] = value, found[k] = number;
        size += abs_of(value);
      }
    });
    if (size != size) {
      each_tap<N, 1, I>(image, of, rows, columns, beside, [&](int, const Piece<T, N>& values) {
#pragma unroll
        for (int k = 0; k < N; k++) {
          W value = wide(values.at[k]);
          if (value != value) found[k] = -1;
        }
      });
    }
    Piece<A, N> made;
#pragma unroll
    for (int k = 0; k < N; k++) made.at[k] = (A)found[k];
    *(Piece<A, N>*)(taps + at * N) = made;
  }
}

// work(window, from) of every window that holds an input, the last first: place `inner` of a cell
// lies `from` inputs behind the window's first.
template <typename F>
__device__ inline void each_window(const Dim& dim, int cell, int inner, F work) {
  int window = smaller(cell, dim.made - 1), from = inner + (cell - window) * dim.stride;
  for (; window >= 0 && from < dim.reach(); window--, from += dim.stride) work(window, from);
}

// What every input of a cell gets: add(sums, place, down, across) of every window that holds it, by
// the window's place in its plane and the input's in the window. The inputs of a cell lie in the
// same windows, so that threads of a warp go the same ways.
template <int N, typename I, typename T, typename F>
__device__ inline void gather(T* image, const Pooling& of, const Position& cell, i64 beside,
                              F add) {
  for (int y = 0; y < of.y.stride; y++) {
    int row = of.y.first(cell.row) + y;
    if (!of.y.holds(row)) continue;
    for (int x = 0; x < of.x.stride; x++) {
      int column = of.x.first(cell.column) + x;
      if (!of.x.holds(column)) continue;
      Wide<T> sums[N] = {};
      each_window(of.y, cell.row, y, [&](int line, int down) {
        each_window(of.x, cell.column, x, [&](int window, int across) {
          add(sums, ((I)line * of.x.made + window) * (I)beside, down, across);
        });
      });
      Piece<T, N> made;
#pragma unroll
      for (int k = 0; k < N; k++) made.at[k] = narrow<T>(sums[k]);
      *(Piece<T, N>*)(image + ((I)row * of.x.given + column) * (I)beside) = made;
    }
  }
}

// N neighbouring numbers of taps; bytes are kept in words, of which one instruction compares one.
template <typename A, int N, bool BYTES = sizeof(A) == 1 && N % 4 == 0> struct Numbers {
  Piece<A, N> of;
  __device__ Numbers(const A* from) : of(piece<A, N>(from)) {}
  __device__ bool is(int k, int number) const { return of.at[k] == (A)number; }
};
template <typename A, int N> struct Numbers<A, N, true> {
  Piece<unsigned, N / 4> words;
  __device__ Numbers(const A* from) : words(piece<unsigned, N / 4>((const unsigned*)from)) {}
  __device__ bool is(int k, int number) const {
    return !((words.at[k / 4] ^ number * 0x01010101u) & 0xffu << k % 4 * 8);
  }
};

// dx of dy and of the taps found above: dy goes to the first of a window's largest.
template <typename T, int N, typename A, typename I>
__global__ void max_pool_grad(const T* dy, const A* taps, T* dx, const Pooling* windows, i64 beside,
                              i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position cell((I)at, of.y.cells(), of.x.cells(), beside, N);
    i64 pooled = cell.plane * of.y.made * of.x.made * beside + cell.channel;
    T* image = dx + cell.plane * of.y.given * of.x.given * beside + cell.channel;
    gather<N, I>(image, of, cell, beside, [&](W(&sums)[N], I place, int down, int across) {
      Numbers<A, N> largest(taps + pooled + place);
      Piece<T, N> slopes = piece<T, N>(dy + pooled + place);
      int number = of.number(down, across);
#pragma unroll
      for (int k = 0; k < N; k++) {
        if (largest.is(k, number)) sums[k] += wide(slopes.at[k]);
      }
    });
  }
}

// y of x: the mean of every window, its padding counted as zeros.
template <typename T, int N, typename I>
__global__ void avg_pool(const T* x, T* y, const Pooling* windows, i64 beside, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  W share = (W)1 / ((W)of.y.size * (W)of.x.size);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place((I)at, of.y.made, of.x.made, beside, N);
    const T* image = x + place.plane * of.y.given * of.x.given * beside + place.channel;
    W sums[N] = {};
    Inside rows(of.y, place.row), columns(of.x, place.column);
    each_tap<N, 3, I>(image, of, rows, columns, beside, [&](int, const Piece<T, N>& values) {
#pragma unroll
      for (int k = 0; k < N; k++) sums[k] += wide(values.at[k]);
    });
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
  W share = (W)1 / ((W)of.y.size * (W)of.x.size);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position cell((I)at, of.y.cells(), of.x.cells(), beside, N);
    const T* pooled = dy + cell.plane * of.y.made * of.x.made * beside + cell.channel;
    T* image = dx + cell.plane * of.y.given * of.x.given * beside + cell.channel;
    gather<N, I>(image, of, cell, beside, [&](W(&sums)[N], I place, int down, int across) {
      if (down % of.y.dilation || across % of.x.dilation) return;
      Piece<T, N> slopes = piece<T, N>(pooled + place);
#pragma unroll
      for (int k = 0; k < N; k++) sums[k] += wide(slopes.at[k]) * share;
    });
  }
}
