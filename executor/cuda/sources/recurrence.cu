// Recurrences: the state-space scan and the delta rule, a token at a time, and their gradients.
//
// Of B samples, T tokens, G groups of R heads, N features of a key, P of a value. A warp has columns
// of a head's state S [N, P] in registers, ROWS of each in every lane: columns meet only in the
// gradients of what they share. Backward the states are made anew, a chunk at a time from the last
// one on; the forward pass leaves the state before every chunk.
#include "slabs.cuh"

// Operands of one head, and the places of a token's. BY_ROW: a decay for every row of the state;
// CORRECTS: the delta rule, which lays down along the key only what the state lacks.
template <typename T, typename D, int ROWS, bool BY_ROW, bool CORRECTS> struct Head {
  typedef Wide<T> W;
  const T *query, *key, *value;
  const D* decay;
  const T* beta;
  i64 tokens, repeats, keys, values;

  __device__ i64 place(i64 token) const {
    return (blockIdx.z * tokens + token) * gridDim.y + blockIdx.y;
  }
  __device__ i64 keyed(i64 token) const { return place(token) / repeats * keys; }
  __device__ int first_row() const { return threadIdx.x % 32 * ROWS; }

  template <typename X> __device__ void rows(W (&into)[ROWS], const X* from, W otherwise) const {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      into[i] = first_row() + i < keys ? (W)wide(from[first_row() + i]) : otherwise;
    }
  }
  // What the rows of a state are multiplied by.
  __device__ void rates(W (&into)[ROWS], i64 token) const {
    W all = BY_ROW ? (W)0 : exp_of((W)wide(decay[place(token)]));
    if (BY_ROW) rows(into, decay + place(token) * keys, (W)0);
#pragma unroll
    for (int i = 0; i < ROWS; i++) into[i] = BY_ROW ? exp_of(into[i]) : all;
  }
  __device__ W along(const W (&x)[ROWS], const W (&y)[ROWS]) const {
    W sum = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++) sum += x[i] * y[i];
    return warp_reduce<Add>(sum);
  }
  // What a column's value still lacks of the token's, before beta.
  __device__ W change(const W (&decayed)[ROWS], const W (&k)[ROWS], i64 token, i64 column) const {
    W given = wide(value[place(token) * values + column]);
    return CORRECTS ? given - along(k, decayed) : given;
  }
  __device__ W strength(i64 token) const {
    return CORRECTS ? (W)wide(beta[place(token)]) : (W)1;
  }
  __device__ void advance(W (&state)[ROWS], const W (&rate)[ROWS], const W (&k)[ROWS], i64 token,
                          i64 column) const {
#pragma unroll
    for (int i = 0; i < ROWS; i++) state[i] *= rate[i];
    W added = strength(token) * change(state, k, token, column);
#pragma unroll
    for (int i = 0; i < ROWS; i++) state[i] += k[i] * added;
  }
  __device__ void store(W* into, const W (&from)[ROWS]) const {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      if (first_row() + i < keys) into[first_row() + i] = from[i];
    }
  }
};

// One column of every warp; blocks are tiles of columns, heads and samples.
template <typename T, typename D, int ROWS, bool BY_ROW, bool CORRECTS>
__global__ void recurrence(const T* query, const T* key, const T* value, const D* decay,
                           const T* beta, T* y, i64 tokens, i64 repeats, i64 keys, i64 values) {
  typedef Wide<T> W;
  Head<T, D, ROWS, BY_ROW, CORRECTS> head{query, key, value, decay, beta, tokens, repeats, keys,
                                          values};
  i64 column = blockIdx.x * (i64)SLAB_WARPS + threadIdx.x / 32;
  if (column >= values) return;
  W state[ROWS] = {}, rate[ROWS], k[ROWS], q[ROWS];
  for (i64 token = 0; token < tokens; token++) {
    head.rates(rate, token);
    head.rows(k, key + head.keyed(token), (W)0);
    head.rows(q, query + head.keyed(token), (W)0);
    head.advance(state, rate, k, token, column);
    W sum = head.along(q, state);
    if (threadIdx.x % 32 == 0) y[head.place(token) * values + column] = narrow<T>(sum);
  }
}

