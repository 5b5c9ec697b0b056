// Layer norm over the last dim and its gradients: R rows, D features of a row.
#include "reduce.cuh"

// y, mean and rstd of (x, gamma, beta); one block per row.
template <typename T, typename G, typename S>
__global__ void layer_norm(const T* x, const G* gamma, const G* beta, T* y, S* mean, S* rstd,
                           double epsilon, i64 rows, i64 columns) {
  typedef Wide<S> W;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * columns;
    W sum = 0;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) sum += (W)wide(from[at]);
    W average = block_sum(sum) / (W)columns;
    W squares = 0;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      W centred = (W)wide(from[at]) - average;
      squares += centred * centred;
    }
    W scale = (W)1 / sqrt_of(block_sum(squares) / (W)columns + (W)epsilon);
    T* to = y + row * columns;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      W normal = ((W)wide(from[at]) - average) * scale;
      to[at] = narrow<T>(normal * (W)wide(gamma[at]) + (W)wide(beta[at]));
    }
    if (threadIdx.x == 0) {
      mean[row] = narrow<S>(average);
      rstd[row] = narrow<S>(scale);
    }
  }
}
