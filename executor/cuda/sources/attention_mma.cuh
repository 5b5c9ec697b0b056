// Attention by the matrix units, in bf16 and f16: what forward and backward share.
//
// Sizes as in attention.cuh. A block has four warps, and a warp has 16 M rows of a tile of scores
// (M left sides of products), all of its columns. Scores, probabilities and their gradients stay in
// registers: packed, they are the left side of the next product. What products are of lies in
// shared memory as 16 bits. D and U are d and u, whole groups of 8; a tile's rows have as many
// columns and zeros up to the next multiple of 16, and lie 8 elements more apart than the wider of
// them has: an odd multiple of 16 bytes, so that eight rows meet all banks once.
#pragma once
#include "attention.cuh"
#include "matrix_units.cuh"

const int MMA_WARPS = 4;
const int MMA_THREADS = 32 * MMA_WARPS;
const float LOG2_E = 1.44269504088896341f;

template <int COLUMNS> struct Wholly {  // in whole sides of products
  static const int WIDTH = (COLUMNS + 15) / 16 * 16;
  static const int TILES = WIDTH / 8;  // of eight columns
};
template <int D, int U> struct Widths {
  static const int WIDTH = Wholly<(D > U ? D : U)>::WIDTH;
  static const int STRIDE = WIDTH + 8;
};

__device__ inline int lane_row() { return threadIdx.x % 32 / 4; }
__device__ inline int lane_pair() { return threadIdx.x % 4 * 2; }

__device__ inline float exp2_of(float x) {
#ifdef ON_CPU
  return exp2f(x);
#else
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
#endif
}

// Rows of a head, COLUMNS values each; a token has as many heads as are `beside` each other. Kernels
// keep few numbers through their loops, of 32 bits where they can: registers limit their tiles.
template <int COLUMNS, typename T> struct Stream {
  T* begin;
  int beside;

  __device__ T* row(int number) const { return begin + (i64)number * (beside * COLUMNS); }
};
template <int COLUMNS, typename T>
__device__ inline Stream<COLUMNS, T> query_stream(const AttentionShape& shape, T* x,
                                                  const Head& head, i64 query) {
  return {x + query_at(shape, head, query, COLUMNS), (int)(shape.groups * shape.repeats)};
}
template <int COLUMNS, typename T>
__device__ inline Stream<COLUMNS, T> key_stream(const AttentionShape& shape, T* x,
                                                const Head& head, i64 key) {
  return {x + key_at(shape, head, key, COLUMNS), (int)shape.groups};
}

// What a block of a kernel over queries has: a head, and a tile of its queries from there on. The
// last tiles come first, which see most keys where there is a causal mask.
template <int QUERIES> __device__ inline i64 query_tile(const AttentionShape& shape) {
  i64 tiles = (shape.queries + QUERIES - 1) / QUERIES;
  return (tiles - 1 - blockIdx.x % tiles) * QUERIES;
}
template <int QUERIES> __device__ inline Head query_head(const AttentionShape& shape) {
  return head_of(shape, blockIdx.x / ((shape.queries + QUERIES - 1) / QUERIES));
}

// What a block of a kernel over keys has: a group, as its first head, and a tile of its keys. The
// first tiles come first, which most queries see where there is a causal mask.
template <int KEYS> __device__ inline i64 key_tile(const AttentionShape& shape) {
  return blockIdx.x % ((shape.keys + KEYS - 1) / KEYS) * KEYS;
}
template <int KEYS> __device__ inline Head key_head(const AttentionShape& shape) {
  return head_of(shape, blockIdx.x / ((shape.keys + KEYS - 1) / KEYS) * shape.repeats);
}

// Begin to copy ROWS rows of a stream from its row `first` on, `count` of which there are: zeros
// beyond them and beyond their columns.
template <int ROWS, int STRIDE, int COLUMNS, typename T>
__device__ inline void stage_rows(const Stream<COLUMNS, const T>& from, int first, int count,
                                  T* tile) {
  const int WIDTH = Wholly<COLUMNS>::WIDTH;
  const int LANES = WIDTH <= 16 ? 2 : WIDTH <= 32 ? 4 : WIDTH <= 64 ? 8 : 16;  // of a row
  const int STEP = MMA_THREADS / LANES;
  int row = threadIdx.x / LANES, column = threadIdx.x % LANES * 8;
  if (column >= WIDTH) return;
  if (column >= COLUMNS) count = 0;
  const T* place = from.row(first + row) + column;
  T* to = tile + row * STRIDE + column;
#pragma unroll
  for (int step = 0; step < ROWS; step += STEP) {
    if (ROWS % STEP && row + step >= ROWS) break;
    copy_async_16(to + step * STRIDE, place, row + step < count);
    place += (i64)STEP * (from.beside * COLUMNS);
  }
}

// sums [rows, columns] += left [rows, DEPTH] · right [columns, DEPTH], of a warp's rows.
template <int DEPTH, int STRIDE, typename T, int M, int N>
__device__ inline void multiply_rows(const T* left, const T* right, float (&sums)[M][N][4]) {
#pragma unroll
  for (int depth = 0; depth < DEPTH; depth += 16) {
    unsigned a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++) load_left(a[m], left + 16 * m * STRIDE + depth, STRIDE);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned first[2], second[2];
      load_right(first, second, right + 8 * n * STRIDE + depth, STRIDE);
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma_16816<T>(sums[m][n], a[m], first);
        mma_16816<T>(sums[m][n + 1], a[m], second);
      }
    }
  }
}

