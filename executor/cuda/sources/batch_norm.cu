// Batch norm by the statistics of a whole microbatch: arrays [outer, channels, inner].
//
// Sums of a channel go over slabs of its points, then over the slabs in their order. `points` are
// those of the whole microbatch, of which an array may be a shard.
#include "reduce.cuh"

// What is added up of a channel's point: COUNT values of x, and where they ask for it of dy and of
// the channel's mean. What they do not ask for is not read.
struct Value {
  static const int COUNT = 1;
  static const bool SLOPE = false, MEAN = false;
  template <typename W> __device__ static void add(W* sums, W x, W, W) { sums[0] += x; }
};
struct SquaredDistance {
  static const int COUNT = 1;
  static const bool SLOPE = false, MEAN = true;
  template <typename W> __device__ static void add(W* sums, W x, W, W mean) {
    sums[0] += (x - mean) * (x - mean);
  }
};
struct Slopes {  // of gamma, but for its rstd, and of beta
  static const int COUNT = 2;
  static const bool SLOPE = true, MEAN = true;
  template <typename W> __device__ static void add(W* sums, W x, W dy, W mean) {
    sums[0] += (x - mean) * dy;
    sums[1] += dy;
  }
};

// partial [slab, value, channel]: one block per channel and slab of `slab_points` points.
template <typename Terms, typename T, typename S>
__global__ void sums_along(const T* x, const T* dy, const S* totals, Wide<S>* partial,
                           double points, i64 outer, i64 channels, i64 inner, i64 slab_points) {
  typedef Wide<S> W;
  i64 channel = blockIdx.x % channels, slab = blockIdx.x / channels;
  i64 begin = slab * slab_points, end = smaller(begin + slab_points, outer * inner);
  W mean = Terms::MEAN ? (W)wide(totals[channel]) / (W)points : (W)0;
  W sums[Terms::COUNT] = {};
  // (row, within) of a point is carried along: its division is dear beside one addition
  i64 row = (begin + threadIdx.x) / inner, within = (begin + threadIdx.x) % inner;
  i64 rows = blockDim.x / inner, rest = blockDim.x % inner;
  for (i64 at = begin + threadIdx.x; at < end; at += blockDim.x) {
    i64 from = (row * channels + channel) * inner + within;
    Terms::add(sums, (W)wide(x[from]), Terms::SLOPE ? (W)wide(dy[from]) : (W)0, mean);
    row += rows;
    within += rest;
    if (within >= inner) {
      within -= inner;
      row++;
    }
  }
  for (int value = 0; value < Terms::COUNT; value++) {
    W sum = block_sum(sums[value]);
    if (threadIdx.x == 0) partial[(slab * Terms::COUNT + value) * channels + channel] = sum;
  }
}

// The same where a row of a channel is short: a block has 32 channels side by side, and each of
// its eight warps every eighth row of the slab of `slab_rows` rows.
template <typename Terms, typename T, typename S>
__global__ void sums_across(const T* x, const T* dy, const S* totals, Wide<S>* partial,
                            double points, i64 outer, i64 channels, i64 inner, i64 slab_rows) {
  typedef Wide<S> W;
  __shared__ W of_warps[8][32];
  i64 tiles = (channels + 31) / 32;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 channel = blockIdx.x % tiles * 32 + lane, slab = blockIdx.x / tiles;
  i64 end = smaller((slab + 1) * slab_rows, outer);
  W sums[Terms::COUNT] = {};
  if (channel < channels) {
    W mean = Terms::MEAN ? (W)wide(totals[channel]) / (W)points : (W)0;
    for (i64 row = slab * slab_rows + warp; row < end; row += 8) {
      i64 from = (row * channels + channel) * inner;
      for (i64 at = from; at < from + inner; at++) {
        Terms::add(sums, (W)wide(x[at]), Terms::SLOPE ? (W)wide(dy[at]) : (W)0, mean);
      }
    }
  }
  for (int value = 0; value < Terms::COUNT; value++) {
    __syncthreads();
    of_warps[warp][lane] = sums[value];
    __syncthreads();
    if (warp == 0 && channel < channels) {
      W sum = of_warps[0][lane];
      for (int other = 1; other < 8; other++) sum += of_warps[other][lane];
      partial[(slab * Terms::COUNT + value) * channels + channel] = sum;
    }
  }
}

