// Gradients of attention by the matrix units, in bf16 and f16; tiles as in attention_mma.cuh.
//
// With P = exp(scores - logsumexp) and delta = Σ_u dout · out per query: dv = Pᵀ dout,
// dS = P · (dout vᵀ - delta), dq = scale · dS k, dk = scale · dSᵀ q (Dao 2023, FlashAttention-2,
// algorithm 2). One kernel goes over tiles of keys for dk and dv, another over tiles of queries for
// dq, so that every output is added up by one block in one order. The scores and dout vᵀ are found
// in both: seven products where one kernel with atomics has five. Parts of dq per tile of keys,
// added up by a second pass, would be five too, but go through memory: of a tile of 64 keys, 8 bytes
// written and read for every 256 operations, which lasts longer than the two products.
#include "attention_mma.cuh"
#include "packs.cuh"

// What every query needs, per head and query ([heads, padded], `padded` a multiple of every tile of
// queries): `base`, its logsumexp as a power of two, and `delta`. Where it sees no key, and behind
// the last one, `base` is infinite: every probability is 0. One warp per query and head.
template <typename O, typename D>
__global__ void attention_statistics(const AttentionShape* shape_at, const O* out, const D* dout,
                                     const float* logsumexp, float* base, float* delta,
                                     i64 padded) {
  i64 number = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32;
  i64 heads = shape_at->groups * shape_at->repeats, queries = shape_at->queries;
  i64 columns = shape_at->value_dim, head = number % heads, query = number / heads % padded;
  i64 sample = number / heads / padded;
  if (sample >= shape_at->samples) return;
  i64 at = (sample * heads + head) * padded + query;
  int lane = threadIdx.x % 32;
  if (query >= queries) {
    if (lane == 0) {
      base[at] = -lowest<float>();
      delta[at] = 0;
    }
    return;
  }
  i64 row = (sample * queries + query) * heads + head;
  float sum = 0;
  for (i64 column = 4 * lane; column < columns; column += 4 * 32) {
    Pack<O, 4> x = *(const Pack<O, 4>*)(out + row * columns + column);
    Pack<D, 4> y = *(const Pack<D, 4>*)(dout + row * columns + column);
    for (int i = 0; i < 4; i++) sum += wide(x.of[i]) * wide(y.of[i]);
  }
  sum = warp_reduce<Add>(sum);
  if (lane == 0) {
    float total = logsumexp[row];
    base[at] = total == lowest<float>() ? -total : total * LOG2_E;
    delta[at] = sum;
  }
}

// dq, one block per head and tile of queries; `before` is added (none: nothing is).
template <typename T, typename Q, typename P, int D, int U, int M, int KEYS>
__global__ void __launch_bounds__(MMA_THREADS)
    attention_mma_grad_query(const AttentionShape* shape_at, const T* q, const T* k, const T* v,
                             const T* dout, const float* base, const float* delta, i64 padded,
                             const P* before, Q* dq, double scale) {
  const int STRIDE = Widths<D, U>::STRIDE, OF_WARP = 16 * M, QUERIES = MMA_WARPS * OF_WARP;
  DYNAMIC_SHARED(memory);
  T* queries = (T*)memory;
  T* douts = queries + QUERIES * STRIDE;
  T* tiles_of_keys = douts + QUERIES * STRIDE;  // keys and values, twice
  const AttentionShape& shape = *shape_at;
  Head head = query_head<QUERIES>(shape);
  i64 start = query_tile<QUERIES>(shape);
  int row = threadIdx.x / 32 * OF_WARP;
  float bases[M][2], deltas[M][2], sums[M][D / 8][4] = {};
  i64 of_head = (head.sample * shape.groups + head.group) * shape.repeats + head.repeat;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      i64 at = of_head * padded + start + row + 16 * m + lane_row() + 8 * half;
      bases[m][half] = base[at];
      deltas[m][half] = delta[at];
    }
  }
  i64 begin, end;
  keys_seen(shape, start, smaller(start + QUERIES, shape.queries), KEYS, &begin, &end);
  int span = (int)larger((i64)0, end - begin);
  Stream<T> of_keys = key_stream(shape, k, head, begin, shape.head_dim);
  Stream<T> of_values = key_stream(shape, v, head, begin, shape.value_dim);
  Seen seen = seen_in(shape, start, begin);
  float scale2 = (float)scale * LOG2_E;
  if (span) {
    int count = (int)smaller((i64)QUERIES, shape.queries - start);
    Stream<T> of_queries = query_stream(shape, q, head, start, shape.head_dim);
    Stream<T> of_douts = query_stream(shape, dout, head, start, shape.value_dim);
    stage_rows<QUERIES, D, STRIDE>(of_queries, 0, count, queries);
    stage_rows<QUERIES, U, STRIDE>(of_douts, 0, count, douts);
    stage_rows<KEYS, D, STRIDE>(of_keys, 0, seen.count, tiles_of_keys);
    stage_rows<KEYS, U, STRIDE>(of_values, 0, seen.count, tiles_of_keys + KEYS * STRIDE);
    commit();
  }
  T* keys = tiles_of_keys;