// sums [rows, columns] += left · right [depth, columns], the left sides packed, 16 of the depth each;
// of the first 8 N columns.
template <int STRIDE, int N, typename T, int M, int DEPTHS, int ALL>
__device__ inline void multiply_packed(const unsigned (&left)[M][DEPTHS][4], const T* right,
                                       float (&sums)[M][ALL][4]) {
#pragma unroll
  for (int depth = 0; depth < DEPTHS; depth++) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned first[2], second[2];
      load_right_trans(first, second, right + 16 * depth * STRIDE + 8 * n, STRIDE);
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma_16816<T>(sums[m][n], left[m][depth], first);
        mma_16816<T>(sums[m][n + 1], left[m][depth], second);
      }
    }
  }
}
template <typename T, int M, int N>
__device__ inline void pack_tile(const float (&values)[M][N][4], unsigned (&left)[M][N / 2][4]) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n += 2) pack_left<T>(left[m][n / 2], values[m][n], values[m][n + 1]);
  }
}

// Which keys of a tile its queries see: key j is seen by query i where low < j - i < high. Kept for
// a first tile, and moved on (`far`: beyond every tile that there is).
struct Seen {
  int low, high;

  __device__ Seen at(int query, int key) const { return {low + query - key, high + query - key}; }
};
__device__ inline Seen seen_in(const AttentionShape& shape, i64 query, i64 key) {
  const i64 far = 1 << 29;
  i64 distance = shape.first + query - key;
  return {(int)larger(-far, smaller(far, distance - shape.behind)),
          (int)larger(-far, smaller(far, distance + shape.ahead))};
}

// Scores of what is hidden become minus infinity, and of keys that are not there, of which a tile
// has `count`; `row` is the warp's first. Rows are queries and columns keys, or the other way round.
template <bool ROWS_ARE_KEYS, int M, int N>
__device__ inline void hide(const Seen& seen, int count, int row, float (&scores)[M][N][4]) {
  const int ROWS = 16 * M, COLUMNS = 8 * N;
  int least = ROWS_ARE_KEYS ? row - COLUMNS + 1 : 1 - row - ROWS;  // of j - i
  int most = ROWS_ARE_KEYS ? row + ROWS - 1 : COLUMNS - 1 - row;
  int keys = ROWS_ARE_KEYS ? row + ROWS : COLUMNS;
  if (seen.low < least && most < seen.high && keys <= count) return;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int at = 0; at < 4; at++) {
        int i = row + 16 * m + lane_row() + at / 2 * 8, j = 8 * n + lane_pair() + at % 2;
        int key = ROWS_ARE_KEYS ? i : j, ahead = ROWS_ARE_KEYS ? i - j : j - i;
        bool there = seen.low < ahead && ahead < seen.high && key < count;
        scores[m][n][at] = there ? scores[m][n][at] : lowest<float>();
      }
    }
  }
}

// Of the four lanes that share rows of a tile.
__device__ inline float quad_largest(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// How many rows there are from one on, of a warp's.
__device__ inline int rows_left(i64 all, i64 from) {
  return (int)larger((i64)0, smaller(all - from, (i64)1 << 16));
}

struct alignas(16) Piece { unsigned of[4]; };
struct alignas(8) FloatPair { float first, second; };

// Write a warp's rows of sums, `count` of which there are. Those of 16 bits go by 16 bytes, through
// rows of shared memory that this warp alone reads and writes.
template <int STRIDE, int COLUMNS, int M, int ALL, typename O>
__device__ inline void write_rows(const float (&sums)[M][ALL][4], O* scratch,
                                  const Stream<COLUMNS, O>& to, int count) {
  const int PIECES = COLUMNS / 8;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
      O* place = scratch + (16 * m + lane_row()) * STRIDE + 8 * n + lane_pair();
      *(unsigned*)place = pack<O>(sums[m][n][0], sums[m][n][1]);
      *(unsigned*)(place + 8 * STRIDE) = pack<O>(sums[m][n][2], sums[m][n][3]);
    }
  }
  __syncwarp();
  for (int at = threadIdx.x % 32; at < 16 * M * PIECES; at += 32) {
    int row = at / PIECES, column = at % PIECES * 8;
    if (row < count) {
      *(Piece*)(to.row(row) + column) = *(Piece*)(scratch + row * STRIDE + column);
    }
  }
}
template <int STRIDE, int COLUMNS, int M, int ALL, typename T>
__device__ inline void write_rows(const float (&sums)[M][ALL][4], T*,
                                  const Stream<COLUMNS, float>& to, int count) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = 16 * m + lane_row() + 8 * half;
      float* place = to.row(row) + lane_pair();
      if (row >= count) continue;
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++) {
        *(FloatPair*)(place + 8 * n) = {sums[m][n][2 * half], sums[m][n][2 * half + 1]};
      }
    }
  }
}

// sums += factor of the row · what there was before (none: nothing).
template <int COLUMNS, int M, int ALL>
__device__ inline void add_before(float (&)[M][ALL][4], const float (&)[M][2],
                                  const Stream<COLUMNS, const none>&, int) {}
template <int COLUMNS, int M, int ALL>
__device__ inline void add_before(float (&sums)[M][ALL][4], const float (&factor)[M][2],
                                  const Stream<COLUMNS, const float>& before, int count) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = 16 * m + lane_row() + 8 * half;
      const float* place = before.row(row) + lane_pair();
      if (row >= count) continue;
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++) {
        FloatPair had = *(const FloatPair*)(place + 8 * n);
        sums[m][n][2 * half] += factor[m][half] * had.first;
        sums[m][n][2 * half + 1] += factor[m][half] * had.second;
      }
    }
  }
}

// sums *= factor.
template <int M, int ALL>
__device__ inline void scale_rows(float (&sums)[M][ALL][4], float factor) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < ALL; n++) {
#pragma unroll
      for (int at = 0; at < 4; at++) sums[m][n][at] *= factor;
    }
  }
}
