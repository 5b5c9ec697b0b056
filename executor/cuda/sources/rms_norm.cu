// RMS norm with its gradients, and rows brought to length one: R rows, D features, packs of N.
//
// x is T, gamma G, what is kept of a row S, dy and dx are D (float where gradients of microbatches
// were added up before); arithmetic is that of S.
#include "slabs.cuh"

// y and rstd = 1 / sqrt(mean(x^2) + epsilon) of (x, gamma); one block per row.
template <typename T, typename G, typename S, int N>
__global__ void rms_norm(const T* x, const G* gamma, T* y, S* rstd, double epsilon, i64 rows,
                         i64 columns) {
  typedef Wide<S> W;
  W here[N], factor[N];
  i64 first = (i64)threadIdx.x * N, stride = (i64)blockDim.x * N;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 start = row * columns;
    W squares = 0;
    for (i64 at = first; at < columns; at += stride) {
      take(here, x + start + at);
      for (int k = 0; k < N; k++) squares += here[k] * here[k];
    }
    W scale = (W)1 / sqrt_of(block_sum(squares) / (W)columns + (W)epsilon);
    for (i64 at = first; at < columns; at += stride) {
      take(here, x + start + at);
      take(factor, gamma + at);
      for (int k = 0; k < N; k++) here[k] *= scale * factor[k];
      put(y + start + at, here);
    }
    if (threadIdx.x == 0) rstd[row] = narrow<S>(scale);
  }
}

// dx = rstd (g - x rstd^2 mean(g x)) with g = dy gamma.
template <typename D, typename T, typename G, typename S, int N>
__global__ void rms_norm_grad_input(const D* dy, const T* x, const G* gamma, const S* rstd, D* dx,
                                    i64 rows, i64 columns) {
  typedef Wide<S> W;
  W slope[N], here[N], factor[N];
  i64 first = (i64)threadIdx.x * N, stride = (i64)blockDim.x * N;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 start = row * columns;
    W scale = wide(rstd[row]), along = 0;
    for (i64 at = first; at < columns; at += stride) {
      take(slope, dy + start + at);
      take(here, x + start + at);
      take(factor, gamma + at);
      for (int k = 0; k < N; k++) along += slope[k] * factor[k] * here[k];
    }
    along = block_sum(along) * scale * scale / (W)columns;
    for (i64 at = first; at < columns; at += stride) {
      take(slope, dy + start + at);
      take(here, x + start + at);
      take(factor, gamma + at);
      for (int k = 0; k < N; k++) here[k] = scale * (slope[k] * factor[k] - here[k] * along);
      put(dx + start + at, here);
    }
  }
}

// Sums over the rows of a slab of dy x rstd, [slabs, columns]; gridDim.y slabs.
template <typename D, typename T, typename S, int N>
__global__ void rms_norm_grad_weight(const D* dy, const T* x, const S* rstd, Wide<S>* slab_sums,
                                     i64 slab_rows, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W dgamma[N] = {}, slope[N], here[N];
  i64 slab = blockIdx.y, column = slab_column<N>();
  if (column < columns) {
    i64 last = smaller((slab + 1) * slab_rows, rows);
    for (i64 row = slab * slab_rows + threadIdx.x / 32; row < last; row += SLAB_WARPS) {
      W scale = wide(rstd[row]);
      take(slope, dy + row * columns + column);
      take(here, x + row * columns + column);
      for (int k = 0; k < N; k++) dgamma[k] += slope[k] * here[k] * scale;
    }
  }
  slab_sum(dgamma, slab_sums + slab * columns, columns);
}

// Rows of length one, and one over the length that they had, which is at least `epsilon`.
template <typename T, typename S, int N>
__global__ void l2_normalize(const T* x, T* y, S* rnorm, double epsilon, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W here[N];
  i64 first = (i64)threadIdx.x * N, stride = (i64)blockDim.x * N;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 start = row * columns;
    W squares = 0;
    for (i64 at = first; at < columns; at += stride) {
      take(here, x + start + at);
      for (int k = 0; k < N; k++) squares += here[k] * here[k];
    }
    W scale = (W)1 / larger(sqrt_of(block_sum(squares)), (W)epsilon);
    for (i64 at = first; at < columns; at += stride) {
      take(here, x + start + at);
      for (int k = 0; k < N; k++) here[k] *= scale;
      put(y + start + at, here);
    }
    if (threadIdx.x == 0) rnorm[row] = narrow<S>(scale);
  }
}

// dx = rnorm (dy - y sum(dy y)).
template <typename D, typename T, typename S, int N>
__global__ void l2_normalize_grad(const D* dy, const T* y, const S* rnorm, D* dx, i64 rows,
                                  i64 columns) {
  typedef Wide<S> W;
  W slope[N], here[N];
  i64 first = (i64)threadIdx.x * N, stride = (i64)blockDim.x * N;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 start = row * columns;
    W scale = wide(rnorm[row]), along = 0;
    for (i64 at = first; at < columns; at += stride) {
      take(slope, dy + start + at);
      take(here, y + start + at);
      for (int k = 0; k < N; k++) along += slope[k] * here[k];
    }
    along = block_sum(along);
    for (i64 at = first; at < columns; at += stride) {
      take(slope, dy + start + at);
      take(here, y + start + at);
      for (int k = 0; k < N; k++) here[k] = scale * (slope[k] - here[k] * along);
      put(dx + start + at, here);
    }
  }
}