#pragma unroll 1
  for (int key = 0; key < span; key += KEYS) {
    T* later = tiles_of_keys + (keys == tiles_of_keys ? 2 * KEYS * STRIDE : 0);
    wait<0>();
    __syncthreads();  // these keys are here, and those before have been read
    int next = key + KEYS;
    if (next < span) {
      stage_rows<KEYS, D, STRIDE>(of_keys, next, seen.count - next, later);
      stage_rows<KEYS, U, STRIDE>(of_values, next, seen.count - next, later + KEYS * STRIDE);
    }
    commit();
    float scores[M][KEYS / 8][4] = {}, slants[M][KEYS / 8][4] = {};
    multiply_rows<D, STRIDE>(queries + row * STRIDE, keys, scores);
    multiply_rows<U, STRIDE>(douts + row * STRIDE, keys + KEYS * STRIDE, slants);
    hide<false>(seen.at(0, key), row, scores);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int at = 0; at < 4; at++) {
          float weight = exp2_of(scores[m][n][at] * scale2 - bases[m][at / 2]);
          slants[m][n][at] = weight * (slants[m][n][at] - deltas[m][at / 2]);
        }
      }
    }
    unsigned packed[M][KEYS / 16][4];
    pack_tile<T>(slants, packed);
    multiply_packed<STRIDE, D / 8>(packed, keys, sums);
    keys = later;
  }
  head = query_head<QUERIES>(shape);
  start = query_tile<QUERIES>(shape);
  float ones[M][2];
#pragma unroll
  for (int m = 0; m < M; m++) {
    ones[m][0] = ones[m][1] = 1;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
      for (int at = 0; at < 4; at++) sums[m][n][at] *= (float)scale;
    }
  }
  add_before<D / 8>(sums, ones, query_target(shape, before, head, start + row, shape.head_dim));
  Target<Q> to = query_target(shape, dq, head, start + row, shape.head_dim);
  write_rows<D / 8, STRIDE>(sums, queries + row * STRIDE, to);
}

