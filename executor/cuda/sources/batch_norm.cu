// Batch norm by the statistics of a whole microbatch: arrays [outer, channels, inner].
//
// Sums of a channel go over slabs of its points, then over the slabs in their order. `points` are
// those of the whole microbatch, of which an array may be a shard. Where channels come last (inner
// is 1) and fill pieces of 16 bytes, a thread keeps to the channels of one piece.
#include "packs.cuh"
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

// The same where channels come last: a block has `lanes` pieces of N channels side by side, at
// 256 / lanes rows at a time.
struct Lanes {
  i64 channel;  // first of this thread's
  int down, rows;
  bool there;
  __device__ Lanes(i64 tile, int lanes, int width, i64 channels) {
    channel = (tile * lanes + threadIdx.x % lanes) * width;
    down = threadIdx.x / lanes;
    rows = blockDim.x / lanes;
    there = down < rows && channel < channels;
  }
};

template <typename Terms, typename T, typename S, int N>
__global__ void __launch_bounds__(256, 3)
    sums_of_pieces(const T* x, const T* dy, const S* totals, Wide<S>* partial, double points,
                   i64 rows, i64 channels, int lanes, i64 slab_rows) {
  typedef Wide<S> W;
  __shared__ W of_threads[256 * N];
  i64 tiles = (channels / N + lanes - 1) / lanes;
  i64 tile = blockIdx.x % tiles, slab = blockIdx.x / tiles;
  Lanes mine(tile, lanes, N, channels);
  i64 end = smaller((slab + 1) * slab_rows, rows);
  W sums[N][Terms::COUNT] = {}, mean[N] = {};
  if (mine.there) {
    if (Terms::MEAN) {
#pragma unroll
      for (int k = 0; k < N; k++) mean[k] = (W)wide(totals[mine.channel + k]) / (W)points;
    }
#pragma unroll 4
    for (i64 row = slab * slab_rows + mine.down; row < end; row += mine.rows) {
      i64 at = row * channels + mine.channel;
      Pack<T, N> here = *(const Pack<T, N>*)(x + at), slope = here;
      if (Terms::SLOPE) slope = *(const Pack<T, N>*)(dy + at);
#pragma unroll
      for (int k = 0; k < N; k++) {
        Terms::add(sums[k], (W)wide(here.of[k]), (W)wide(slope.of[k]), mean[k]);
      }
    }
  }
#pragma unroll
  for (int value = 0; value < Terms::COUNT; value++) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) of_threads[threadIdx.x * N + k] = sums[k][value];
    __syncthreads();
    int width = lanes * N;
    i64 channel = tile * width + threadIdx.x;
    if (threadIdx.x < width && channel < channels) {
      W sum = of_threads[threadIdx.x];
      for (int row = 1; row < mine.rows; row++) sum += of_threads[row * width + threadIdx.x];
      partial[(slab * Terms::COUNT + value) * channels + channel] = sum;
    }
  }
}

// The sum of value `value` over the slabs, of the channel that is this lane's of the block's 32:
// each of eight warps takes every eighth slab. Warp 0 gets it.
template <typename W>
__device__ inline W of_slabs(const W* partial, i64 slabs, int values, int value, i64 channels) {
  __shared__ W of_warps[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 channel = blockIdx.x * (i64)32 + lane;
  W sum = 0;
  if (channel < channels) {
#pragma unroll 4
    for (i64 slab = warp; slab < slabs; slab += 8) {
      sum += partial[(slab * values + value) * channels + channel];
    }
  }
  __syncthreads();  // what an earlier call left has been read
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp == 0) {
    for (int other = 1; other < 8; other++) sum += of_warps[other][lane];
  }
  return sum;
}

template <typename S>
__global__ void join_sums(const Wide<S>* partial, S* totals, i64 slabs, i64 channels) {
  i64 channel = blockIdx.x * (i64)32 + threadIdx.x;
  Wide<S> sum = of_slabs(partial, slabs, 1, 0, channels);
  if (threadIdx.x < 32 && channel < channels) totals[channel] = narrow<S>(sum);
}

template <typename S> __device__ inline Wide<S> rstd_of(S squares, double points, double epsilon) {
  typedef Wide<S> W;
  return (W)1 / sqrt_of((W)wide(squares) / (W)points + (W)epsilon);
}

