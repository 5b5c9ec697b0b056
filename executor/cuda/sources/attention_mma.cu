// Attention forward by the matrix units, in bf16 and f16; sizes and tiles as in attention_mma.cuh.
//
// Notes: Dao 2023 (FlashAttention-2), algorithm 1: a block has a tile of queries, whose rows are
// divided among its warps, and goes through the keys that they see; sums are scaled once more at the
// end. Exponentials are powers of two of scores that `power`, which is scale · log2 e, brings there in
// the same instruction that takes the maximum off.
#include "attention_mma.cuh"

// From scores to weights, relative to the largest score of every row so far; where that has grown
// for some row of the warp, what was added up before is brought to it.
template <int M, int N, int TILES>
__device__ inline void weigh(float (&scores)[M][N][4], float power, float (&most)[M][2],
                             float (&total)[M][2], float (&sums)[M][TILES][4]) {
  float kept[M][2];
  bool grown = false;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float largest = most[m][half];
#pragma unroll
      for (int n = 0; n < N; n++) {
        largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      }
      largest = quad_largest(largest);
      float base = largest == lowest<float>() ? 0.0f : largest * power;
      kept[m][half] = exp2_of(most[m][half] * power - base);
      grown = grown || largest != most[m][half];
      most[m][half] = largest;
      float sum = total[m][half] * kept[m][half];
#pragma unroll
      for (int n = 0; n < N; n++) {
#pragma unroll
        for (int at = 2 * half; at < 2 * half + 2; at++) {
          scores[m][n][at] = exp2_of(scores[m][n][at] * power - base);
          sum += scores[m][n][at];
        }
      }
      total[m][half] = sum;
    }
  }
  if (!__any_sync(0xffffffffu, grown)) return;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
      for (int at = 0; at < 4; at++) sums[m][n][at] *= kept[m][at / 2];
    }
  }
}

// One block per head and tile of queries, the tiles that see most keys first. `before` and
// `before_logsumexp` are those of other keys (a round of a ring), or none.
template <typename T, typename O, typename P, typename L, int D, int U, int M, int KEYS>
__global__ void __launch_bounds__(MMA_THREADS)
    attention_mma(const AttentionShape* shape_at, const T* q, const T* k, const T* v,
                  const P* before, const L* before_logsumexp, O* out, float* logsumexp,
                  float scale, float power) {
  const int STRIDE = Widths<D, U>::STRIDE, OF_WARP = 16 * M, QUERIES = MMA_WARPS * OF_WARP;
  DYNAMIC_SHARED(memory);
  T* queries = (T*)memory;
  T* keys = queries + QUERIES * STRIDE;
  T* values = keys + KEYS * STRIDE;
  const AttentionShape& shape = *shape_at;
  i64 start = query_tile<QUERIES>(shape);
  int row = threadIdx.x / 32 * OF_WARP;
  T* mine = queries + row * STRIDE;
  float most[M][2], total[M][2], sums[M][Wholly<U>::TILES][4] = {};
#pragma unroll
  for (int m = 0; m < M; m++) {
    most[m][0] = most[m][1] = lowest<float>();
    total[m][0] = total[m][1] = 0;
  }
  i64 begin, end;
  keys_seen(shape, start, smaller(start + QUERIES, shape.queries), KEYS, &begin, &end);
  int span = (int)larger((i64)0, end - begin);
  Head head = query_head<QUERIES>(shape);
  Stream<D, const T> of_keys = key_stream<D>(shape, k, head, begin);
  Stream<U, const T> of_values = key_stream<U>(shape, v, head, begin);
  Seen seen = seen_in(shape, start, begin);
  if (span) {
    Stream<D, const T> of_queries = query_stream<D>(shape, q, head, start);
    stage_rows<QUERIES, STRIDE>(of_queries, 0, rows_left(shape.queries, start), queries);
    stage_rows<KEYS, STRIDE>(of_keys, 0, span, keys);
    commit();
  }
#pragma unroll 1
  for (int key = 0; key < span; key += KEYS) {
    wait<0>();
    __syncthreads();  // the keys are here, and the values before these have been read
    stage_rows<KEYS, STRIDE>(of_values, key, span - key, values);
    commit();
    float scores[M][KEYS / 8][4] = {};
    multiply_rows<Wholly<D>::WIDTH, STRIDE>(mine, keys, scores);
    wait<0>();
    __syncthreads();  // the values are here, and the keys have been read
    int next = key + KEYS;
    if (next < span) stage_rows<KEYS, STRIDE>(of_keys, next, span - next, keys);
    commit();
    hide<false>(seen.at(0, key), span - key, row, scores);
    weigh(scores, power, most, total, sums);
    unsigned weights[M][KEYS / 16][4];
    pack_tile<T>(scores, weights);
    multiply_packed<STRIDE, Wholly<U>::TILES>(weights, values, sums);
  }
  head = query_head<QUERIES>(shape);
  start = query_tile<QUERIES>(shape);
  float others[M][2];
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = quad_sum(total[m][half]), top = most[m][half] * scale;
      i64 query = start + row + 16 * m + lane_row() + 8 * half;
      i64 statistic = query_at(shape, head, smaller(query, shape.queries - 1), 1);
      Joined<float> joined = Has<P>::value
                                 ? join(top, sum, value_at<float>(before_logsumexp, statistic))
                                 : alone(top, sum);
      others[m][half] = joined.others;
#pragma unroll
      for (int n = 0; n < Wholly<U>::TILES; n++) {
        sums[m][n][2 * half] *= joined.mine;
        sums[m][n][2 * half + 1] *= joined.mine;
      }
      if (query < shape.queries && lane_pair() == 0) logsumexp[statistic] = joined.logsumexp;
    }
  }
  int count = rows_left(shape.queries, start + row);
  add_before(sums, others, query_stream<U>(shape, before, head, start + row), count);
  write_rows<STRIDE>(sums, mine, query_stream<U>(shape, out, head, start + row), count);
}
