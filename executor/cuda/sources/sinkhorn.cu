// Sinkhorn's rounds: matrices divided by the sums of their columns and rows, and the gradient.
//
// x, y [matrices, m, n], one thread a matrix, which its registers or its own memory hold: backward
// the sums that were divided by are kept, and the matrices between found again from the last one.
#include "reduce.cuh"

const int SIDE = 8;      // of a matrix, at most
const int STEPS = 64;    // two for every round less one, at most

// One step: a divided by the sums of its columns (steps 0, 2, ...) or rows, which go to `sums`.
template <typename W>
__device__ inline void divide(W* a, W* sums, int step, int m, int n, W epsilon) {
  bool columns = step % 2 == 0;
  for (int one = 0; one < (columns ? n : m); one++) {
    W sum = epsilon;
    for (int other = 0; other < (columns ? m : n); other++) {
      sum += columns ? a[other * n + one] : a[one * n + other];
    }
    sums[one] = sum;
  }
  for (int at = 0; at < m * n; at++) a[at] /= sums[columns ? at % n : at / n];
}

template <typename T>
__global__ void sinkhorn(const T* x, T* y, i64 matrices, i64 m, i64 n, i64 rounds, double epsilon) {
  typedef Wide<T> W;
  i64 matrix = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (matrix >= matrices) return;
  W a[SIDE * SIDE], sums[SIDE];
  for (int at = 0; at < m * n; at++) a[at] = (W)wide(x[matrix * m * n + at]);
  for (int step = 0; step < 2 * rounds - 1; step++) divide(a, sums, step, m, n, (W)epsilon);
  for (int at = 0; at < m * n; at++) y[matrix * m * n + at] = narrow<T>(a[at]);
}

template <typename T>
__global__ void sinkhorn_grad(const T* x, const T* dy, T* dx, i64 matrices, i64 m, i64 n,
                              i64 rounds, double epsilon) {
  typedef Wide<T> W;
  i64 matrix = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (matrix >= matrices) return;
  W a[SIDE * SIDE], slope[SIDE * SIDE], sums[STEPS * SIDE];
  for (int at = 0; at < m * n; at++) {
    a[at] = (W)wide(x[matrix * m * n + at]);
    slope[at] = (W)wide(dy[matrix * m * n + at]);
  }
  int steps = 2 * rounds - 1;
  for (int step = 0; step < steps; step++) {
    divide(a, sums + step * SIDE, step, m, n, (W)epsilon);
  }
  for (int step = steps - 1; step >= 0; step--) {
    bool columns = step % 2 == 0;
    W along[SIDE] = {};
    for (int at = 0; at < m * n; at++) along[columns ? at % n : at / n] += slope[at] * a[at];
    for (int at = 0; at < m * n; at++) {
      int one = columns ? at % n : at / n;
      slope[at] = (slope[at] - along[one]) / sums[step * SIDE + one];
      a[at] *= sums[step * SIDE + one];
    }
  }
  for (int at = 0; at < m * n; at++) dx[matrix * m * n + at] = narrow<T>(slope[at]);
}
