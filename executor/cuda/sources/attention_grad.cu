// Gradients of attention, whose probabilities are found again from the logsumexp of every query.
//
// With P = exp(scores - logsumexp) and delta = Σ_u dout · out per query (Dao 2022, appendix B.2):
// dv = Pᵀ dout, dS = P · (dout vᵀ - delta), dq = scale · dS k, dk = scale · dSᵀ q, and what is added
// to the scores gets dS; before dq and dk, dS is multiplied by the slope of a cap. Every output is
// added up by one block in one order: no atomics.
#include "attention.cuh"

// delta [b t g r] of (out, dout); one warp per row.
template <typename W, typename O, typename D>
__global__ void attention_delta(const O* out, const D* dout, W* delta, i64 rows, i64 columns) {
  i64 row = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;
  W sum = 0;
  for (i64 at = row * columns + threadIdx.x % 32; at < (row + 1) * columns; at += 32) {
    sum += (W)wide(out[at]) * (W)wide(dout[at]);
  }
  sum = warp_reduce<Add>(sum);
  if (threadIdx.x % 32 == 0) delta[row] = sum;
}

// dq, one block per head and tile of queries; `before` is added (none: nothing is).
template <typename T, typename L, typename D, typename Q, typename B, typename P, int COLUMNS>
__global__ void __launch_bounds__(TILE_THREADS)
    attention_grad_query(const AttentionShape* shape_at, const Wide<T>* slopes, const T* q,
                         const T* k, const T* v, const B* bias, const L* logsumexp,
                         const Wide<T>* delta, const D* dout, const P* before, Q* dq,
                         double scale, double cap) {
  typedef Wide<T> W;
  Scaling<W> scaling = {(W)scale, (W)cap};
  const int MICRO = Tiles<W>::MICRO, TILE = Tiles<W>::TILE;
  __shared__ W staged[Tiles<W>::STAGED];
  __shared__ W weights[Tiles<W>::WEIGHTS];
  AttentionShape shape = *shape_at;
  i64 tiles = (shape.queries + TILE - 1) / TILE;
  Head head = head_of(shape, blockIdx.x / tiles);
  W slope = slopes[head.group * shape.repeats + head.repeat];
  i64 start = (tiles - 1 - blockIdx.x % tiles) * TILE;
  Rows<T> queries = query_rows(shape, q, head, start, TILE, shape.head_dim);
  Rows<D> douts = query_rows(shape, dout, head, start, TILE, shape.value_dim);
  W sums[MICRO][COLUMNS] = {};
  i64 begin, end;
  keys_seen(shape, start, start + queries.count, TILE, &begin, &end);
  for (i64 key = begin; key < end; key += TILE) {
    W scores[MICRO][MICRO] = {}, slants[MICRO][MICRO] = {};
    Rows<T> keys = key_rows(shape, k, head, key, TILE, shape.head_dim);
    add_products(queries, keys, staged, scores);
    add_products(douts, key_rows(shape, v, head, key, TILE, shape.value_dim), staged, slants);
    for (int i = 0; i < MICRO; i++) {
      i64 query = start + tile_row() * MICRO + i;
      i64 statistic = query_at(shape, head, smaller(query, shape.queries - 1), 1);
      W total = value_at<W>(logsumexp, statistic);
      for (int j = 0; j < MICRO; j++) {
        W score = score_of(shape, head, slope, bias, scaling, scores[i][j], query,
                           key + tile_column() + SIDE * j);
        slants[i][j] = probability_of(score, total) * (slants[i][j] - delta[statistic]) *
                       scaling.slope_at(scores[i][j]);
      }
    }
    share_tile(slants, weights);
    add_mixed(weights, keys, staged, sums);
  }
  for (int i = 0; i < MICRO; i++) {
    i64 query = start + tile_row() * MICRO + i;
    if (query >= shape.queries) break;
    i64 row = query_at(shape, head, query, shape.head_dim);
    for (int j = 0; j < COLUMNS; j++) {
      i64 column = tile_column() + SIDE * j;
      if (column >= shape.head_dim) break;
      dq[row + column] = narrow<Q>((W)scale * sums[i][j] + value_at<W>(before, row + column));
    }
  }
}

