// Functions of one tensor, their gradients, and the gates made of them.
//
// A function has `value(x, first, second)` and `slope(x, first, second)`; the numbers are the op's
// attributes. Comparisons are written so that a NaN stays one.
#include "packs.cuh"
#include "strides.cuh"

#define FUNCTION(name, of_value, of_slope)                                                   \
  struct name {                                                                              \
    template <typename W> __device__ static inline W value(W x, W first, W second) {         \
      of_value;                                                                              \
    }                                                                                        \
    template <typename W> __device__ static inline W slope(W x, W first, W second) {         \
      of_slope;                                                                              \
    }                                                                                        \
  };

template <typename W> __device__ inline W sigmoid_of(W x) { return (W)1 / ((W)1 + exp_of(-x)); }

// tanh form of GELU: Hendrycks and Gimpel 2016, section 2; u' is the slope of what tanh is taken of.
const double GELU_SCALE = 0.79788456080286535588;  // sqrt(2 / pi)
const double GELU_CUBIC = 0.044715;
template <typename W> __device__ inline W tanh_of_gelu(W x) {
  return tanh_of(x * ((W)GELU_SCALE + (W)(GELU_SCALE * GELU_CUBIC) * x * x));
}
template <typename W> __device__ inline W gelu_slope(W x) {
  W t = tanh_of_gelu(x);
  W u_slope = (W)GELU_SCALE + (W)(3 * GELU_SCALE * GELU_CUBIC) * x * x;
  return (W)0.5 * ((W)1 + t) * ((W)1 + x * ((W)1 - t) * u_slope);
}

// Phi(x), the normal distribution, and its density; exact in the lower tail too.
template <typename W> __device__ inline W normal_of(W x) {
  return (W)0.5 * erfc_of(x * (W)-0.70710678118654752440);  // 1 / sqrt(2)
}
template <typename W> __device__ inline W density_of(W x) {
  return (W)0.39894228040143267794 * exp_of((W)-0.5 * x * x);  // 1 / sqrt(2 pi)
}
template <typename W> __device__ inline W silu_slope(W x) {
  W s = sigmoid_of(x);
  return s * ((W)1 + x * ((W)1 - s));
}
template <typename W> __device__ inline W sigmoid_slope(W x) {
  W s = sigmoid_of(x);
  return s * ((W)1 - s);
}
template <typename W> __device__ inline W tanh_slope(W x) {
  W t = tanh_of(x);
  return (W)1 - t * t;
}
template <typename W> __device__ inline W power_of(W x, W exponent) {
  return exponent == (W)2 ? x * x : pow_of(x, exponent);
}
template <typename W> __device__ inline W power_slope(W x, W exponent) {
  return exponent == (W)2 ? (W)2 * x : exponent * pow_of(x, exponent - (W)1);
}

FUNCTION(Relu, return x < (W)0 ? (W)0 : x, return x > (W)0 ? (W)1 : (W)0)
FUNCTION(LeakyRelu, return x < (W)0 ? x * first : x, return x > (W)0 ? (W)1 : first)
FUNCTION(Gelu, return (W)0.5 * ((W)1 + tanh_of_gelu(x)) * x, return gelu_slope(x))
FUNCTION(GeluErf, return x * normal_of(x), return normal_of(x) + x * density_of(x))
FUNCTION(Silu, return x / ((W)1 + exp_of(-x)), return silu_slope(x))
FUNCTION(Sigmoid, return sigmoid_of(x), return sigmoid_slope(x))
FUNCTION(Tanh, return tanh_of(x), return tanh_slope(x))
FUNCTION(Softplus, return larger(x, (W)0) + log1p_of(exp_of(-abs_of(x))), return sigmoid_of(x))
FUNCTION(Exp, return exp_of(x), return exp_of(x))
FUNCTION(Log, return log_of(x), return (W)1 / x)
FUNCTION(Sqrt, return sqrt_of(x), return (W)0.5 / sqrt_of(x))
FUNCTION(Rsqrt, return (W)1 / sqrt_of(x), return (W)-0.5 / (x * sqrt_of(x)))
FUNCTION(Reciprocal, return (W)1 / x, return (W)-1 / (x * x))
FUNCTION(Power, return power_of(x, first), return power_slope(x, first))
FUNCTION(Sin, return sin_of(x), return cos_of(x))
FUNCTION(Cos, return cos_of(x), return -sin_of(x))
FUNCTION(Clip, return x < first ? first : x > second ? second : x,
         return x >= first && x <= second ? (W)1 : (W)0)
FUNCTION(IsPositive, return x > (W)0 ? (W)1 : (W)0, return (W)0)
FUNCTION(Same, return x, return (W)1)
FUNCTION(Scaled, return x * first, return first)
FUNCTION(Shifted, return x + first, return (W)1)

// y = F(x)
template <typename F, typename X, typename Y>
__global__ void value(const X* x, Y* y, double first, double second, i64 count) {
  typedef Joined<X, Y> W;
  const int N = pack_of<X, Y>();
  for (i64 start = first_pack<N>(); start < count; start += pack_stride<N>()) {
    Pack<X, N> given[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      given[i] = load_pack<N>(x, start + i * next_pack<N>(), count);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        values[k] = F::value((W)wide(given[i].of[k]), (W)first, (W)second);
      }
      Pack<Y, N> made;
      narrow_all(made.of, values);
      store_pack(y, start + i * next_pack<N>(), count, made);
    }
  }
}

