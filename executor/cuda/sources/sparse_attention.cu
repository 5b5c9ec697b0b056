// Sparse attention: keys chosen by an indexer, and attention to these, forward and backward.
//
// b samples, t queries here, s keys, h heads of queries that share a key, c keys chosen for a query,
// d head dim, u value dim; i heads and e features of the indexer: query [b t i e], weights [b t i],
// key [b s e]; q [b t h d], k [b s d], v [b s u], chosen [b t c] in the keys' order, -1 in front.
// Blocks take queries (or heads of these) in turns, and have scratch of their own in the workspace.
// Every output is added up by one block in one order.
#include "reduce.cuh"

const int SPARSE_THREADS = 256;
const int COLUMNS = 4;  // values that a thread holds of a row of dk or dv

__device__ inline u64 rank_of(float x) {
  unsigned bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 1u << 31;
}
__device__ inline u64 rank_of(double x) {
  u64 bits = *(u64*)&x;
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}

// How many threads before this one have the flag, and how many all have.
__device__ inline int before(int* marks, bool flag, int* all) {
  __syncthreads();  // what was there has been read
  marks[threadIdx.x] = flag;
  __syncthreads();
  int sum = 0, mine = 0;
  for (int at = 0; at < (int)blockDim.x; at++) {
    if (at == (int)threadIdx.x) mine = sum;
    sum += marks[at];
  }
  *all = sum;
  return mine;
}

// The places behind `behind` of the `count` best of `seen` scores, equals by the lower place.
template <typename W>
__device__ inline void choose_best(const W* scores, i64 seen, i64 count, int* marks, int* chosen,
                                   i64 behind) {
  u64 least = 0;  // rank of the last that is chosen, found bit by bit from the highest on
  for (int bit = 8 * sizeof(W) - 1; bit >= 0; bit--) {
    u64 with = least | 1ull << bit;
    int reach = 0;
    for (i64 key = threadIdx.x; key < seen; key += blockDim.x) reach += rank_of(scores[key]) >= with;
    if (block_sum(reach) >= count) least = with;
  }
  int above = 0;
  for (i64 key = threadIdx.x; key < seen; key += blockDim.x) above += rank_of(scores[key]) > least;
  i64 equals = count - block_sum(above), taken = 0;
  for (i64 base = 0; base < seen; base += blockDim.x) {
    i64 key = base + threadIdx.x;
    u64 rank = key < seen ? rank_of(scores[key]) : 0;
    int all;
    bool equal = key < seen && rank == least;
    bool take = key < seen && rank > least;
    take = (before(marks, equal, &all) < equals && equal) || take;
    equals -= all < equals ? all : equals;
    int place = before(marks, take, &all);
    if (take) chosen[taken + place] = (int)(behind + key);
    taken += all;
  }
}

// Places that follow from where a query is: -1 in front, the window's, and, where they are not more
// than `room`, those of all keys that it sees, which lie behind `behind`. Returns how many these are.
__device__ inline i64 place_seen(int* places, i64 at_token, i64 count, i64 keys, i64 window,
                                 i64 stride, i64 behind) {
  i64 room = count - window, near = smaller(window, at_token + 1);
  i64 seen = smaller(keys, (at_token + 1) / stride);
  i64 lacking = count - near - smaller(room, seen);
  for (i64 at = threadIdx.x; at < lacking + near; at += blockDim.x) {
    places[at] = at < lacking ? -1 : (int)(at_token + 1 - near + at - lacking);
  }
  for (i64 at = threadIdx.x; at < seen && seen <= room; at += blockDim.x) {
    places[lacking + near + at] = (int)(behind + at);
  }
  return seen;
}

__global__ void seen_keys(int* chosen, i64 rows, i64 queries, i64 count, i64 first, i64 window,
                          i64 stride, i64 behind) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    place_seen(chosen + row * count, first + row % queries, count, count - window, window, stride,
               behind);
  }
}