// Write a tile's rows of a gradient of keys or values.
template <typename K, typename W, int MICRO, int COLUMNS>
__device__ inline void write_keys(const AttentionShape& shape, const Head& head, i64 start,
                                  i64 columns, W scale, const W (&sums)[MICRO][COLUMNS], K* to) {
  for (int i = 0; i < MICRO; i++) {
    i64 key = start + tile_row() * MICRO + i;
    if (key >= shape.keys) break;
    for (int j = 0; j < COLUMNS; j++) {
      i64 column = tile_column() + SIDE * j;
      if (column >= columns) break;
      to[key_at(shape, head, key, columns) + column] = narrow<K>(scale * sums[i][j]);
    }
  }
}

// dk and dv, one block per group of heads and tile of keys: over the heads of the group in order,
// and for each over the queries that see the tile. Rows of a tile are keys here.
template <typename T, typename L, typename D, typename K, typename B, int COLUMNS>
__global__ void __launch_bounds__(TILE_THREADS)
    attention_grad_keys(const AttentionShape* shape_at, const Wide<T>* slopes, const T* q,
                        const T* k, const T* v, const B* bias, const L* logsumexp,
                        const Wide<T>* delta, const D* dout, K* dk, K* dv, double scale,
                        double cap) {
  typedef Wide<T> W;
  Scaling<W> scaling = {(W)scale, (W)cap};
  const int MICRO = Tiles<W>::MICRO, TILE = Tiles<W>::TILE;
  __shared__ W staged[Tiles<W>::STAGED];
  __shared__ W weights[Tiles<W>::WEIGHTS];
  AttentionShape shape = *shape_at;
  i64 tiles = (shape.keys + TILE - 1) / TILE;
  Head head = head_of(shape, blockIdx.x / tiles * shape.repeats);
  i64 start = blockIdx.x % tiles * TILE;
  Rows<T> keys = key_rows(shape, k, head, start, TILE, shape.head_dim);
  Rows<T> values = key_rows(shape, v, head, start, TILE, shape.value_dim);
  W of_keys[MICRO][COLUMNS] = {}, of_values[MICRO][COLUMNS] = {};
  i64 begin, end;
  queries_seeing(shape, start, start + keys.count, TILE, &begin, &end);
  for (head.repeat = 0; head.repeat < shape.repeats; head.repeat++) {
    W slope = slopes[head.group * shape.repeats + head.repeat];
    for (i64 first = begin; first < end; first += TILE) {
      W scores[MICRO][MICRO] = {}, slants[MICRO][MICRO] = {};
      Rows<T> queries = query_rows(shape, q, head, first, TILE, shape.head_dim);
      Rows<D> douts = query_rows(shape, dout, head, first, TILE, shape.value_dim);
      add_products(keys, queries, staged, scores);
      add_products(values, douts, staged, slants);
      for (int j = 0; j < MICRO; j++) {
        i64 query = first + tile_column() + SIDE * j;
        i64 statistic = query_at(shape, head, smaller(query, shape.queries - 1), 1);
        W total = value_at<W>(logsumexp, statistic);
        for (int i = 0; i < MICRO; i++) {
          W score = score_of(shape, head, slope, bias, scaling, scores[i][j], query,
                             start + tile_row() * MICRO + i);
          slants[i][j] = (slants[i][j] - delta[statistic]) * scaling.slope_at(scores[i][j]);
          scores[i][j] = probability_of(score, total);
          slants[i][j] *= scores[i][j];
        }
      }
      share_tile(scores, weights);
      add_mixed(weights, douts, staged, of_values);
      __syncthreads();  // the probabilities have been read
      share_tile(slants, weights);
      add_mixed(weights, queries, staged, of_keys);
    }
  }
  write_keys(shape, head, start, shape.head_dim, (W)scale, of_keys, dk);
  write_keys(shape, head, start, shape.value_dim, (W)1, of_values, dv);
}

// A label's part that a block goes through: its own place, or all of them where the bias lacks it.
struct Span {
  i64 begin, end;
};
__device__ inline Span span_of(i64* block, i64 stride, i64 size) {
  if (stride == 0) return {0, size};
  i64 at = *block % size;
  *block /= size;
  return {at, at + 1};
}

