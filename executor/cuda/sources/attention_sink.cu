// Sinks: a score more per head that no key has, joined to what attention made, and its gradient.
//
// Rows are queries of heads, [b t g r], of `columns` values each; a head has one sink.
#include "reduce.cuh"

// l' = log(exp l + exp k) and out' = exp(l - l') out; one warp per row.
template <typename O, typename L, typename K, typename Y, typename M>
__global__ void attention_sink(const O* out, const L* logsumexp, const K* sink, Y* y, M* total,
                               i64 heads, i64 rows, i64 columns) {
  typedef Wide<O> W;
  i64 row = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;
  W mine = (W)wide(logsumexp[row]), other = (W)wide(sink[row % heads]);
  W top = larger(mine, other);
  W both = top + log_of(exp_of(mine - top) + exp_of(other - top));
  W share = exp_of(mine - both);
  for (i64 at = row * columns + threadIdx.x % 32; at < (row + 1) * columns; at += 32) {
    y[at] = narrow<Y>(share * wide(out[at]));
  }
  if (threadIdx.x % 32 == 0) total[row] = narrow<M>(both);
}

// dsink = -Σ over rows of exp(k - l') Σ dout · out'; one block per head.
template <typename O, typename L, typename K, typename D, typename S>
__global__ void attention_sink_grad(const O* out, const L* logsumexp, const K* sink, const D* dout,
                                    S* dsink, i64 tokens, i64 columns) {
  typedef Wide<O> W;
  int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  W sum = 0, other = (W)wide(sink[blockIdx.x]);
  for (i64 token = threadIdx.x / 32; token < tokens; token += warps) {
    i64 row = token * gridDim.x + blockIdx.x;
    W along = 0;
    for (i64 at = row * columns + lane; at < (row + 1) * columns; at += 32) {
      along += (W)wide(out[at]) * (W)wide(dout[at]);
    }
    sum -= exp_of(other - (W)wide(logsumexp[row])) * warp_reduce<Add>(along);
  }
  sum = block_sum(lane == 0 ? sum : (W)0);
  if (threadIdx.x == 0) dsink[blockIdx.x] = narrow<S>(sum);
}