// dk and dv, one block per group of heads and tile of keys: over the heads of the group in order,
// and for each over the queries that see the tile. Rows of a tile are keys here. Two warps share
// rows, so that each holds one output: the first finds the scores, hands their probabilities on
// through shared memory and adds up dv, the second finds dout vᵀ and adds up dk; both multiply
// twice.
template <typename T, typename K, int D, int U, int M, int QUERIES>
__global__ void __launch_bounds__(MMA_THREADS)
    attention_mma_grad_keys(const AttentionShape* shape_at, const T* q, const T* k, const T* v,
                            const T* dout, const float* base, const float* delta, i64 padded,
                            K* dk, K* dv, double scale) {
  const int STRIDE = Widths<D, U>::STRIDE, OF_PAIR = 16 * M, PAIRS = MMA_WARPS / 2;
  const int KEYS = PAIRS * OF_PAIR, PACKED = M * (QUERIES / 16) * 4;  // registers of a tile
  DYNAMIC_SHARED(memory);
  T* keys = (T*)memory;
  T* values = keys + KEYS * STRIDE;
  T* tiles_of_queries = values + KEYS * STRIDE;  // queries and douts, twice
  float* statistics = (float*)(tiles_of_queries + 4 * QUERIES * STRIDE);  // base and delta, twice
  unsigned* handed = (unsigned*)(statistics + 4 * QUERIES);
  const AttentionShape& shape = *shape_at;
  Head head = key_head<KEYS>(shape);
  i64 start = key_tile<KEYS>(shape);
  int warp = threadIdx.x / 32, pair = warp % PAIRS, row = pair * OF_PAIR;
  bool of_keys = warp >= PAIRS;
  handed += pair * PACKED * 32 + threadIdx.x % 32;
  i64 begin, end;
  queries_seeing(shape, start, smaller(start + KEYS, shape.keys), QUERIES, &begin, &end);
  // rows and statistics of the first head of the group, from the first query on
  Stream<T> of_queries = query_stream(shape, q, head, begin, shape.head_dim);
  Stream<T> of_douts = query_stream(shape, dout, head, begin, shape.value_dim);
  i64 of_head = (head.sample * shape.groups + head.group) * shape.repeats;
  i64 first_statistic = of_head * padded + begin;
  int there = (int)(shape.queries - begin), repeats = (int)shape.repeats;
  int span = (int)larger((i64)0, end - begin);
  Seen seen = seen_in(shape, begin, start);
  if (span) {
    int count = seen.count;
    Stream<T> of_rows = key_stream(shape, k, head, start, shape.head_dim);
    stage_rows<KEYS, D, STRIDE>(of_rows, 0, count, keys);
    of_rows = key_stream(shape, v, head, start, shape.value_dim);
    stage_rows<KEYS, U, STRIDE>(of_rows, 0, count, values);
  }
  float scale2 = (float)scale * LOG2_E;
  const int WIDTH = Widths<D, U>::WIDTH;
  float sums[M][WIDTH / 8][4] = {};
  // the tile that is staged next, and the one that is worked on: a query's place and its head's
  int next = 0, repeat = span ? 0 : repeats, query = 0;
  bool first = true, odd = false;
#pragma unroll 1
  while (true) {
    wait<0>();
    __syncthreads();  // these queries are here, and all of those before has been read
    bool last = repeat == repeats;
    int here = query;
    if (!last) {
      T* to = tiles_of_queries + odd * 2 * QUERIES * STRIDE;
      Stream<T> of_head_queries = of_queries, of_head_douts = of_douts;
      of_head_queries.begin += (i64)repeat * of_queries.columns;
      of_head_douts.begin += (i64)repeat * of_douts.columns;
      stage_rows<QUERIES, D, STRIDE>(of_head_queries, next, there - next, to);
      stage_rows<QUERIES, U, STRIDE>(of_head_douts, next, there - next, to + QUERIES * STRIDE);
      if (threadIdx.x < QUERIES / 2) {  // 16 bytes each
        bool of_delta = threadIdx.x >= QUERIES / 4;
        i64 from = first_statistic + repeat * padded + next + threadIdx.x % (QUERIES / 4) * 4;
        copy_async_16(statistics + odd * 2 * QUERIES + threadIdx.x * 4,
                      (of_delta ? delta : base) + from);
      }
      query = next;
      next += QUERIES;
      if (next >= span) {
        next = 0;
        repeat++;
      }
    }
    commit();
    odd = !odd;
    if (first) {
      if (last) break;
      first = false;
      continue;
    }
    const T* queries = tiles_of_queries + odd * 2 * QUERIES * STRIDE;
    const T* douts = queries + QUERIES * STRIDE;
    const float* statistic = statistics + (odd * 2 + of_keys) * QUERIES + lane_pair();
    float tile[M][QUERIES / 8][4] = {};
    unsigned packed[M][QUERIES / 16][4];
    if (D == U) {
      const T* left = (of_keys ? values : keys) + row * STRIDE;
      multiply_rows<D, STRIDE>(left, of_keys ? douts : queries, tile);
    } else if (of_keys) {
      multiply_rows<U, STRIDE>(values + row * STRIDE, douts, tile);
    } else {
      multiply_rows<D, STRIDE>(keys + row * STRIDE, queries, tile);
    }
    if (!of_keys) {
      hide<true>(seen.at(here, 0), row, tile);
#pragma unroll
      for (int n = 0; n < QUERIES / 8; n++) {
        FloatPair bases = *(const FloatPair*)(statistic + 8 * n);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
          for (int at = 0; at < 4; at++) {
            float mine = at % 2 ? bases.second : bases.first;
            tile[m][n][at] = exp2_of(tile[m][n][at] * scale2 - mine);
          }
        }
      }
      pack_tile<T>(tile, packed);
#pragma unroll
      for (int at = 0; at < PACKED; at++) {
        handed[32 * at] = packed[at / 4 / (QUERIES / 16)][at / 4 % (QUERIES / 16)][at % 4];
      }
    }
    __syncthreads();  // the probabilities are there
    if (of_keys) {
#pragma unroll
      for (int n = 0; n < QUERIES / 8; n++) {
        FloatPair deltas = *(const FloatPair*)(statistic + 8 * n);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
          for (int half = 0; half < 2; half++) {
            // as `pack_left` puts them
            int at = (m * (QUERIES / 16) + n / 2) * 4 + n % 2 * 2 + half;
            unsigned weights = handed[32 * at];
            T first = {(unsigned short)weights}, second = {(unsigned short)(weights >> 16)};
            float* slants = tile[m][n] + 2 * half;
            slants[0] = wide(first) * (slants[0] - deltas.first);
            slants[1] = wide(second) * (slants[1] - deltas.second);
          }
        }
      }
      pack_tile<T>(tile, packed);
    }
    if (D == U) {
      multiply_packed<STRIDE, D / 8>(packed, of_keys ? queries : douts, sums);
    } else if (of_keys) {
      multiply_packed<STRIDE, D / 8>(packed, queries, sums);
    } else {
      multiply_packed<STRIDE, U / 8>(packed, douts, sums);
    }
    if (last) break;
  }
  head = key_head<KEYS>(shape);
  start = key_tile<KEYS>(shape);
  if (of_keys) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int at = 0; at < 4; at++) sums[m][n][at] *= (float)scale;
      }
    }
    Target<K> to = key_target(shape, dk, head, start + row, shape.head_dim);
    write_rows<D / 8, STRIDE>(sums, values + row * STRIDE, to);
  } else {
    Target<K> to = key_target(shape, dv, head, start + row, shape.value_dim);
    write_rows<U / 8, STRIDE>(sums, keys + row * STRIDE, to);
  }
}
