// Cross-entropy of logits against target ids, whole or with the vocabulary split over ranks.
//
// Logits are T, target ids I, what is kept of a row S. A target below 0 is no target: its loss and
// gradient are 0. R rows, V logits of a row here, of which the first is logit `first` of all; rows of
// logits begin `pitch` elements apart.
#include "control.cuh"
#include "online.cuh"
#include "rows.cuh"

// Loss and logsumexp of every row of (logits, targets); NaN where there is no such logit.
template <typename T, typename I, typename S>
__global__ void cross_entropy(const T* logits, const I* targets, S* loss, S* logsumexp, i64 pitch,
                              i64 rows, i64 columns) {
  typedef Wide<S> W;
  const int N = Cut<T>::N, MANY = 4;
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Cut<T> row(number, columns, pitch);
    const T* from = logits + row.start;
    Online<W> found;
    Pack<T, N> packs[MANY];
    row.template each<MANY>(
        [&](int i, int at) { packs[i] = *(const Pack<T, N>*)(from + at); },
        [&](int i, int) {
          W here[N];
#pragma unroll
          for (int k = 0; k < N; k++) here[k] = (W)wide(packs[i].of[k]);
          found.add(here);
        });
    if (row.edge() >= 0) {
      W here[1] = {(W)wide(from[row.edge()])};
      found.add(here);
    }
    found.join();
    if (threadIdx.x == 0) {
      i64 target = wide(targets[number]);
      W sum = log_of(found.sum) + found.largest;
      W lost = 0;
      if (target >= columns) lost = lowest<W>() - lowest<W>();
      else if (target >= 0) lost = sum - (W)wide(from[target]);
      loss[number] = narrow<S>(lost);
      logsumexp[number] = narrow<S>(sum);
    }
  }
}

// exp(logit - logsumexp), less one at the target; times the loss scale where `scaled`.
template <typename T, typename I, typename S>
__global__ void cross_entropy_grad(const T* logits, const I* targets, const S* logsumexp, T* slopes,
                                   const Control* control, int scaled, i64 first, i64 pitch,
                                   i64 rows, i64 columns) {
  typedef Wide<S> W;
  const int N = Cut<T>::N, MANY = 2;
  W scale = scaled ? (W)control->loss_scale : (W)1;
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Cut<T> row(number, columns, pitch);
    const T* from = logits + row.start;
    T* into = slopes + row.start;
    i64 target = wide(targets[number]);
    int place = (int)(target - first), edge = row.edge();
    W sum = wide(logsumexp[number]);
    bool counts = target >= 0;
    auto slope = [&](T logit, int at) {
      W found = (exp_of((W)wide(logit) - sum) - (W)(at == place)) * scale;
      return counts ? found : (W)0;
    };
    Pack<T, N> packs[MANY] = {};
    row.template each<MANY>(
        [&](int i, int at) {
          if (counts) packs[i] = *(const Pack<T, N>*)(from + at);
        },
        [&](int i, int at) {
          W made[N];
#pragma unroll
          for (int k = 0; k < N; k++) made[k] = slope(packs[i].of[k], at + k);
          put<N>(into + at, made);
        });
    if (edge >= 0) into[edge] = narrow<T>(slope(from[edge], edge));
  }
}

// The largest logit of every row, M as wide as the loss.
template <typename T, typename M>
__global__ void row_max(const T* logits, M* largest, i64 rows, i64 columns) {
  typedef Wide<T> W;
  W here[Row<T>::N];
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Row<T> row(number, columns);
    W found = lowest<W>();
    for (int at = row.first(); at < row.columns; at += row.stride()) {
      row.take_at(here, logits, at, lowest<W>());
      for (int k = 0; k < Row<T>::N; k++) found = larger(here[k], found);
    }
    found = block_max(found);
    if (threadIdx.x == 0) largest[number] = narrow<M>(found);
  }
}

// [sum of exp(logit - max), the target's logit or 0 where it is not here] of every row.
template <typename T, typename M, typename I, typename S>
__global__ void shifted_sums(const T* logits, const M* largest, const I* targets, S* sums,
                             i64 first, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W here[Row<T>::N];
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Row<T> row(number, columns);
    W shift = wide(largest[number]);
    W sum = 0;
    for (int at = row.first(); at < row.columns; at += row.stride()) {
      row.take_at(here, logits, at, lowest<W>());
      for (int k = 0; k < Row<T>::N; k++) sum += exp_below(here[k], shift);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
      i64 target = wide(targets[number]);
      i64 place = target - first;
      bool here_too = target >= 0 && place >= 0 && place < columns;
      sums[2 * number] = narrow<S>(sum);
      sums[2 * number + 1] = narrow<S>(here_too ? (W)wide(logits[row.start + place]) : (W)0);
    }
  }
}

// Loss and logsumexp of every row of (max, sums, targets).
template <typename T, typename I, typename S>
__global__ void loss_from_sums(const T* largest, const S* sums, const I* targets, S* loss,
                               S* logsumexp, i64 count) {
  typedef Wide<S> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    W sum = log_of(wide(sums[2 * at])) + (W)wide(largest[at]);
    W lost = wide(targets[at]) < 0 ? (W)0 : sum - wide(sums[2 * at + 1]);
    loss[at] = narrow<S>(lost);
    logsumexp[at] = narrow<S>(sum);
  }
}

const int COUNT_THREADS = 1024;  // of a block: `rows/loss.py` launches as many

// How many ids of this block's are not below 0, for every block.
template <typename I, typename D>
__global__ void __launch_bounds__(COUNT_THREADS, 1) count_valid(const I* targets, D* counts, i64 count) {
  i64 found = 0;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    found += wide(targets[at]) >= 0;
  }
  found = block_sum(found);
  if (threadIdx.x == 0) counts[blockIdx.x] = narrow<D>(found);
}

// The sum of the blocks' counts; one block.
template <typename D>
__global__ void __launch_bounds__(COUNT_THREADS, 1) add_counts(const i64* counts, D* sum, i64 count) {
  i64 found = 0;
  for (i64 at = threadIdx.x; at < count; at += blockDim.x) found += counts[at];
  found = block_sum(found);
  if (threadIdx.x == 0) *sum = narrow<D>(found);
}
