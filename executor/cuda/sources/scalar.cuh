// The scalar types of registers, and the wider ones that kernels compute in.
//
// No header of CUDA is included, so that the sources compile wherever NVRTC does. Values are stored
// as T and computed as Wide<T>: float for 16 and 32 bits, double for 64, int for ids.
#pragma once

typedef long long i64;
typedef unsigned long long u64;

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

template <typename T> struct WideOf { typedef T type; };
template <> struct WideOf<bf16> { typedef float type; };
template <> struct WideOf<f16> { typedef float type; };
template <typename T> using Wide = typename WideOf<T>::type;

// Reading: wide(x).
__device__ inline double wide(double x) { return x; }
__device__ inline float wide(float x) { return x; }
__device__ inline int wide(int x) { return x; }
__device__ inline i64 wide(i64 x) { return x; }
__device__ inline float wide(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
#ifdef ON_CPU
__device__ inline float wide(f16 x) { return half_to_float(x.bits); }
#else
__device__ inline float wide(f16 x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
#endif

// An operand that an op does not have: zero wherever it is read.
struct none {};
template <typename P> struct Has { static const bool value = true; };
template <> struct Has<none> { static const bool value = false; };
template <typename W, typename P> __device__ inline W value_at(const P* from, i64 at) {
  return (W)wide(from[at]);
}
template <typename W> __device__ inline W value_at(const none*, i64) { return 0; }

// Writing: narrow<T>(x), rounded to the nearest, ties to even. Every NaN of 16 bits is 0x7fff, and
// no denormal is flushed, whatever arithmetic does before: `cvt` to 16 bits without `.ftz`.
template <typename T> struct Narrow {
  template <typename W> __device__ static inline T of(W x) { return (T)x; }
};
template <> struct Narrow<bf16> {
  __device__ static inline bf16 of(float x) {
    bf16 found;
#ifdef ON_CPU
    found.bits = float_to_bf16(x);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(found.bits) : "f"(x));
#endif
    return found;
  }
};
template <> struct Narrow<f16> {
  __device__ static inline f16 of(float x) {
    f16 found;
#ifdef ON_CPU
    found.bits = float_to_half(x);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(found.bits) : "f"(x));
#endif
    return found;
  }
};
template <typename T, typename W> __device__ inline T narrow(W x) { return Narrow<T>::of(x); }

// Two floats as neighbours of 16 bits, the first in the lower half: one instruction on a device.
#ifdef ON_CPU
template <typename T> __device__ inline unsigned pack(float first, float second) {
  return narrow<T>(first).bits | (unsigned)narrow<T>(second).bits << 16;
}
#else
template <typename T> struct PackOf;
template <> struct PackOf<bf16> {
  __device__ static inline unsigned of(float first, float second) {
    unsigned found;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
    return found;
  }
};
template <> struct PackOf<f16> {
  __device__ static inline unsigned of(float first, float second) {
    unsigned found;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
    return found;
  }
};
template <typename T> __device__ inline unsigned pack(float first, float second) {
  return PackOf<T>::of(first, second);
}
#endif

// into[k] = narrow(from[k]), of floats to 16 bits two at a time.
template <typename T, typename W, int N>
__device__ inline void narrow_all(T (&into)[N], const W (&from)[N]) {
#pragma unroll
  for (int k = 0; k < N; k++) into[k] = narrow<T>(from[k]);
}
template <typename T, int N>
__device__ inline void narrow_pairs(T (&into)[N], const float (&from)[N]) {
#pragma unroll
  for (int k = 0; k + 1 < N; k += 2) {
    unsigned two = pack<T>(from[k], from[k + 1]);
    memcpy(&into[k], &two, sizeof two);
  }
  if (N % 2) into[N - 1] = narrow<T>(from[N - 1]);
}
template <int N> __device__ inline void narrow_all(bf16 (&into)[N], const float (&from)[N]) {
  narrow_pairs(into, from);
}
template <int N> __device__ inline void narrow_all(f16 (&into)[N], const float (&from)[N]) {
  narrow_pairs(into, from);
}

// Sums of float stay float, or double where that is what T is: what a reduction adds up in.
template <typename T> __device__ inline T lowest();
template <> __device__ inline float lowest<float>() { return -__int_as_float(0x7f800000); }
template <> __device__ inline double lowest<double>() {
  return -__longlong_as_double(0x7ff0000000000000ll);
}

// One name per function, whatever the width.
__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float log_of(float x) { return logf(x); }
__device__ inline double log_of(double x) { return log(x); }
__device__ inline float log1p_of(float x) { return log1pf(x); }
__device__ inline double log1p_of(double x) { return log1p(x); }
__device__ inline float sqrt_of(float x) { return sqrtf(x); }
__device__ inline double sqrt_of(double x) { return sqrt(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float erfc_of(float x) { return erfcf(x); }
__device__ inline double erfc_of(double x) { return erfc(x); }
__device__ inline float sin_of(float x) { return sinf(x); }
__device__ inline double sin_of(double x) { return sin(x); }
__device__ inline float cos_of(float x) { return cosf(x); }
__device__ inline double cos_of(double x) { return cos(x); }
__device__ inline float pow_of(float x, float y) { return powf(x, y); }
__device__ inline double pow_of(double x, double y) { return pow(x, y); }
__device__ inline float abs_of(float x) { return fabsf(x); }
__device__ inline double abs_of(double x) { return fabs(x); }
template <typename W> __device__ inline W larger(W x, W y) { return x > y ? x : y; }
template <typename W> __device__ inline W smaller(W x, W y) { return x < y ? x : y; }

// Addresses by value: what a kernel over many tensors is given (`Pointers` of executor/cuda/calls.py).
template <int N> struct Pointers { void* at[N]; };

// Threads that stride over elements.
__device__ inline i64 first_element() { return blockIdx.x * (i64)blockDim.x + threadIdx.x; }
__device__ inline i64 element_stride() { return gridDim.x * (i64)blockDim.x; }
