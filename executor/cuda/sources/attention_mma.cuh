// Attention by the matrix units, in bf16 and f16: what forward and backward share.
//
// Sizes as in attention.cuh. A block has four warps, and a warp has 16 M rows of a tile of scores
// (M left sides of products), all of its columns. Scores, probabilities and their gradients stay in
// registers: packed, they are the left side of the next product. What products are of lies in
// shared memory as 16 bits, every tile with rows WIDTH + 8 elements apart, WIDTH the wider of the
// two widths D and U of rows (d and u, up to a multiple of 16, zeros beyond them): an odd multiple
// of 16 bytes, so that eight rows meet all banks once.
#pragma once
#include "attention.cuh"
#include "matrix_units.cuh"

const int MMA_WARPS = 4;
const int MMA_THREADS = 32 * MMA_WARPS;
const float LOG2_E = 1.44269504088896341f;

template <int D, int U> struct Widths {
  static const int WIDTH = D > U ? D : U;
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

// Rows of a head that tiles are copied from: `stride` elements apart, `columns` values each. Kernels
// keep few numbers through their loops, of 32 bits where they can: registers are what limits them.
template <typename T> struct Stream {
  const T* begin;
  int stride, columns;
};
template <typename T>
__device__ inline Stream<T> query_stream(const AttentionShape& shape, const T* x, const Head& head,
                                         i64 query, i64 columns) {
  return {x + query_at(shape, head, query, columns),
          (int)(shape.groups * shape.repeats * columns), (int)columns};
}
template <typename T>
__device__ inline Stream<T> key_stream(const AttentionShape& shape, const T* x, const Head& head,
                                       i64 key, i64 columns) {
  return {x + key_at(shape, head, key, columns), (int)(shape.groups * columns), (int)columns};
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
template <int ROWS, int WIDTH, int STRIDE, typename T>
__device__ inline void stage_rows(const Stream<T>& from, int first, int count, T* tile) {
  const int LANES = WIDTH <= 16 ? 2 : WIDTH <= 32 ? 4 : WIDTH <= 64 ? 8 : 16;  // of a row
  const int STEP = MMA_THREADS / LANES;
  int row = threadIdx.x / LANES, column = threadIdx.x % LANES * 8;
  if (column >= WIDTH) return;
  if (column >= from.columns) count = 0;
  const T* place = from.begin + (i64)(first + row) * from.stride + column;
  T* to = tile + row * STRIDE + column;
#pragma unroll
  for (int step = 0; step < ROWS; step += STEP) {
    if (ROWS % STEP && row + step >= ROWS) break;
    copy_async_16(to + step * STRIDE, place, row + step < count);
    place += (i64)STEP * from.stride;
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

// Which keys of a tile its queries see: key j is seen by query i where low < j - i < high, j < count.
// Kept for a first tile, and moved on (`far`: beyond every tile that there is).
struct Seen {
  int low, high, count;

  __device__ Seen at(int query, int key) const {
    return {low + query - key, high + query - key, count - key};
  }
};
__device__ inline Seen seen_in(const AttentionShape& shape, i64 query, i64 key) {
  const i64 far = 1 << 29;
  i64 distance = shape.first + query - key;
  return {(int)larger(-far, smaller(far, distance - shape.behind)),
          (int)larger(-far, smaller(far, distance + shape.ahead)),
          (int)smaller(far, shape.keys - key)};
}

// Scores of what is hidden become minus infinity; `row` is the warp's first. Rows are queries and
// columns keys, or the other way round.
template <bool ROWS_ARE_KEYS, int M, int N>
__device__ inline void hide(const Seen& seen, int row, float (&scores)[M][N][4]) {
  const int ROWS = 16 * M, COLUMNS = 8 * N;
  int least = ROWS_ARE_KEYS ? row - COLUMNS + 1 : 1 - row - ROWS;  // of j - i
  int most = ROWS_ARE_KEYS ? row + ROWS - 1 : COLUMNS - 1 - row;
  int keys = ROWS_ARE_KEYS ? row + ROWS : COLUMNS;
  if (seen.low < least && most < seen.high && keys <= seen.count) return;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int at = 0; at < 4; at++) {
        int i = row + 16 * m + lane_row() + at / 2 * 8, j = 8 * n + lane_pair() + at % 2;
        int key = ROWS_ARE_KEYS ? i : j, ahead = ROWS_ARE_KEYS ? i - j : j - i;
        bool there = seen.low < ahead && ahead < seen.high && key < seen.count;
        scores[m][n][at] = there ? scores[m][n][at] : lowest<float>();
      }
    }
  }
}

// Of the four lanes that share rows of a tile.
template <typename Join> __device__ inline float quad_reduce(float value) {
  value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return Join::of(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Rows of a result, or of what is added to one, `count` of them.
template <typename O> struct Target {
  O* begin;
  i64 stride;
  int count, columns;
};
template <typename O>
__device__ inline Target<O> query_target(const AttentionShape& shape, O* x, const Head& head,
                                         i64 query, i64 columns) {
  i64 count = larger((i64)0, smaller(shape.queries - query, (i64)1 << 16));
  return {x + query_at(shape, head, query, columns), shape.groups * shape.repeats * columns,
          (int)count, (int)columns};
}
template <typename O>
__device__ inline Target<O> key_target(const AttentionShape& shape, O* x, const Head& head, i64 key,
                                       i64 columns) {
  i64 count = larger((i64)0, smaller(shape.keys - key, (i64)1 << 16));
  return {x + key_at(shape, head, key, columns), shape.groups * columns, (int)count, (int)columns};
}

struct alignas(16) Piece { unsigned of[4]; };
struct alignas(8) FloatPair { float first, second; };

// Write a warp's rows of sums, 8 N columns of them. Those of 16 bits go by 16 bytes, through rows of
// shared memory that this warp alone reads and writes.
template <int N, int STRIDE, int M, int ALL, typename O>
__device__ inline void write_rows(const float (&sums)[M][ALL][4], O* scratch, const Target<O>& to) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
      O* place = scratch + (16 * m + lane_row()) * STRIDE + 8 * n + lane_pair();
      *(unsigned*)place = pack<O>(sums[m][n][0], sums[m][n][1]);
      *(unsigned*)(place + 8 * STRIDE) = pack<O>(sums[m][n][2], sums[m][n][3]);
    }
  }
  __syncwarp();
  for (int at = threadIdx.x % 32; at < 16 * M * N; at += 32) {
    int row = at / N, column = at % N * 8;
    if (row < to.count && column < to.columns) {
      *(Piece*)(to.begin + row * to.stride + column) = *(Piece*)(scratch + row * STRIDE + column);
    }
  }
}
template <int N, int STRIDE, int M, int ALL, typename T>
__device__ inline void write_rows(const float (&sums)[M][ALL][4], T*, const Target<float>& to) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int row = 16 * m + lane_row() + 8 * half, column = 8 * n + lane_pair();
        if (row < to.count && column < to.columns) {
          *(FloatPair*)(to.begin + row * to.stride + column) = {sums[m][n][2 * half],
                                                                sums[m][n][2 * half + 1]};
        }
      }
    }
  }
}

// sums += factor of the row · what there was before (none: nothing).
template <int N, int M, int ALL>
__device__ inline void add_before(float (&sums)[M][ALL][4], const float (&)[M][2],
                                  const Target<const none>&) {}
template <int N, int M, int ALL>
__device__ inline void add_before(float (&sums)[M][ALL][4], const float (&factor)[M][2],
                                  const Target<const float>& before) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int row = 16 * m + lane_row() + 8 * half, column = 8 * n + lane_pair();
        if (row < before.count && column < before.columns) {
          const FloatPair* had =
              (const FloatPair*)(before.begin + row * before.stride + column);
          sums[m][n][2 * half] += factor[m][half] * had->first;
          sums[m][n][2 * half + 1] += factor[m][half] * had->second;
        }
      }
    }
  }
}
