// Softmax over the last dim, its form for attention's scores, and their gradient: one block a row.
//
// x, y and their gradients are T. What is kept of a row is computed, never stored.
#include "online.cuh"
#include "rows.cuh"

// PACKS of a thread's are kept, so that a row is read once; 0: it is longer than that, and read again.
template <typename T, int PACKS>
__global__ void softmax(const T* x, T* y, i64 rows, i64 columns) {
  typedef Wide<T> W;
  W here[Row<T>::N];
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Row<T> row(number, columns);
    Kept<T, PACKS> kept;
    kept.fetch(row, x, lowest<W>());
    Online<W> found;
    kept.each(row, [&](int pack, int at) {
      kept.take(here, row, x, pack, at, lowest<W>());
      found.add(here);
    });
    found.join();
    W scale = (W)1 / found.sum;
    kept.each(row, [&](int pack, int at) {
      kept.take(here, row, x, pack, at, lowest<W>());
#pragma unroll
      for (int k = 0; k < Row<T>::N; k++) here[k] = exp_below(here[k], found.largest) * scale;
      row.put_at(y, at, here);
    });
  }
}

// dx = scale y (dy - sum(y dy)) of (y, dy).
template <typename T, int PACKS>
__global__ void softmax_grad(const T* y, const T* dy, T* dx, double scale, i64 rows, i64 columns) {
  typedef Wide<T> W;
  W here[Row<T>::N], slope[Row<T>::N];
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Row<T> row(number, columns);
    Kept<T, PACKS> values, slopes;
    values.fetch(row, y, (W)0);
    slopes.fetch(row, dy, (W)0);
    W along = 0;
    values.each(row, [&](int pack, int at) {
      values.take(here, row, y, pack, at, (W)0);
      slopes.take(slope, row, dy, pack, at, (W)0);
#pragma unroll
      for (int k = 0; k < Row<T>::N; k++) along += here[k] * slope[k];
    });
    along = block_sum(along);
    values.each(row, [&](int pack, int at) {
      values.take(here, row, y, pack, at, (W)0);
      slopes.take(slope, row, dy, pack, at, (W)0);
#pragma unroll
      for (int k = 0; k < Row<T>::N; k++) here[k] *= (slope[k] - along) * (W)scale;
      row.put_at(dx, at, here);
    });
  }
}

// The keys that a query sees: from `behind` before its own place to `ahead` after it.
struct Seen {
  int place, first, last;

  __device__ Seen(i64 query, i64 behind, i64 ahead, i64 keys)
      : place((int)query),
        first((int)larger(query - behind, (i64)0)),
        last((int)smaller(query + ahead + 1, keys)) {}
  __device__ bool has(int key) const { return key >= first && key < last; }
};

// Softmax over the keys seen of scale x - slope |query - key|; zeros where there are none. Rows are
// queries of heads of samples; a table holds the slope of every head; the first query's place is
// `offset`. A head's sink (none: there is none) is a score more, which no key has.
template <typename T, typename K>
__global__ void masked_softmax(const T* x, const K* sinks, const Wide<T>* slopes, T* y,
                               double scale, i64 offset, i64 behind, i64 ahead, i64 heads,
                               i64 queries, i64 rows, i64 keys) {
  typedef Wide<T> W;
  W here[Row<T>::N];
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Row<T> row(number, keys);
    Seen seen(offset + number % queries, behind, ahead, keys);
    W slope = slopes[number / queries % heads];
    auto score = [&](int at) {
      row.take_at(here, x, at, lowest<W>());
      for (int k = 0; k < Row<T>::N; k++) {
        W distance = abs_of((W)(at + k - seen.place));
        here[k] = seen.has(at + k) ? (W)scale * here[k] - slope * distance : lowest<W>();
      }
    };
    auto hidden = [&](int at) { return at >= seen.last || at + Row<T>::N <= seen.first; };
    Online<W> found;
    for (int at = row.first(); at < row.columns; at += row.stride()) {
      if (hidden(at)) continue;
      score(at);
      found.add(here);
    }
    found.join();
    if (Has<K>::value) {
      W sink = value_at<W>(sinks, number / queries % heads), top = larger(found.largest, sink);
      found.sum = found.sum * exp_of(found.largest - top) + exp_of(sink - top);
      found.largest = top;
    }
    // The largest term of a sum is one: only that of a query without keys is less.
    W part = (W)1 / (found.sum < 1 ? (W)1 : found.sum);
    for (int at = row.first(); at < row.columns; at += row.stride()) {
      if (hidden(at)) {
        for (int k = 0; k < Row<T>::N; k++) here[k] = 0;
      } else {
        score(at);
        for (int k = 0; k < Row<T>::N; k++) here[k] = exp_below(here[k], found.largest) * part;
      }
      row.put_at(y, at, here);
    }
  }
}

// dsink = -Σ over samples and queries of (1 - sum(y)) sum(y dy); one block per head.
template <typename T, typename K>
__global__ void masked_softmax_grad_sink(const T* y, const T* dy, K* dsink, i64 samples,
                                         i64 queries, i64 keys) {
  typedef Wide<T> W;
  int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  W sum = 0;
  for (i64 at = threadIdx.x / 32; at < samples * queries; at += warps) {
    i64 row = (at / queries * gridDim.x + blockIdx.x) * queries + at % queries;
    W total = 0, along = 0;
    for (i64 key = row * keys + lane; key < (row + 1) * keys; key += 32) {
      total += wide(y[key]);
      along += wide(y[key]) * wide(dy[key]);
    }
    sum += (warp_reduce<Add>(total) - 1) * warp_reduce<Add>(along);
  }
  sum = block_sum(lane == 0 ? sum : (W)0);
  if (threadIdx.x == 0) dsink[blockIdx.x] = narrow<K>(sum);
}
