// Pooling: the largest or the mean of every window, and the gradients.
//
// Planes (one channel of one sample each) of y x inputs and j i outputs. Gradients are gathered:
// an input looks at the windows that hold it, in the order of its taps there.
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

// What all kernels here know of element `at`: its plane, row and column.
struct Position {
  i64 plane;
  int row, column;
  __device__ Position(i64 at, i64 rows, i64 columns) {
    column = (int)(at % columns);
    row = (int)(at / columns % rows);
    plane = at / (rows * columns);
  }
};

// y of x; a NaN is larger than all.
template <typename T>
__global__ void max_pool(const T* x, T* y, const Pooling* windows, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place(at, of.y.made, of.x.made);
    const T* image = x + place.plane * of.y.given * of.x.given;
    W best = lowest<W>();
    for (int row = 0; row < of.y.size; row++) {
      int down = input_of(of.y, place.row, row);
      if (down < 0 || down >= of.y.given) continue;
      for (int column = 0; column < of.x.size; column++) {
        int across = input_of(of.x, place.column, column);
        if (across < 0 || across >= of.x.given) continue;
        W value = wide(image[down * of.x.given + across]);
        if (value > best || value != value) best = value;
      }
    }
    y[at] = narrow<T>(best);
  }
}

// Whether `value`, at tap (row, column) of a window, is the first of the window's largest.
template <typename T>
__device__ inline bool is_first(const T* image, const Pooling& of, int down, int across, int row,
                                int column, Wide<T> value) {
  for (int i = 0; i < of.y.size; i++) {
    int y = input_of(of.y, down, i);
    if (y < 0 || y >= of.y.given) continue;
    for (int j = 0; j < of.x.size; j++) {
      int x = input_of(of.x, across, j);
      if (x < 0 || x >= of.x.given) continue;
      Wide<T> other = wide(image[y * of.x.given + x]);
      bool earlier = i < row || (i == row && j < column);
      if (!(other <= value) || (earlier && other == value)) return false;
    }
  }
  return true;
}

// dx of (x, dy): dy goes to the first of a window's largest.
template <typename T>
__global__ void max_pool_grad(const T* x, const T* dy, T* dx, const Pooling* windows, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place(at, of.y.given, of.x.given);
    const T* image = x + place.plane * of.y.given * of.x.given;
    const T* slopes = dy + place.plane * of.y.made * of.x.made;
    Holding rows(of.y, place.row), columns(of.x, place.column);
    W value = wide(x[at]), sum = 0;
    for (int down = rows.last; down >= rows.first; down--) {
      int row = rows.tap(of.y, down);
      if (row < 0) continue;
      for (int across = columns.last; across >= columns.first; across--) {
        int column = columns.tap(of.x, across);
        if (column < 0 || !is_first(image, of, down, across, row, column, value)) continue;
        sum += wide(slopes[down * of.x.made + across]);
      }
    }
    dx[at] = narrow<T>(sum);
  }
}

// y of x: the mean of every window, its padding counted as zeros.
template <typename T>
__global__ void avg_pool(const T* x, T* y, const Pooling* windows, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  W share = (W)1 / (W)(of.y.size * of.x.size);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place(at, of.y.made, of.x.made);
    const T* image = x + place.plane * of.y.given * of.x.given;
    W sum = 0;
    for (int row = 0; row < of.y.size; row++) {
      int down = input_of(of.y, place.row, row);
      if (down < 0 || down >= of.y.given) continue;
      for (int column = 0; column < of.x.size; column++) {
        int across = input_of(of.x, place.column, column);
        if (across < 0 || across >= of.x.given) continue;
        sum += wide(image[down * of.x.given + across]);
      }
    }
    y[at] = narrow<T>(sum * share);
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
template <typename T>
__global__ void avg_pool_grad(const T* dy, T* dx, const Pooling* windows, i64 count) {
  typedef Wide<T> W;
  const Pooling of = *windows;
  W share = (W)1 / (W)(of.y.size * of.x.size);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Position place(at, of.y.given, of.x.given);
    const T* slopes = dy + place.plane * of.y.made * of.x.made;
    Holding rows(of.y, place.row), columns(of.x, place.column);
    W sum = 0;
    for (int down = rows.last; down >= rows.first; down--) {
      if (rows.tap(of.y, down) < 0) continue;
      for (int across = columns.last; across >= columns.first; across--) {
        if (columns.tap(of.x, across) < 0) continue;
        sum += wide(slopes[down * of.x.made + across]) * share;
      }
    }
    dx[at] = narrow<T>(sum);
  }
}