// COLUMNS of every warp; dv is written, and what the columns of a tile and the heads of a group
// share is left in `shared`: of every tile dq and dk [B, T, G, R, N], then the decays' gradients
// and the betas' by head. `begins` and `states` hold the states before chunks, and within one.
template <typename T, typename D, int ROWS, bool BY_ROW, bool CORRECTS, int COLUMNS>
__global__ void recurrence_grad(const T* query, const T* key, const T* value, const D* decay,
                                const T* beta, const T* dy, T* dv, Wide<T>* shared,
                                Wide<T>* begins, Wide<T>* states, i64 tokens, i64 repeats,
                                i64 keys, i64 values, i64 chunk) {
  typedef Wide<T> W;
  Head<T, D, ROWS, BY_ROW, CORRECTS> head{query, key, value, decay, beta, tokens, repeats, keys,
                                          values};
  i64 first = (blockIdx.x * (i64)SLAB_WARPS + threadIdx.x / 32) * COLUMNS;
  i64 chunks = (tokens + chunk - 1) / chunk, size = keys * values;
  i64 number_of_head = blockIdx.z * (i64)gridDim.y + blockIdx.y;
  begins += number_of_head * chunks * size;
  states += number_of_head * chunk * size;
  i64 heads = gridDim.z * tokens * gridDim.y, rate_size = BY_ROW ? keys : 1;
  W* dq = shared + blockIdx.x * heads * (2 * keys + rate_size + 1);
  W *dk = dq + heads * keys, *drate = dk + heads * keys, *dbeta = drate + heads * rate_size;
  W state[COLUMNS][ROWS] = {}, slope[COLUMNS][ROWS] = {}, rate[ROWS], k[ROWS], q[ROWS];

  auto each = [&](auto work) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      if (first + c < values) work(c, first + c);
    }
  };
  for (i64 token = 0; token < (chunks - 1) * chunk; token++) {
    head.rates(rate, token);
    head.rows(k, key + head.keyed(token), (W)0);
    each([&](int c, i64 column) {
      if (token % chunk == 0) head.store(begins + token / chunk * size + column * keys, state[c]);
      head.advance(state[c], rate, k, token, column);
    });
  }
  each([&](int c, i64 column) {
    head.store(begins + (chunks - 1) * size + column * keys, state[c]);
  });
  for (i64 number = chunks - 1; number >= 0; number--) {
    i64 begin = number * chunk, end = smaller(begin + chunk, tokens);
    each([&](int c, i64 column) {
      head.rows(state[c], begins + number * size + column * keys, (W)0);
    });
    for (i64 token = begin; token < end; token++) {
      head.rates(rate, token);
      head.rows(k, key + head.keyed(token), (W)0);
      each([&](int c, i64 column) {
        head.store(states + (token - begin) * size + column * keys, state[c]);
        head.advance(state[c], rate, k, token, column);
      });
    }
    for (i64 token = end - 1; token >= begin; token--) {
      i64 place = head.place(token);
      head.rates(rate, token);
      head.rows(k, key + head.keyed(token), (W)0);
      head.rows(q, query + head.keyed(token), (W)0);
      W of_query[ROWS] = {}, of_key[ROWS] = {}, of_rate[ROWS] = {}, of_beta = 0;
      each([&](int c, i64 column) {
        W given = wide(dy[place * values + column]), before[ROWS], decayed[ROWS];
        head.rows(before, states + (token - begin) * size + column * keys, (W)0);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          of_query[i] += state[c][i] * given;
          slope[c][i] += q[i] * given;
          decayed[i] = rate[i] * before[i];
        }
        W back = head.along(k, slope[c]), lacks = head.change(decayed, k, token, column);
        W strength = head.strength(token), added = strength * lacks;
        of_beta += back * lacks;
        back *= strength;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          of_key[i] += slope[c][i] * added;
          if (CORRECTS) {
            of_key[i] -= decayed[i] * back;
            slope[c][i] -= k[i] * back;
          }
          of_rate[i] += slope[c][i] * decayed[i];
          slope[c][i] *= rate[i];
          state[c][i] = before[i];
        }
        if (threadIdx.x % 32 == 0) dv[place * values + column] = narrow<T>(back);
      });
      sum_of_warps(of_query, 0, keys, [&](i64 row, W sum) { dq[place * keys + row] = sum; });
      sum_of_warps(of_key, 0, keys, [&](i64 row, W sum) { dk[place * keys + row] = sum; });
      if (BY_ROW) {
        sum_of_warps(of_rate, 0, keys, [&](i64 row, W sum) { drate[place * keys + row] = sum; });
      } else {
        W sum = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) sum += of_rate[i];
        sum = block_sum(sum);
        if (threadIdx.x == 0) drate[place] = sum;
      }
      if (CORRECTS) {
        of_beta = block_sum(threadIdx.x % 32 == 0 ? of_beta : (W)0);
        if (threadIdx.x == 0) dbeta[place] = of_beta;
      }
    }
  }
}

// Sums over tiles, `stride` apart, and the heads of a group: out [groups, columns] of parts
// [tiles, groups, repeats, columns].
template <typename W, typename T>
__global__ void join_tiles(const W* parts, T* out, i64 tiles, i64 stride, i64 repeats, i64 columns,
                           i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    i64 group = at / columns, column = at % columns;
    W sum = 0;
    for (i64 tile = 0; tile < tiles; tile++) {
      const W* from = parts + tile * stride + group * repeats * columns + column;
      for (i64 head = 0; head < repeats; head++) sum += from[head * columns];
    }
    out[at] = narrow<T>(sum);
  }
}