template <typename T>
__global__ void choose_keys(const T* query, const T* weights, const T* key, Wide<T>* scratch,
                            int* chosen, i64 rows, i64 queries, i64 keys, i64 heads, i64 features,
                            i64 count, i64 first, i64 window, i64 stride, i64 behind) {
  typedef Wide<T> W;
  __shared__ int marks[SPARSE_THREADS];
  W* scores = scratch + blockIdx.x * keys;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    int* places = chosen + row * count;
    i64 room = count - window;
    i64 seen = place_seen(places, first + row % queries, count, keys, window, stride, behind);
    if (seen <= room) continue;  // alike for all threads
    for (i64 at = threadIdx.x; at < seen; at += blockDim.x) {
      const T* other = key + (row / queries * keys + at) * features;
      W sum = 0;
      for (i64 head = 0; head < heads; head++) {
        const T* mine = query + (row * heads + head) * features;
        W product = 0;
        for (i64 e = 0; e < features; e++) product += (W)wide(mine[e]) * (W)wide(other[e]);
        sum += (W)wide(weights[row * heads + head]) * larger(product, (W)0);
      }
      scores[at] = sum;
    }
    __syncthreads();
    choose_best(scores, seen, room, marks, places + window, behind);
    __syncthreads();  // the scores have been read
  }
}

// The sum of products of two rows, by one warp.
template <typename W, typename A, typename B>
__device__ inline W product_of(const A* a, const B* b, i64 columns) {
  W sum = 0;
  for (i64 at = threadIdx.x % 32; at < columns; at += 32) sum += (W)wide(a[at]) * (W)wide(b[at]);
  return warp_reduce<Add>(sum);
}

// out[column] = factor Σ over chosen keys of weights · rows [s, columns].
template <typename W, typename T>
__device__ inline void mix(const W* weights, const int* places, i64 count, const T* rows,
                           i64 columns, W factor, T* out) {
  for (i64 column = threadIdx.x; column < columns; column += blockDim.x) {
    W sum = 0;
    for (i64 at = 0; at < count; at++) {
      if (places[at] >= 0) sum += weights[at] * (W)wide(rows[places[at] * columns + column]);
    }
    out[column] = narrow<T>(factor * sum);
  }
}

template <typename T, typename S>
__global__ void sparse_attention(const T* q, const T* k, const T* v, const int* chosen,
                                 Wide<T>* scratch, T* out, S* logsumexp, i64 items, i64 queries,
                                 i64 keys, i64 heads, i64 count, i64 head_dim, i64 value_dim,
                                 double scale) {
  typedef Wide<T> W;
  W* weights = scratch + blockIdx.x * count;
  int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    i64 row = item / heads, sample = row / queries;
    const int* places = chosen + row * count;
    W most = lowest<W>(), total = 0;
    for (i64 at = warp; at < count; at += warps) {
      if (places[at] < 0) continue;
      const T* key = k + (sample * keys + places[at]) * head_dim;
      W score = (W)scale * product_of<W>(q + item * head_dim, key, head_dim);
      most = larger(most, score);
      if (threadIdx.x % 32 == 0) weights[at] = score;
    }
    most = block_max(most);
    __syncthreads();
    for (i64 at = threadIdx.x; at < count; at += blockDim.x) {
      if (places[at] >= 0) total += weights[at] = exp_of(weights[at] - most);
    }
    total = block_sum(total);
    __syncthreads();
    mix(weights, places, count, v + sample * keys * value_dim, value_dim, (W)1 / total,
        out + item * value_dim);
    if (threadIdx.x == 0) logsumexp[item] = narrow<S>(most + log_of(total));
    __syncthreads();  // the weights have been read
  }
}

