// Muon: the direction of the momentum, matrices by Newton and Schulz between products, the update.
//
// The direction comes of a gradient that is a sum over the step's tokens times the loss scale.
#include "squares.cuh"
#include "updates.cuh"

// velocity' = share · velocity + g; the direction is g + share · velocity'.
template <typename G, typename T, typename D, typename V>
__global__ void momentum(const Control* control, const G* gradient, const T* totals, D* direction,
                         V* velocity, double share, double clip_norm, i64 count) {
  bool updated = is_finite((double)wide(totals[2]));
  Wide<V> scale = (Wide<V>)gradient_scale(totals, control->loss_scale, clip_norm);
  Wide<V> of_velocity = (Wide<V>)share;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Wide<V> slope = updated ? (Wide<V>)wide(gradient[at]) * scale : (Wide<V>)0;
    Wide<V> next = wide(velocity[at]);
    if (updated) next = of_velocity * next + slope;
    velocity[at] = narrow<V>(next);
    direction[at] = narrow<D>((Wide<D>)(slope + of_velocity * next));
  }
}

// Every block of a matrix its share of the matrix' sum of squares; the matrix is blockIdx.y.
template <typename X> __global__ void matrix_squares(const X* x, double* parts, i64 size) {
  const X* matrix = x + (i64)blockIdx.y * size;
  double sum = 0;
  for (i64 at = first_element(); at < size; at += element_stride()) {
    double value = (double)wide(matrix[at]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[(i64)blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// Matrices over their norms; as many blocks as `matrix_squares` had.
template <typename X>
__global__ void normalised(const X* x, const double* parts, X* y, double least, i64 size) {
  double sum = 0;
  for (int part = threadIdx.x; part < gridDim.x; part += blockDim.x) {
    sum += parts[(i64)blockIdx.y * gridDim.x + part];
  }
  Wide<X> over = (Wide<X>)(1 / larger(sqrt_of(block_sum(sum)), least));
  i64 begin = (i64)blockIdx.y * size;
  for (i64 at = first_element(); at < size; at += element_stride()) {
    y[begin + at] = narrow<X>(wide(x[begin + at]) * over);
  }
}

// first · I + second · A + third · A²; A and its square are `side` by `side`.
template <typename X>
__global__ void polynomial(X* gram, const X* square, double first, double second, double third,
                           i64 side, i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    i64 place = at % (side * side);
    Wide<X> value = (Wide<X>)second * wide(gram[at]) + (Wide<X>)third * wide(square[at]);
    if (place / side == place % side) value += (Wide<X>)first;
    gram[at] = narrow<X>(value);
  }
}

// w' = w (1 − rate · decay) − rate · factor · direction.
template <typename W, typename D, typename T, typename R>
__global__ void muon(const Control* control, const W* w, const D* direction, const T* totals,
                     const R* rate, W* next, double factor, double decay, i64 count) {
  bool updated = is_finite((double)wide(totals[2]));
  double lr = (double)wide(*rate);
  Wide<W> kept = (Wide<W>)(1 - lr * decay), pace = (Wide<W>)(lr * factor);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    Wide<W> value = wide(w[at]);
    if (updated) value = value * kept - pace * (Wide<W>)wide(direction[at]);
    next[at] = narrow<W>(value);
  }
}
