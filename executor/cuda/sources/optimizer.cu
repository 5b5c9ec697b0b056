// The end of a step: sums of squares, totals, learning rate, AdamW, SGD, and the step's own count.
//
// Gradients arrive as sums over the step's tokens times the loss scale. Where the totals' sum of
// squares is not finite, nothing is updated: that is how a step is skipped whose float16 gradients
// overflowed (Micikevicius et al., "Mixed precision training", 2018, section 3.2).
#include "control.cuh"
#include "reduce.cuh"

__device__ inline bool is_finite(double x) {
  const i64 exponent = 0x7ff0000000000000ll;
  return (__double_as_longlong(x) & exponent) != exponent;
}

// The gradient with which a chain of gradients begins: `value` times the loss scale.
template <typename T>
__global__ void loss_scaled_fill(const Control* control, T* y, double value, i64 count) {
  T same = narrow<T>((Wide<T>)(value * control->loss_scale));
  for (i64 at = first_element(); at < count; at += element_stride()) y[at] = same;
}

// One block: y is the sum of squares of x.
template <typename T, typename S> __global__ void squared_sum(const T* x, S* y, i64 count) {
  double sum = 0;
  for (i64 at = threadIdx.x; at < count; at += blockDim.x) {
    double value = (double)wide(x[at]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) *y = narrow<S>((Wide<S>)sum);
}

// Every block its share of the sum.
template <typename T> __global__ void squared_parts(const T* x, double* parts, i64 count) {
  double sum = 0;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    double value = (double)wide(x[at]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block: y is the sum of the parts.
template <typename S> __global__ void sum_of_parts(const double* parts, S* y, i64 count) {
  double sum = 0;
  for (i64 at = threadIdx.x; at < count; at += blockDim.x) sum += parts[at];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *y = narrow<S>((Wide<S>)sum);
}

// One thread adds `count` scalars, in their order, to a total.
template <typename T>
__global__ void add_scalars(const T* x0, const T* x1, const T* x2, const T* x3, const T* x4,
                            const T* x5, const T* x6, const T* x7, const T* x8, const T* x9,
                            const T* x10, const T* x11, const T* x12, const T* x13, const T* x14,
                            const T* x15, double* total, int count) {
  const T* scalars[16] = {x0, x1, x2,  x3,  x4,  x5,  x6,  x7,
                          x8, x9, x10, x11, x12, x13, x14, x15};
  if (threadIdx.x > 0) return;
  double sum = *total;
#pragma unroll
  for (int at = 0; at < 16; at++) {
    if (at < count) sum += (double)wide(*scalars[at]);
  }
  *total = sum;
}

// Loss sum, token count and sum of squares, as the next kernels read them.
template <typename T> __global__ void store_totals(const double* sums, T* totals) {
  if (threadIdx.x < 3) totals[threadIdx.x] = narrow<T>((Wide<T>)sums[threadIdx.x]);
}

// One thread: a linear rise, then a cosine down to `final_fraction` of the peak; constant where `decay` is 0.
template <typename T>
__global__ void learning_rate(const Control* control, T* rate, double peak, double warmup,
                              double decay, double final_fraction) {
  if (threadIdx.x > 0) return;
  double step = (double)control->step, found = peak;
  if (step < warmup) {
    found = peak * (step + 1) / warmup;
  } else if (decay > 0) {
    const double pi = 3.14159265358979323846;
    double progress = smaller(1.0, (step - warmup) / larger(decay - warmup, 1.0));
    found = peak * (final_fraction + (1 - final_fraction) * (1 + cos_of(pi * progress)) / 2);
  }
  *rate = narrow<T>((Wide<T>)found);
}

// What a gradient is multiplied by: 1 / (tokens · loss scale), and the clipping.
template <typename T>
__device__ inline double gradient_scale(const T* totals, double loss_scale, double clip_norm) {
  double tokens = larger((double)wide(totals[1]), 1.0);
  double norm = sqrt_of((double)wide(totals[2])) / loss_scale / tokens;
  double clipping = clip_norm > 0 && clip_norm < norm ? clip_norm / norm : 1.0;
  return clipping / (tokens * loss_scale);
}

// w, m and v of the next step. Corrections of the bias are folded into two scalars, as in
// w' = w (1 − rate · decay) − rate √c₂ / c₁ · m / (√v + ε √c₂), where c = 1 − βᵗ.
// Every element is read before it is written, so that w and `next` may be one.
template <typename W, typename G, typename T, typename R>
__global__ void adamw(const Control* control, const W* w, const G* gradient, const T* totals,
                      const R* rate, W* next, W* m, W* v, double beta1, double beta2,
                      double epsilon, double decay, double clip_norm, i64 count) {
  typedef Wide<W> V;
  __shared__ double shared[5];
  if (threadIdx.x == 0) {
    double updates = (double)(control->updates + 1), lr = (double)wide(*rate);
    double correction = sqrt_of(1 - pow_of(beta2, updates));
    shared[0] = is_finite((double)wide(totals[2]));
    shared[1] = gradient_scale(totals, control->loss_scale, clip_norm);
    shared[2] = lr * correction / (1 - pow_of(beta1, updates));
    shared[3] = epsilon * correction;
    shared[4] = 1 - lr * decay;
  }
  __syncthreads();
  bool updated = shared[0] != 0;
  V scale = (V)shared[1], pace = (V)shared[2], floor = (V)shared[3], kept = (V)shared[4];
  V of_m = (V)beta1, of_v = (V)beta2, into_m = (V)(1 - beta1), into_v = (V)(1 - beta2);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    V value = wide(w[at]);
    if (updated) {
      V slope = (V)wide(gradient[at]) * scale;
      V first = of_m * wide(m[at]) + into_m * slope;
      V second = of_v * wide(v[at]) + into_v * slope * slope;
      m[at] = narrow<W>(first);
      v[at] = narrow<W>(second);
      value = value * kept - pace * (first / (sqrt_of(second) + floor));
    }
    next[at] = narrow<W>(value);
  }
}

// w' = w (1 − rate · decay) − rate · change; the change is the gradient, or with momentum the
// velocity, velocity' = momentum · velocity + gradient.
template <bool WITH_MOMENTUM, typename W, typename G, typename T, typename R>
__device__ inline void descend(const Control* control, const W* w, const G* gradient,
                               const T* totals, const R* rate, W* next, W* velocity,
                               double momentum, double decay, double clip_norm, i64 count) {
  typedef Wide<W> V;
  double lr = (double)wide(*rate);
  bool updated = is_finite((double)wide(totals[2]));
  V scale = (V)gradient_scale(totals, control->loss_scale, clip_norm);
  V pace = (V)lr, kept = (V)(1 - lr * decay);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    V value = wide(w[at]);
    if (updated) {
      V change = (V)wide(gradient[at]) * scale;
      if (WITH_MOMENTUM) {
        change += (V)momentum * wide(velocity[at]);
        velocity[at] = narrow<W>(change);
      }
      value = value * kept - pace * change;
    }
    next[at] = narrow<W>(value);
  }
}

template <typename W, typename G, typename T, typename R>
__global__ void sgd(const Control* control, const W* w, const G* gradient, const T* totals,
                    const R* rate, W* next, double decay, double clip_norm, i64 count) {
  descend<false>(control, w, gradient, totals, rate, next, (W*)nullptr, 0.0, decay, clip_norm,
                 count);
}

template <typename W, typename G, typename T, typename R>
__global__ void sgd_momentum(const Control* control, const W* w, const G* gradient,
                             const T* totals, const R* rate, W* next, W* velocity, double momentum,
                             double decay, double clip_norm, i64 count) {
  descend<true>(control, w, gradient, totals, rate, next, velocity, momentum, decay, clip_norm,
                count);
}

// Gradients here are of sums, so that a scale below 1 may be what many tokens need.
static const double LOSS_SCALE_MIN = 1.0 / 65536;

// The next step begins; the loss scale follows from whether this one's gradients were finite.
__device__ inline void advance(Control* control, bool updated) {
  control->step += 1;
  control->run_step += 1;
  if (!updated) {
    control->skipped += 1;
    control->good_steps = 0;
    // where gradients are not scaled, the scale is 1 and stays
    if (control->scale_growth > 1) {
      control->loss_scale = larger(control->loss_scale * 0.5, LOSS_SCALE_MIN);
    }
    return;
  }
  control->updates += 1;
  control->good_steps += 1;
  if (control->good_steps >= control->growth_interval) {
    control->good_steps = 0;
    control->loss_scale *= control->scale_growth;
  }
}

// One thread: keeps the step's loss sum, token count, sum of squares of the gradients, loss scale
// and whether variables were updated, in row (step of this run) mod `capacity`; then goes on.
template <typename T>
__global__ void finish_step(Control* control, const T* totals, double* history, i64 capacity) {
  if (threadIdx.x > 0) return;
  double scale = control->loss_scale, squares = (double)wide(totals[2]);
  bool updated = is_finite(squares);
  double* row = history + control->run_step % capacity * 5;
  row[0] = (double)wide(totals[0]);
  row[1] = (double)wide(totals[1]);
  row[2] = squares / (scale * scale);
  row[3] = scale;
  row[4] = updated;
  advance(control, updated);
}

// The same of a rank that has no totals.
__global__ void finish_step_alone(Control* control) {
  if (threadIdx.x == 0) advance(control, true);
}
