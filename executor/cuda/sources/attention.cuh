// Attention's tiles: what forward and backward share.
//
// b samples, t queries here, s keys here, g groups of heads that share keys, r query heads of a
// group, d head dim, u value dim: q [b t g r d], k [b s g d], v [b s g u], out [b t g r u],
// logsumexp [b t g r]. A block of 16 × 16 threads works on tiles of scores: a thread has MICRO rows
// (neighbours) and MICRO columns (16 apart) of a tile. Scores never leave the chip.
#pragma once
#include "reduce.cuh"

// Written by `kernels/attention/shape.py`, in this order.
struct AttentionShape {
  i64 samples, queries, keys, groups, repeats, head_dim, value_dim;
  i64 first;          // place of the first query, counted from the first key here
  i64 behind, ahead;  // a query at t sees the keys s with -ahead < t - s < behind
  // strides of what is added to the scores, in elements; 0 for a label that it lacks
  i64 bias_sample, bias_group, bias_repeat, bias_query, bias_key;
};

const int SIDE = 16;
const int TILE_THREADS = SIDE * SIDE;
const int DEPTH = 32;  // features that a product of two tiles takes at a time

template <typename W> struct MicroOf { static const int rows = 4; };
template <> struct MicroOf<double> { static const int rows = 2; };

// Sizes of tiles whose arithmetic is in W.
template <typename W> struct Tiles {
  static const int MICRO = MicroOf<W>::rows;
  static const int TILE = SIDE * MICRO;
  static const int STAGED = 2 * TILE * (DEPTH + 1);  // elements of scratch for what tiles are of
  static const int WEIGHTS = TILE * (TILE + 1);      // elements of a tile, rows one bank apart
};

__device__ inline int tile_row() { return threadIdx.x / SIDE; }
__device__ inline int tile_column() { return threadIdx.x % SIDE; }

// `count` rows of `columns` values, `stride` elements apart.
template <typename T> struct Rows {
  const T* begin;
  i64 stride;
  int count, columns;
};

// One head of one sample.
struct Head {
  i64 sample, group, repeat;
};
__device__ inline Head head_of(const AttentionShape& shape, i64 index) {
  Head found;
  found.repeat = index % shape.repeats;
  found.group = index / shape.repeats % shape.groups;
  found.sample = index / shape.repeats / shape.groups;
  return found;
}

// Where something held per query and head lies, of `columns` values each.
__device__ inline i64 query_at(const AttentionShape& shape, const Head& head, i64 query,
                               i64 columns) {
  i64 token = head.sample * shape.queries + query;
  return ((token * shape.groups + head.group) * shape.repeats + head.repeat) * columns;
}
__device__ inline i64 key_at(const AttentionShape& shape, const Head& head, i64 key, i64 columns) {
  return ((head.sample * shape.keys + key) * shape.groups + head.group) * columns;
}

// At most `most` rows of a head, from a query or a key on.
template <typename T>
__device__ inline Rows<T> query_rows(const AttentionShape& shape, const T* x, const Head& head,
                                     i64 query, int most, i64 columns) {
  i64 stride = shape.groups * shape.repeats * columns;
  int count = (int)smaller(shape.queries - query, (i64)most);
  return {x + query_at(shape, head, query, columns), stride, count, (int)columns};
}
template <typename T>
__device__ inline Rows<T> key_rows(const AttentionShape& shape, const T* x, const Head& head,
                                   i64 key, int most, i64 columns) {
  int count = (int)smaller(shape.keys - key, (i64)most);
  return {x + key_at(shape, head, key, columns), shape.groups * columns, count, (int)columns};
}

// The keys that some query of [start, stop) sees: from `begin`, a multiple of `tile`, to `end`.
__device__ inline void keys_seen(const AttentionShape& shape, i64 start, i64 stop, int tile,
                                 i64* begin, i64* end) {
  *begin = larger((i64)0, shape.first + start - shape.behind + 1) / tile * tile;
  *end = smaller(shape.keys, shape.first + stop - 1 + shape.ahead);
}
// The queries that see some key of [start, stop).
__device__ inline void queries_seeing(const AttentionShape& shape, i64 start, i64 stop, int tile,
                                      i64* begin, i64* end) {
  *begin = larger((i64)0, start - shape.ahead + 1 - shape.first) / tile * tile;
  *end = smaller(shape.queries, stop - 1 + shape.behind - shape.first);
}

// What products of queries and keys are multiplied by, and where scores are capped (0: nowhere).
template <typename W> struct Scaling {
  W scale, cap;

  __device__ W of(W product) const {
    return cap == (W)0 ? product * scale : cap * tanh_of(product * scale / cap);
  }
  // The slope at a score: that of the cap.
  __device__ W slope_at(W product) const {
    if (cap == (W)0) return 1;
    W part = tanh_of(product * scale / cap);
    return 1 - part * part;
  }
};

// The score of a query and a key out of their product; minus infinity where it is hidden.
template <typename W, typename B>
__device__ inline W score_of(const AttentionShape& shape, const Head& head, W slope, const B* bias,
                             const Scaling<W>& scaling, W product, i64 query, i64 key) {
  i64 distance = shape.first + query - key;
  bool seen = -shape.ahead < distance && distance < shape.behind;
  if (!seen || query >= shape.queries || key >= shape.keys) return lowest<W>();
  i64 at = head.sample * shape.bias_sample + head.group * shape.bias_group +
           head.repeat * shape.bias_repeat + query * shape.bias_query + key * shape.bias_key;
  return scaling.of(product) - slope * abs_of((W)distance) + value_at<W>(bias, at);
}

