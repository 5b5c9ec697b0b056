// Causal convolution of every channel along the tokens, and its gradients: x [B, T, C], w [C, K].
//
// Tap j of a filter meets the token K - 1 - j places before.
#include "slabs.cuh"

// FORWARD: y[t] = Σ w[j] x[t - (K - 1 - j)], else dx[t] = Σ w[j] dy[t + (K - 1 - j)].
template <typename T, typename F, typename O, bool FORWARD>
__global__ void causal_conv1d(const T* x, const F* filters, O* y, i64 tokens, i64 channels,
                              i64 taps, i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    i64 channel = at % channels, token = at / channels % tokens;
    i64 reach = FORWARD ? token : tokens - 1 - token, step = FORWARD ? -channels : channels;
    Wide<T> sum = 0;
    for (i64 distance = 0; distance < taps && distance <= reach; distance++) {
      sum += wide(filters[channel * taps + taps - 1 - distance]) * wide(x[at + distance * step]);
    }
    y[at] = narrow<O>(sum);
  }
}

// Sums of slabs of dw[j] = Σ dy[t] x[t - (K - 1 - j)], over the rows (samples and tokens); a column
// is a tap of a channel.
template <typename T, typename W>
__global__ void causal_conv1d_grad_weight(const T* x, const T* dy, i64 tokens, i64 channels,
                                          i64 taps, W* sums, i64 slab_rows, i64 rows,
                                          i64 columns) {
  i64 column = slab_column<1>();
  bool there = column < columns;
  i64 channel = column / taps, distance = taps - 1 - column % taps;
  W sum[1] = {0}, product = 0;
  each_slab_row<1>(
      slab_rows, rows,
      [&](int, i64 row) {
        i64 at = row * channels + channel;
        bool meets = there && row % tokens >= distance;
        product = meets ? (W)wide(dy[at]) * (W)wide(x[at - distance * channels]) : (W)0;
      },
      [&](int) { sum[0] += product; });
  slab_sum<1>(sum, sums + blockIdx.y * columns, columns);
}
