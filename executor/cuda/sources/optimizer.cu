// The end of a step: sums of squares, totals, learning rate, AdamW, SGD, and the step's own count.
//
// Gradients arrive as sums over the step's tokens times the loss scale. Where the totals' sum of
// squares is not finite, nothing is updated: that is how a step is skipped whose float16 gradients
// overflowed (Micikevicius et al., "Mixed precision training", 2018, section 3.2).
#include "squares.cuh"
#include "updates.cuh"

// The gradient with which a chain of gradients begins: `value` times the loss scale.
template <typename T>
__global__ void loss_scaled_fill(const Control* control, T* y, double value, i64 count) {
  T same = narrow<T>((Wide<T>)(value * control->loss_scale));
  for (i64 at = first_element(); at < count; at += element_stride()) y[at] = same;
}

// One block: y is the sum of squares of x.
template <typename T, typename S> __global__ void squared_sum(const T* x, S* y, i64 count) {
  double sum = block_sum(squares(x, threadIdx.x, blockDim.x, count));
  if (threadIdx.x == 0) *y = narrow<S>((Wide<S>)sum);
}

// Every block its share of the sum.
template <typename T> __global__ void squared_parts(const T* x, double* parts, i64 count) {
  double sum = block_sum(squares(x, first_element(), element_stride(), count));
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block: y is the sum of the parts.
template <typename S> __global__ void sum_of_parts(const double* parts, S* y, i64 count) {
  double sum = 0;
  for (i64 at = threadIdx.x; at < count; at += blockDim.x) sum += parts[at];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *y = narrow<S>((Wide<S>)sum);
}

// A warp adds `count` scalars to a total; the struct may be longer than that.
template <typename T, int SCALARS>
__global__ void add_scalars(const __grid_constant__ Pointers<SCALARS> scalars, double* total,
                            int count) {
  double sum = 0;
#pragma unroll 4
  for (int at = threadIdx.x; at < count; at += 32) sum += (double)wide(*(const T*)scalars.at[at]);
  sum = warp_reduce<Add>(sum);
  if (threadIdx.x == 0) *total += sum;
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

// w, m and v of the next step.
template <typename W, typename G, typename T, typename R>
__global__ void adamw(const Control* control, const W* w, const G* gradient, const T* totals,
                      const R* rate, W* next, W* m, W* v, double beta1, double beta2,
                      double epsilon, double decay, double clip_norm, i64 count) {
  AdamW<Wide<W>> update(control, totals, rate, beta1, beta2, epsilon, decay, clip_norm);
  update.over(w, gradient, next, m, v, first_element(), element_stride(), count);
}

template <typename W, typename G, typename T, typename R>
__global__ void sgd(const Control* control, const W* w, const G* gradient, const T* totals,
                    const R* rate, W* next, double decay, double clip_norm, i64 count) {
  Descent<Wide<W>> update(control, totals, rate, 0.0, decay, clip_norm);
  update.template over<false>(w, gradient, next, (W*)nullptr, first_element(), element_stride(),
                              count);
}

template <typename W, typename G, typename T, typename R>
__global__ void sgd_momentum(const Control* control, const W* w, const G* gradient,
                             const T* totals, const R* rate, W* next, W* velocity, double momentum,
                             double decay, double clip_norm, i64 count) {
  Descent<Wide<W>> update(control, totals, rate, momentum, decay, clip_norm);
  update.template over<true>(w, gradient, next, velocity, first_element(), element_stride(), count);
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
