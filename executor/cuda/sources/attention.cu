// Attention forward: softmax(scores) v by tiles of keys, the maximum and the sum kept as they come.
//
// Notes: Dao 2022 (FlashAttention), algorithm 1, with the division at the end; Milakov and
// Gimelshein 2018 for the running maximum.
#include "attention.cuh"

// One block per head and tile of queries, the tiles that see most keys first. `before` and
// `before_logsumexp` are those of other keys (a round of a ring); `bias` and `before` may be none.
template <typename T, typename O, typename S, typename B, typename P, typename L, int COLUMNS>
__global__ void __launch_bounds__(TILE_THREADS)
    attention(const AttentionShape* shape_at, const Wide<T>* slopes, const T* q, const T* k,
              const T* v, const B* bias, const P* before, const L* before_logsumexp, O* out,
              S* logsumexp, double scale, double cap) {
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
  W most[MICRO], total[MICRO], sums[MICRO][COLUMNS] = {};
  for (int i = 0; i < MICRO; i++) {
    most[i] = lowest<W>();
    total[i] = 0;
  }
  i64 begin, end;
  keys_seen(shape, start, start + queries.count, TILE, &begin, &end);
  for (i64 key = begin; key < end; key += TILE) {
    W scores[MICRO][MICRO] = {};
    Rows<T> keys = key_rows(shape, k, head, key, TILE, shape.head_dim);
    add_products(queries, keys, staged, scores);
    for (int i = 0; i < MICRO; i++) {
      i64 query = start + tile_row() * MICRO + i;
      W largest = most[i];
      for (int j = 0; j < MICRO; j++) {
        scores[i][j] = score_of(shape, head, slope, bias, scaling, scores[i][j], query,
                                key + tile_column() + SIDE * j);
        largest = larger(largest, scores[i][j]);
      }
      largest = row_reduce<Larger>(largest);
      W base = largest == lowest<W>() ? (W)0 : largest;
      W kept = exp_of(most[i] - base);
      most[i] = largest;
      total[i] *= kept;
      for (int j = 0; j < COLUMNS; j++) sums[i][j] *= kept;
      for (int j = 0; j < MICRO; j++) {
        scores[i][j] = exp_of(scores[i][j] - base);
        total[i] += scores[i][j];
      }
    }
    share_tile(scores, weights);
    add_mixed(weights, key_rows(shape, v, head, key, TILE, shape.value_dim), staged, sums);
  }
  for (int i = 0; i < MICRO; i++) {
    W sum = row_reduce<Add>(total[i]);
    i64 query = start + tile_row() * MICRO + i;
    if (query >= shape.queries) continue;  // alike for the threads that share a row
    i64 statistic = query_at(shape, head, query, 1), row = statistic * shape.value_dim;
    Joined<W> joined = Has<P>::value
                           ? join(most[i], sum, value_at<W>(before_logsumexp, statistic))
                           : alone(most[i], sum);
    for (int j = 0; j < COLUMNS; j++) {
      i64 column = tile_column() + SIDE * j;
      if (column >= shape.value_dim) break;
      W had = joined.others * value_at<W>(before, row + column);
      out[row + column] = narrow<O>(joined.mine * sums[i][j] + had);
    }
    if (tile_column() == 0) logsumexp[statistic] = narrow<S>(joined.logsumexp);
  }
}
