// Layer norm over the last dim and its gradients: R rows, D features of a row, in packs of N.
//
// x is T, gamma and beta are G, the mean and rstd of a row S, dy and dx are D (float where gradients
// of microbatches were added up before); arithmetic is that of S.
#include "slabs.cuh"

// y, mean and rstd of (x, gamma, beta); one block per row.
template <typename T, typename G, typename S, int N>
__global__ void layer_norm(const T* x, const G* gamma, const G* beta, T* y, S* mean, S* rstd,
                           double epsilon, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W here[N], factor[N], shift[N];
  i64 first = (i64)threadIdx.x * N, stride = (i64)blockDim.x * N;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * columns;
    W sum = 0, squares = 0;
    for (i64 at = first; at < columns; at += stride) {
      take(here, from + at);
      for (int k = 0; k < N; k++) sum += here[k];
    }
    W average = block_sum(sum) / (W)columns;
    for (i64 at = first; at < columns; at += stride) {
      take(here, from + at);
      for (int k = 0; k < N; k++) squares += (here[k] - average) * (here[k] - average);
    }
    W scale = (W)1 / sqrt_of(block_sum(squares) / (W)columns + (W)epsilon);
    for (i64 at = first; at < columns; at += stride) {
      take(here, from + at);
      take(factor, gamma + at);
      take(shift, beta + at);
      for (int k = 0; k < N; k++) here[k] = (here[k] - average) * scale * factor[k] + shift[k];
      put(y + row * columns + at, here);
    }
    if (threadIdx.x == 0) {
      mean[row] = narrow<S>(average);
      rstd[row] = narrow<S>(scale);
    }
  }
}

// dx = rstd (g - mean(g) - normal mean(g normal)) with g = dy gamma, normal = (x - mean) rstd.
template <typename D, typename T, typename G, typename S, int N>
__global__ void layer_norm_grad_input(const D* dy, const T* x, const G* gamma, const S* mean,
                                      const S* rstd, D* dx, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W slope[N], here[N], factor[N];
  i64 first = (i64)threadIdx.x * N, stride = (i64)blockDim.x * N;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 start = row * columns;
    W average = wide(mean[row]), scale = wide(rstd[row]);
    W sum = 0, along = 0;
    for (i64 at = first; at < columns; at += stride) {
      take(slope, dy + start + at);
      take(here, x + start + at);
      take(factor, gamma + at);
      for (int k = 0; k < N; k++) {
        sum += slope[k] * factor[k];
        along += slope[k] * factor[k] * (here[k] - average);
      }
    }
    sum = block_sum(sum) / (W)columns;
    along = block_sum(along) * scale * scale / (W)columns;
    for (i64 at = first; at < columns; at += stride) {
      take(slope, dy + start + at);
      take(here, x + start + at);
      take(factor, gamma + at);
      for (int k = 0; k < N; k++) {
        here[k] = scale * (slope[k] * factor[k] - sum - (here[k] - average) * along);
      }
      put(dx + start + at, here);
    }
  }
}

// Sums over the rows of a slab: of dy normal, then of dy, each [slabs, columns]; gridDim.y slabs.
template <typename D, typename T, typename S, int N>
__global__ void layer_norm_grad_weight(const D* dy, const T* x, const S* mean, const S* rstd,
                                       Wide<S>* slab_sums, i64 slab_rows, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W dgamma[N] = {}, dbeta[N] = {}, slope[N], here[N];
  i64 slab = blockIdx.y, column = slab_column<N>();
  if (column < columns) {
    i64 last = smaller((slab + 1) * slab_rows, rows);
    for (i64 row = slab * slab_rows + threadIdx.x / 32; row < last; row += SLAB_WARPS) {
      W average = wide(mean[row]), scale = wide(rstd[row]);
      take(slope, dy + row * columns + column);
      take(here, x + row * columns + column);
      for (int k = 0; k < N; k++) {
        dgamma[k] += slope[k] * (here[k] - average) * scale;
        dbeta[k] += slope[k];
      }
    }
  }
  slab_sum(dgamma, slab_sums + slab * columns, columns);
  slab_sum(dbeta, slab_sums + (gridDim.y + slab) * columns, columns);
}
