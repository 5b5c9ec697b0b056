// Values moved from place to place. U is what is moved at once: an element, or up to 16 bytes of
// neighbours where all places allow it.
#include "control.cuh"
#include "strides.cuh"

struct alignas(16) Bytes16 { u64 at[2]; };

template <typename X, typename Y> struct Moved {
  __device__ static inline Y of(X x) { return narrow<Y>(wide(x)); }
};
template <typename U> struct Moved<U, U> {
  __device__ static inline U of(U x) { return x; }
};

// y at its places = x at its places, both from a first place on.
template <typename X, typename Y, typename I>
__global__ void copy_strided(const X* x, Y* y, const i64* table, int dims, i64 x_start,
                             i64 y_start, i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Places place = places_of((I)at, table, dims);
    y[y_start + place.second] = Moved<X, Y>::of(x[x_start + place.first]);
  }
}

// The dim of `rows`, neighbours of which lie side by side in y, and that of `columns`, neighbours of
// which lie side by side in x, change places; a table leads to the first place of each of `outer`
// such matrices. A square tile goes through shared memory; blocks have 256 threads.
template <typename U, int TILE>
__global__ void __launch_bounds__(256, 4)
    transpose(const U* x, U* y, const i64* table, int dims, i64 x_start, i64 y_start, i64 x_step,
              i64 y_step, i64 rows, i64 columns, i64 outer) {
  const int LINES = TILE / 8, LANES = TILE / 32;
  // rows of an odd number of words, so that those of a column lie in different banks
  __shared__ U tile[TILE][TILE + (sizeof(U) < 4 ? 4 / sizeof(U) : 1)];
  i64 down = (rows + TILE - 1) / TILE, across = (columns + TILE - 1) / TILE;
  int lane = threadIdx.x % 32, line = threadIdx.x / 32;
  for (i64 number = blockIdx.x; number < outer * down * across; number += gridDim.x) {
    i64 matrix = number / (down * across), within = number % (down * across);
    i64 row = within / across * TILE, column = within % across * TILE;
    Places place = places_of(matrix, table, dims);
    const U* from = x + x_start + place.first + (row + line) * x_step + column + lane;
    U* to = y + y_start + place.second + (column + line) * y_step + row + lane;
    int wide = (int)smaller(columns - column, (i64)TILE), high = (int)smaller(rows - row, (i64)TILE);
#pragma unroll
    for (int i = 0; i < LINES; i++, from += 8 * x_step) {
#pragma unroll
      for (int j = 0; j < LANES; j++) {
        if (line + 8 * i < high && lane + 32 * j < wide) {
          tile[line + 8 * i][lane + 32 * j] = from[32 * j];
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LINES; i++, to += 8 * y_step) {
#pragma unroll
      for (int j = 0; j < LANES; j++) {
        if (line + 8 * i < wide && lane + 32 * j < high) {
          to[32 * j] = tile[lane + 32 * j][line + 8 * i];
        }
      }
    }
    __syncthreads();  // the tile is written again
  }
}

// y [outer, size, inner] = x [outer, window, inner] from `start` on, 0 around it.
template <typename U, typename I>
__global__ void widen(const U* x, U* y, i64 start, i64 window, i64 size, i64 inner, i64 count) {
  I near = (I)inner, whole = (I)size;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    I row = (I)at / near, outer = row / whole;
    i64 inside = (i64)(row - outer * whole) - start;
    U found = {};
    if (inside >= 0 && inside < window) {
      found = x[((i64)outer * window + inside) * inner + (i64)((I)at - row * near)];
    }
    y[at] = found;
  }
}

template <typename T> __global__ void fill(T* y, double value, i64 count) {
  T same = narrow<T>((Wide<T>)value);
  for (i64 at = first_element(); at < count; at += element_stride()) y[at] = same;
}

// The samples of this step, which were copied to the half of the stage that is its turn.
template <typename S, typename T>
__global__ void from_stage(const Control* control, const S* even, const S* odd, T* y, i64 count) {
  const S* x = control->run_step & 1 ? odd : even;
  for (i64 at = first_element(); at < count; at += element_stride()) y[at] = Moved<S, T>::of(x[at]);
}