// dgamma and dbeta of the sums of `Slopes`.
template <typename S, typename D>
__global__ void join_slopes(const Wide<S>* partial, const S* squares, D* dgamma, D* dbeta,
                            double points, double epsilon, i64 slabs, i64 channels) {
  i64 channel = blockIdx.x * (i64)32 + threadIdx.x;
  Wide<S> along = of_slabs(partial, slabs, 2, 0, channels);
  Wide<S> plain = of_slabs(partial, slabs, 2, 1, channels);
  if (threadIdx.x < 32 && channel < channels) {
    dgamma[channel] = narrow<D>(along * rstd_of(squares[channel], points, epsilon));
    dbeta[channel] = narrow<D>(plain);
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

// What follows on an element before it is written: the sum with another tensor, relu. Each rounds
// what it makes, so that values are those of the ops alone; what stands before relu may be KEPT.
template <bool ADDED, bool RELU, bool KEPT> struct After {
  static const bool READS = ADDED, KEEPS = KEPT;
  template <typename T> __device__ static T sum(T y, T other) {
    return ADDED ? narrow<T>(wide(y) + wide(other)) : y;
  }
  template <typename T> __device__ static T function(T y) {
    return RELU && wide(y) < (Wide<T>)0 ? narrow<T>((Wide<T>)0) : y;  // a NaN stays one
  }
};
typedef After<false, false, false> Nothing;

// `other` and `kept` are as large as y, where `Then` asks for them.
template <typename T, typename S, typename Then>
__global__ void batch_norm(const T* x, const Wide<S>* factors, const T* other, T* kept, T* y,
                           i64 channels, i64 inner, i64 count) {
  typedef Wide<S> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    const W* of = factors + 3 * (at / inner % channels);
    T made = narrow<T>(((W)wide(x[at]) - of[0]) * of[1] + of[2]);
    if (Then::READS) made = Then::sum(made, other[at]);
    if (Then::KEEPS) kept[at] = made;
    y[at] = Then::function(made);
  }
}

// The same by pieces; blockIdx.x counts tiles of channels, blockIdx.y rows.
template <typename T, typename S, typename Then, int N>
__global__ void __launch_bounds__(256)
    batch_norm_of_pieces(const T* x, const Wide<S>* factors, const T* other, T* kept, T* y,
                         i64 rows, i64 channels, int lanes) {
  typedef Wide<S> W;
  Lanes mine(blockIdx.x, lanes, N, channels);
  if (!mine.there) return;
  W mean[N], factor[N], shift[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    const W* of = factors + 3 * (mine.channel + k);
    mean[k] = of[0];
    factor[k] = of[1];
    shift[k] = of[2];
  }
  i64 step = gridDim.y * (i64)mine.rows;
#pragma unroll 4
  for (i64 row = blockIdx.y * (i64)mine.rows + mine.down; row < rows; row += step) {
    i64 at = row * channels + mine.channel;
    Pack<T, N> here = *(const Pack<T, N>*)(x + at), beside = here;
    if (Then::READS) beside = *(const Pack<T, N>*)(other + at);
    W values[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
      values[k] = ((W)wide(here.of[k]) - mean[k]) * factor[k] + shift[k];
    }
    narrow_all(here.of, values);
    if (Then::READS) here = sum_of(here, beside);
    if (Then::KEEPS) store_pack(kept + at, here);
#pragma unroll
    for (int k = 0; k < N; k++) here.of[k] = Then::function(here.of[k]);
    store_pack(y + at, here);
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

// The same by pieces, as `batch_norm_of_pieces`.
template <typename T, typename S, int N>
__global__ void __launch_bounds__(256)
    batch_norm_grad_input_of_pieces(const T* dy, const T* x, const Wide<S>* factors, T* dx,
                                    i64 rows, i64 channels, int lanes) {
  typedef Wide<S> W;
  Lanes mine(blockIdx.x, lanes, N, channels);
  if (!mine.there) return;
  W mean[N], factor[N], along[N], average[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    const W* of = factors + 4 * (mine.channel + k);
    mean[k] = of[0];
    factor[k] = of[1];
    along[k] = of[2];
    average[k] = of[3];
  }
  i64 step = gridDim.y * (i64)mine.rows;
#pragma unroll 2
  for (i64 row = blockIdx.y * (i64)mine.rows + mine.down; row < rows; row += step) {
    i64 at = row * channels + mine.channel;
    Pack<T, N> here = *(const Pack<T, N>*)(x + at), slope = *(const Pack<T, N>*)(dy + at);
    W values[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
      W change = (W)wide(slope.of[k]) - ((W)wide(here.of[k]) - mean[k]) * along[k] - average[k];
      values[k] = change * factor[k];
    }
    narrow_all(here.of, values);
    store_pack(dx + at, here);
  }
}
