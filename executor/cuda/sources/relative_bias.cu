// T5's relative bias and its gradient: H heads, T queries here, S keys, M buckets of the distance
// key - query. Of the T + S - 1 distances, query t sees S, from number T - 1 - t on.
#include "reduce.cuh"

// bias [H, T, S] of a table [M, H], one block per (head, query).
template <typename T, typename O>
__global__ void relative_bias(const T* table, const int* buckets, O* bias, i64 heads, i64 queries,
                              i64 rows, i64 columns) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 head = row / queries;
    const int* seen = buckets + (queries - 1 - row % queries);
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      bias[row * columns + at] = narrow<O>(wide(table[seen[at] * heads + head]));
    }
  }
}

// The gradient added up by distance: sums [H, T + S - 1] of [H, T, S].
template <typename T>
__global__ void bias_by_distance(const T* gradient, Wide<T>* sums, i64 queries, i64 keys,
                                 i64 count) {
  i64 distances = queries + keys - 1;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    i64 head = at / distances, distance = at % distances;
    // key = distance - (T - 1 - query) is one of S
    i64 begin = larger((i64)0, queries - 1 - distance);
    i64 end = smaller(queries, queries - 1 - distance + keys);
    const T* from = gradient + head * queries * keys + distance - (queries - 1);
    Wide<T> sum = 0;
#pragma unroll 4
    for (i64 query = begin; query < end; query++) sum += wide(from[query * (keys + 1)]);
    sums[at] = sum;
  }
}

// The gradient [M, H] of the table, one block per (bucket, head).
template <typename W, typename O>
__global__ void bias_by_bucket(const W* sums, const int* buckets, O* table, i64 heads, i64 rows,
                               i64 columns) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 bucket = row / heads, head = row % heads;
    W sum = 0;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      if (buckets[at] == bucket) sum += sums[head * columns + at];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) table[row] = narrow<O>(sum);
  }
}