// total [channel] = the sum of value `value` over the slabs.
template <typename W>
__device__ inline W of_slabs(const W* partial, i64 slabs, int values, int value, i64 channels,
                             i64 channel) {
  W sum = 0;
  for (i64 slab = 0; slab < slabs; slab++) {
    sum += partial[(slab * values + value) * channels + channel];
  }
  return sum;
}

template <typename S>
__global__ void join_sums(const Wide<S>* partial, S* totals, i64 slabs, i64 channels) {
  for (i64 channel = first_element(); channel < channels; channel += element_stride()) {
    totals[channel] = narrow<S>(of_slabs(partial, slabs, 1, 0, channels, channel));
  }
}

template <typename S> __device__ inline Wide<S> rstd_of(S squares, double points, double epsilon) {
  typedef Wide<S> W;
  return (W)1 / sqrt_of((W)wide(squares) / (W)points + (W)epsilon);
}

// dgamma and dbeta of the sums of `Slopes`.
template <typename S, typename D>
__global__ void join_slopes(const Wide<S>* partial, const S* squares, D* dgamma, D* dbeta,
                            double points, double epsilon, i64 slabs, i64 channels) {
  typedef Wide<S> W;
  for (i64 channel = first_element(); channel < channels; channel += element_stride()) {
    W along = of_slabs(partial, slabs, 2, 0, channels, channel);
    dgamma[channel] = narrow<D>(along * rstd_of(squares[channel], points, epsilon));
    dbeta[channel] = narrow<D>(of_slabs(partial, slabs, 2, 1, channels, channel));
  }
}

// factors [channel]: (mean, factor, shift) for y = (x - mean) · factor + shift.
template <typename S, typename G>
__global__ void forward_factors(const S* sums, const S* squares, const G* gamma, const G* beta,
                                Wide<S>* factors, double points, double epsilon, i64 channels) {
  typedef Wide<S> W;
  for (i64 channel = first_element(); channel < channels; channel += element_stride()) {
    W* to = factors + 3 * channel;
    to[0] = (W)wide(sums[channel]) / (W)points;
    to[1] = rstd_of(squares[channel], points, epsilon) * (W)wide(gamma[channel]);
    to[2] = (W)wide(beta[channel]);
  }
}

template <typename T, typename S>
__global__ void batch_norm(const T* x, const Wide<S>* factors, T* y, i64 channels, i64 inner,
                           i64 count) {
  typedef Wide<S> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    const W* of = factors + 3 * (at / inner % channels);
    y[at] = narrow<T>(((W)wide(x[at]) - of[0]) * of[1] + of[2]);
  }
}

// factors [channel]: (mean, factor, along, average) for
// dx = (dy - (x - mean) · along - average) · factor.
template <typename S, typename G, typename D>
__global__ void backward_factors(const S* sums, const S* squares, const G* gamma, const D* dgamma,
                                 const D* dbeta, Wide<S>* factors, double points, double epsilon,
                                 i64 channels) {
  typedef Wide<S> W;
  for (i64 channel = first_element(); channel < channels; channel += element_stride()) {
    W* to = factors + 4 * channel;
    W rstd = rstd_of(squares[channel], points, epsilon);
    to[0] = (W)wide(sums[channel]) / (W)points;
    to[1] = rstd * (W)wide(gamma[channel]);
    to[2] = rstd * (W)wide(dgamma[channel]) / (W)points;
    to[3] = (W)wide(dbeta[channel]) / (W)points;
  }
}

template <typename T, typename S>
__global__ void batch_norm_grad_input(const T* dy, const T* x, const Wide<S>* factors, T* dx,
                                      i64 channels, i64 inner, i64 count) {
  typedef Wide<S> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    const W* of = factors + 4 * (at / inner % channels);
    W change = (W)wide(dy[at]) - ((W)wide(x[at]) - of[0]) * of[2] - of[3];
    dx[at] = narrow<T>(change * of[1]);
  }
}