// dx = dy F'(x)
template <typename F, typename X, typename D, typename Y>
__global__ void gradient(const X* x, const D* dy, Y* dx, double first, double second, i64 count) {
  typedef Joined<X, D> W;
  const int N = pack_of<X, D, Y>();
  for (i64 start = first_pack<N>(); start < count; start += pack_stride<N>()) {
    Pack<X, N> given[TOGETHER];
    Pack<D, N> back[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      given[i] = load_pack<N>(x, start + i * next_pack<N>(), count);
      back[i] = load_pack<N>(dy, start + i * next_pack<N>(), count);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      W slopes[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        W slope = F::slope((W)wide(given[i].of[k]), (W)first, (W)second);
        slopes[k] = slope * (W)wide(back[i].of[k]);
      }
      Pack<Y, N> made;
      narrow_all(made.of, slopes);
      store_pack(dx, start + i * next_pack<N>(), count, made);
    }
  }
}

// y = value(gate, up)
template <typename T, typename F>
__device__ inline void gate_all(const T* gate, const T* up, T* y, i64 count, F value) {
  typedef Wide<T> W;
  const int N = pack_of<T>();
  for (i64 start = first_pack<N>(); start < count; start += pack_stride<N>()) {
    Pack<T, N> gates[TOGETHER], ups[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      gates[i] = load_pack<N>(gate, start + i * next_pack<N>(), count);
      ups[i] = load_pack<N>(up, start + i * next_pack<N>(), count);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) values[k] = value(wide(gates[i].of[k]), wide(ups[i].of[k]));
      narrow_all(gates[i].of, values);
      store_pack(y, start + i * next_pack<N>(), count, gates[i]);
    }
  }
}

// dgate and dup, dy times `slopes` of (gate, up).
template <typename T, typename F>
__device__ inline void gate_all_back(const T* gate, const T* up, const T* dy, T* dgate, T* dup,
                                     i64 count, F slopes) {
  typedef Wide<T> W;
  const int N = pack_of<T>();
  for (i64 start = first_pack<N>(); start < count; start += pack_stride<N>()) {
    Pack<T, N> gates[TOGETHER], ups[TOGETHER], back[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      gates[i] = load_pack<N>(gate, start + i * next_pack<N>(), count);
      ups[i] = load_pack<N>(up, start + i * next_pack<N>(), count);
      back[i] = load_pack<N>(dy, start + i * next_pack<N>(), count);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      W of_gate[N], of_up[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        W d = wide(back[i].of[k]);
        slopes(wide(gates[i].of[k]), wide(ups[i].of[k]), &of_gate[k], &of_up[k]);
        of_gate[k] *= d;
        of_up[k] *= d;
      }
      narrow_all(gates[i].of, of_gate);
      narrow_all(ups[i].of, of_up);
      store_pack(dgate, start + i * next_pack<N>(), count, gates[i]);
      store_pack(dup, start + i * next_pack<N>(), count, ups[i]);
    }
  }
}

// y = silu(gate) up
template <typename T> __global__ void swiglu(const T* gate, const T* up, T* y, i64 count) {
  typedef Wide<T> W;
  gate_all(gate, up, y, count, [](W g, W u) { return g * sigmoid_of(g) * u; });
}
// With s = sigmoid(gate): dup = dy gate s, and dgate = dy up (s + gate s (1 - s)).
template <typename T>
__global__ void swiglu_grad(const T* gate, const T* up, const T* dy, T* dgate, T* dup, i64 count) {
  typedef Wide<T> W;
  gate_all_back(gate, up, dy, dgate, dup, count, [](W g, W u, W* of_gate, W* of_up) {
    *of_gate = u * silu_slope(g);
    *of_up = g * sigmoid_of(g);
  });
}

// y = g sigmoid(slope g) (u + shift), with g = min(gate, cap) and u = up between -cap and cap.
template <typename T>
__global__ void clamped_swiglu(const T* gate, const T* up, T* y, double cap, double slope,
                               double shift, i64 count) {
  typedef Wide<T> W;
  W most = (W)cap, steep = (W)slope, more = (W)shift;
  gate_all(gate, up, y, count, [=](W g, W u) {
    g = smaller(g, most);
    return g * sigmoid_of(steep * g) * (larger(-most, smaller(u, most)) + more);
  });
}
template <typename T>
__global__ void clamped_swiglu_grad(const T* gate, const T* up, const T* dy, T* dgate, T* dup,
                                    double cap, double slope, double shift, i64 count) {
  typedef Wide<T> W;
  W most = (W)cap, steep = (W)slope, more = (W)shift;
  gate_all_back(gate, up, dy, dgate, dup, count, [=](W g, W u, W* of_gate, W* of_up) {
    W cut = smaller(g, most), s = sigmoid_of(steep * cut);
    W factor = larger(-most, smaller(u, most)) + more;
    *of_gate = g > most ? (W)0 : factor * (s + steep * cut * s * (1 - s));
    *of_up = u > most || u < -most ? (W)0 : cut * s;
  });
}

// dx = dy where x is positive, elsewhere dy times the slope of the channel: `channels` values, each
// for `inner` neighbours, again and again.
template <typename X, typename S, typename D, typename Y, typename I>
__global__ void prelu_grad_input(const X* x, const S* slope, const D* dy, Y* dx, i64 inner,
                                 i64 channels, i64 count) {
  typedef Joined<S, D> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    W d = (W)wide(dy[at]);
    W s = (W)wide(slope[(I)at / (I)inner % (I)channels]);
    dx[at] = narrow<Y>(wide(x[at]) > 0 ? d : d * s);
  }
}