// dbias: one block per place of the labels that the bias has, queries and keys by tiles. dS is
// added up over the labels that it lacks in their order, then along the tile.
template <typename T, typename L, typename D, typename B, typename G>
__global__ void __launch_bounds__(TILE_THREADS)
    attention_grad_bias(const AttentionShape* shape_at, const Wide<T>* slopes, const T* q,
                        const T* k, const T* v, const B* bias, const L* logsumexp,
                        const Wide<T>* delta, const D* dout, G* dbias, double scale, double cap) {
  typedef Wide<T> W;
  Scaling<W> scaling = {(W)scale, (W)cap};
  const int MICRO = Tiles<W>::MICRO, TILE = Tiles<W>::TILE;
  __shared__ W staged[Tiles<W>::STAGED];
  __shared__ W weights[Tiles<W>::WEIGHTS];
  AttentionShape shape = *shape_at;
  i64 block = blockIdx.x;
  Span key_tiles = span_of(&block, shape.bias_key, (shape.keys + TILE - 1) / TILE);
  Span query_tiles = span_of(&block, shape.bias_query, (shape.queries + TILE - 1) / TILE);
  Span repeats = span_of(&block, shape.bias_repeat, shape.repeats);
  Span groups = span_of(&block, shape.bias_group, shape.groups);
  Span samples = span_of(&block, shape.bias_sample, shape.samples);
  W sums[MICRO][MICRO] = {};
  i64 heads = (groups.end - groups.begin) * (repeats.end - repeats.begin);
  for (i64 at = 0; at < (samples.end - samples.begin) * heads; at++) {
    Head head;
    head.sample = samples.begin + at / heads;
    head.group = groups.begin + at % heads / (repeats.end - repeats.begin);
    head.repeat = repeats.begin + at % (repeats.end - repeats.begin);
    W slope = slopes[head.group * shape.repeats + head.repeat];
    for (i64 start = query_tiles.begin * TILE; start < query_tiles.end * TILE; start += TILE) {
      Rows<T> queries = query_rows(shape, q, head, start, TILE, shape.head_dim);
      Rows<D> douts = query_rows(shape, dout, head, start, TILE, shape.value_dim);
      i64 begin, end;
      keys_seen(shape, start, start + queries.count, TILE, &begin, &end);
      begin = larger(begin, key_tiles.begin * TILE);
      end = smaller(end, key_tiles.end * TILE);
      for (i64 key = begin; key < end; key += TILE) {
        W scores[MICRO][MICRO] = {}, slants[MICRO][MICRO] = {};
        add_products(queries, key_rows(shape, k, head, key, TILE, shape.head_dim), staged, scores);
        add_products(douts, key_rows(shape, v, head, key, TILE, shape.value_dim), staged, slants);
        for (int i = 0; i < MICRO; i++) {
          i64 query = start + tile_row() * MICRO + i;
          i64 statistic = query_at(shape, head, smaller(query, shape.queries - 1), 1);
          W total = value_at<W>(logsumexp, statistic);
          for (int j = 0; j < MICRO; j++) {
            W score = score_of(shape, head, slope, bias, scaling, scores[i][j], query,
                               key + tile_column() + SIDE * j);
            sums[i][j] += probability_of(score, total) * (slants[i][j] - delta[statistic]);
          }
        }
      }
    }
  }
  share_tile(sums, weights);
  __syncthreads();
  // a tile's rows and columns are places of the bias, or are added up too
  int rows = shape.bias_query ? TILE : 1, columns = shape.bias_key ? TILE : 1;
  dbias += samples.begin * shape.bias_sample + groups.begin * shape.bias_group +
           repeats.begin * shape.bias_repeat;
  for (int at = threadIdx.x; at < rows * columns; at += TILE_THREADS) {
    int row = at / columns, column = at % columns;
    i64 query = query_tiles.begin * TILE + row, key = key_tiles.begin * TILE + column;
    if (query >= shape.queries || key >= shape.keys) continue;
    W sum = 0;
    for (int n = row; n < (rows == 1 ? TILE : row + 1); n++) {
      for (int m = column; m < (columns == 1 ? TILE : column + 1); m++) {
        sum += weights[n * (TILE + 1) + m];
      }
    }
    dbias[query * shape.bias_query + key * shape.bias_key] = narrow<G>(sum);
  }
}