// The probability of a score; where a query sees nothing, both are minus infinity.
template <typename W> __device__ inline W probability_of(W score, W logsumexp) {
  return score == lowest<W>() ? (W)0 : exp_of(score - logsumexp);
}

// Columns [from, from + DEPTH) of a tile of rows, zeros beyond them.
template <typename T, typename W>
__device__ inline void stage_columns(const Rows<T>& rows, int from, W* to) {
  for (int at = threadIdx.x; at < Tiles<W>::TILE * DEPTH; at += TILE_THREADS) {
    int row = at / DEPTH, column = from + at % DEPTH;
    bool there = row < rows.count && column < rows.columns;
    to[row * (DEPTH + 1) + at % DEPTH] =
        there ? (W)wide(rows.begin[row * rows.stride + column]) : (W)0;
  }
}

// sums[i][j] += Σ over features of a[row i] b[column j].
template <typename A, typename B, typename W, int MICRO>
__device__ inline void add_products(const Rows<A>& a, const Rows<B>& b, W* staged,
                                    W (&sums)[MICRO][MICRO]) {
  W* left = staged;
  W* right = staged + Tiles<W>::TILE * (DEPTH + 1);
  for (int from = 0; from < a.columns; from += DEPTH) {
    __syncthreads();  // what was staged before has been read
    stage_columns(a, from, left);
    stage_columns(b, from, right);
    __syncthreads();
#pragma unroll 8
    for (int feature = 0; feature < DEPTH; feature++) {
      W x[MICRO], y[MICRO];
      for (int i = 0; i < MICRO; i++) {
        x[i] = left[(tile_row() * MICRO + i) * (DEPTH + 1) + feature];
        y[i] = right[(tile_column() + SIDE * i) * (DEPTH + 1) + feature];
      }
      for (int i = 0; i < MICRO; i++) {
        for (int j = 0; j < MICRO; j++) sums[i][j] += x[i] * y[j];
      }
    }
  }
}

// Leave a thread's part of a tile in shared memory, for `add_mixed`, which waits for it.
template <typename W, int MICRO>
__device__ inline void share_tile(const W (&values)[MICRO][MICRO], W* weights) {
  for (int i = 0; i < MICRO; i++) {
    W* row = weights + (tile_row() * MICRO + i) * (Tiles<W>::TILE + 1);
    for (int j = 0; j < MICRO; j++) row[tile_column() + SIDE * j] = values[i][j];
  }
}

// sums[i][j] += Σ over rows n of weights[row i][n] rows[n][column j], for 16 COLUMNS columns.
template <typename T, typename W, int MICRO, int COLUMNS>
__device__ inline void add_mixed(const W* weights, const Rows<T>& rows, W* staged,
                                 W (&sums)[MICRO][COLUMNS]) {
  const int TILE = Tiles<W>::TILE, WIDTH = SIDE * COLUMNS;
  const int FEW = WIDTH <= 64 ? TILE : WIDTH <= 128 ? TILE / 2 : TILE / 4;  // rows that fit
  for (int from = 0; from < rows.count; from += FEW) {
    __syncthreads();
    for (int at = threadIdx.x; at < FEW * WIDTH; at += TILE_THREADS) {
      int row = from + at / WIDTH, column = at % WIDTH;
      bool there = row < rows.count && column < rows.columns;
      staged[at] = there ? (W)wide(rows.begin[row * rows.stride + column]) : (W)0;
    }
    __syncthreads();
#pragma unroll 4
    for (int n = 0; n < FEW; n++) {
      W x[MICRO], y[COLUMNS];
      for (int i = 0; i < MICRO; i++) {
        x[i] = weights[(tile_row() * MICRO + i) * (TILE + 1) + from + n];
      }
      for (int j = 0; j < COLUMNS; j++) y[j] = staged[n * WIDTH + tile_column() + SIDE * j];
      for (int i = 0; i < MICRO; i++) {
        for (int j = 0; j < COLUMNS; j++) sums[i][j] += x[i] * y[j];
      }
    }
  }
}

// Over the 16 threads that share rows of a tile.
template <typename Join, typename W> __device__ inline W row_reduce(W value) {
  for (int lane = SIDE / 2; lane > 0; lane /= 2) {
    value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  return value;
}

// What a query gives: its sum of weighted values times `mine`, and `others` times what it had.
template <typename W> struct Joined {
  W mine, others, logsumexp;
};

// Of the largest score and the sum of exponentials here, and the logsumexp of other keys.
template <typename W> __device__ inline Joined<W> join(W most, W total, W before) {
  W here = total > (W)0 ? most + log_of(total) : lowest<W>();
  W top = larger(here, before);
  if (top == lowest<W>()) return {0, 0, top};  // sees no key: gives zero
  W both = top + log_of(exp_of(here - top) + exp_of(before - top));
  return {total > (W)0 ? exp_of(here - both) / total : (W)0, exp_of(before - both), both};
}
template <typename W> __device__ inline Joined<W> alone(W most, W total) {
  if (total == (W)0) return {0, 0, lowest<W>()};
  return {(W)1 / total, 0, most + log_of(total)};
}
