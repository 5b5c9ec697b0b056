// Updates of variables, AdamW and SGD, of elements that a thread goes over in packs.
//
// Every element is read before it is written, so that w and `next` may be one. A thread has pack
// number `first`, then every `stride`-th behind it.
#pragma once
#include "control.cuh"
#include "packs.cuh"

__device__ inline bool is_finite(double x) {
  const i64 exponent = 0x7ff0000000000000ll;
  return (__double_as_longlong(x) & exponent) != exponent;
}

// What a gradient is multiplied by: 1 / (tokens · loss scale), and the clipping.
template <typename T>
__device__ inline double gradient_scale(const T* totals, double loss_scale, double clip_norm) {
  double tokens = larger((double)wide(totals[1]), 1.0);
  double norm = sqrt_of((double)wide(totals[2])) / loss_scale / tokens;
  double clipping = clip_norm > 0 && clip_norm < norm ? clip_norm / norm : 1.0;
  return clipping / (tokens * loss_scale);
}

// Corrections of the bias are folded into two scalars, as in
// w' = w (1 − rate · decay) − rate √c₂ / c₁ · m / (√v + ε √c₂), where c = 1 − βᵗ.
template <typename V> struct AdamW {
  bool updated;
  V scale, pace, floor, kept, of_m, of_v, into_m, into_v;

  // One thread of a block computes what all need; every thread calls this.
  template <typename T, typename R>
  __device__ AdamW(const Control* control, const T* totals, const R* rate, double beta1,
                   double beta2, double epsilon, double decay, double clip_norm) {
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
    updated = shared[0] != 0;
    scale = (V)shared[1], pace = (V)shared[2], floor = (V)shared[3], kept = (V)shared[4];
    of_m = (V)beta1, of_v = (V)beta2, into_m = (V)(1 - beta1), into_v = (V)(1 - beta2);
  }

  template <typename W, typename G>
  __device__ void over(const W* w, const G* gradient, W* next, W* m, W* v, i64 first, i64 stride,
                       i64 count) const {
    const int N = pack_of<W>();
    for (i64 start = first * N; start < count; start += stride * N) {
      Pack<W, N> values = load_pack<N>(w, start, count);
      if (updated) {
        Pack<G, N> slopes = load_pack<N>(gradient, start, count);
        Pack<W, N> firsts = load_pack<N>(m, start, count), seconds = load_pack<N>(v, start, count);
#pragma unroll
        for (int k = 0; k < N; k++) {
          V slope = (V)wide(slopes.of[k]) * scale;
          V one = of_m * wide(firsts.of[k]) + into_m * slope;
          V other = of_v * wide(seconds.of[k]) + into_v * slope * slope;
          firsts.of[k] = narrow<W>(one);
          seconds.of[k] = narrow<W>(other);
          V value = wide(values.of[k]);
          values.of[k] = narrow<W>(value * kept - pace * (one / (sqrt_of(other) + floor)));
        }
        store_pack(m, start, count, firsts);
        store_pack(v, start, count, seconds);
      }
      store_pack(next, start, count, values);
    }
  }
};

// w' = w (1 − rate · decay) − rate · change; the change is the gradient, or with momentum the
// velocity, velocity' = momentum · velocity + gradient.
template <typename V> struct Descent {
  bool updated;
  V scale, pace, kept, of_velocity;

  template <typename T, typename R>
  __device__ Descent(const Control* control, const T* totals, const R* rate, double momentum,
                     double decay, double clip_norm) {
    double lr = (double)wide(*rate);
    updated = is_finite((double)wide(totals[2]));
    scale = (V)gradient_scale(totals, control->loss_scale, clip_norm);
    pace = (V)lr, kept = (V)(1 - lr * decay), of_velocity = (V)momentum;
  }

  template <bool WITH_MOMENTUM, typename W, typename G>
  __device__ void over(const W* w, const G* gradient, W* next, W* velocity, i64 first, i64 stride,
                       i64 count) const {
    const int N = pack_of<W>();
    for (i64 start = first * N; start < count; start += stride * N) {
      Pack<W, N> values = load_pack<N>(w, start, count), velocities;
      if (updated) {
        Pack<G, N> slopes = load_pack<N>(gradient, start, count);
        if (WITH_MOMENTUM) velocities = load_pack<N>(velocity, start, count);
#pragma unroll
        for (int k = 0; k < N; k++) {
          V change = (V)wide(slopes.of[k]) * scale, value = wide(values.of[k]);
          if (WITH_MOMENTUM) {
            change += of_velocity * wide(velocities.of[k]);
            velocities.of[k] = narrow<W>(change);
          }
          values.of[k] = narrow<W>(value * kept - pace * change);
        }
        if (WITH_MOMENTUM) store_pack(velocity, start, count, velocities);
      }
      store_pack(next, start, count, values);
    }
  }
};