// dq, as forward: a block has a head of a query.
template <typename T, typename S>
__global__ void sparse_attention_grad_query(const T* q, const T* k, const T* v, const int* chosen,
                                            const T* out, const S* logsumexp, const T* dout,
                                            Wide<T>* scratch, T* dq, i64 items, i64 queries,
                                            i64 keys, i64 heads, i64 count, i64 head_dim,
                                            i64 value_dim, double scale) {
  typedef Wide<T> W;
  W* slants = scratch + blockIdx.x * count;
  int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    i64 row = item / heads, sample = row / queries;
    const int* places = chosen + row * count;
    const T* slope = dout + item * value_dim;
    W delta = product_of<W>(out + item * value_dim, slope, value_dim);
    for (i64 at = warp; at < count; at += warps) {
      if (places[at] < 0) continue;
      i64 place = sample * keys + places[at];
      W score = (W)scale * product_of<W>(q + item * head_dim, k + place * head_dim, head_dim);
      W slant = product_of<W>(slope, v + place * value_dim, value_dim) - delta;
      if (threadIdx.x % 32 == 0) slants[at] = slant * exp_of(score - (W)wide(logsumexp[item]));
    }
    __syncthreads();
    mix(slants, places, count, k + sample * keys * head_dim, head_dim, (W)scale,
        dq + item * head_dim);
    __syncthreads();  // the slants have been read
  }
}

// True if a key is among the places of a query, which are in order.
__device__ inline bool is_chosen(const int* places, i64 count, int key) {
  i64 low = 0, high = count;
  while (low < high) {
    i64 middle = (low + high) / 2;
    if (places[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low < count && places[low] == key;
}

// dk and dv: a block has a key, and goes through the queries that chose it, warp by warp over their
// heads.
template <typename T, typename S>
__global__ void sparse_attention_grad_keys(const T* q, const T* k, const T* v, const int* chosen,
                                           const T* out, const S* logsumexp, const T* dout, T* dk,
                                           T* dv, i64 all_keys, i64 queries, i64 keys, i64 heads,
                                           i64 count, i64 head_dim, i64 value_dim, double scale) {
  typedef Wide<T> W;
  __shared__ int hits[SPARSE_THREADS];
  __shared__ W weights[SPARSE_THREADS / 32], slants[SPARSE_THREADS / 32];
  int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (i64 key = blockIdx.x; key < all_keys; key += gridDim.x) {
    i64 sample = key / keys;
    W of_key[COLUMNS] = {}, of_value[COLUMNS] = {};
    for (i64 base = 0; base < queries; base += blockDim.x) {
      i64 mine = sample * queries + base + threadIdx.x;
      bool there = base + threadIdx.x < queries;
      __syncthreads();  // the hits before have been read
      hits[threadIdx.x] = there && is_chosen(chosen + mine * count, count, (int)(key % keys));
      __syncthreads();
      for (int hit = 0; hit < (int)blockDim.x; hit++) {
        if (!hits[hit]) continue;
        i64 first = (sample * queries + base + hit) * heads;
        for (i64 head = 0; head < heads; head += warps) {
          __syncthreads();  // the weights before have been read
          if (head + warp < heads) {
            i64 item = first + head + warp;
            const T* slope = dout + item * value_dim;
            W score = (W)scale * product_of<W>(q + item * head_dim, k + key * head_dim, head_dim);
            W slant = product_of<W>(slope, v + key * value_dim, value_dim) -
                      product_of<W>(slope, out + item * value_dim, value_dim);
            W weight = exp_of(score - (W)wide(logsumexp[item]));
            if (threadIdx.x % 32 == 0) {
              weights[warp] = weight;
              slants[warp] = weight * slant;
            }
          }
          __syncthreads();
          for (int other = 0; other < warps && head + other < heads; other++) {
            i64 item = first + head + other;
            for (int n = 0; n < COLUMNS; n++) {
              i64 column = threadIdx.x + n * (i64)blockDim.x;
              if (column < head_dim) {
                of_key[n] += slants[other] * (W)wide(q[item * head_dim + column]);
              }
              if (column < value_dim) {
                of_value[n] += weights[other] * (W)wide(dout[item * value_dim + column]);
              }
            }
          }
        }
      }
    }
    for (int n = 0; n < COLUMNS; n++) {
      i64 column = threadIdx.x + n * (i64)blockDim.x;
      if (column < head_dim) dk[key * head_dim + column] = narrow<T>((W)scale * of_key[n]);
      if (column < value_dim) dv[key * value_dim + column] = narrow<T>(of_value[n]);
    }
  }
}
