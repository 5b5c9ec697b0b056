// CUDA's language on a CPU, for tests. What is static and `__shared__` is shared by the block, as on
// a device; who runs when, and what is checked meanwhile, is the emulated device's (device.cpp).
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "device.h"

#define ON_CPU 1
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

#define UNCHECKED __attribute__((no_sanitize("thread"), no_sanitize("undefined")))
#define threadIdx emulated_place.thread
#define blockIdx emulated_place.block
#define blockDim emulated_place.block_dim
#define gridDim emulated_place.grid_dim
static const int warpSize = 32;

static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline unsigned __umulhi(unsigned x, unsigned y) {
  return (unsigned)(((uint64_t)x * y) >> 32);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <typename T> static inline T __ldg(const T* x) { return *x; }

static inline float half_to_float(unsigned short bits) {
  int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  float size = exponent == 31  ? (fraction ? NAN : INFINITY)
               : exponent == 0 ? ldexpf((float)fraction, -24)
                               : ldexpf((float)(fraction | 1024), exponent - 25);
  return bits & 0x8000 ? -size : size;
}
static inline unsigned short float_to_half(float x) {
  unsigned short sign = signbit(x) ? 0x8000 : 0;
  float size = fabsf(x);
  if (isnan(x)) return 0x7fff;  // as `cvt` has it
  if (size >= 65520.0f) return sign | 0x7c00;
  int exponent;
  frexpf(size, &exponent);  // size = fraction · 2^exponent, fraction in [0.5, 1)
  int unit = exponent - 11 < -24 ? -24 : exponent - 11;  // the last bit's power of two
  long steps = lrintf(ldexpf(size, -unit));              // to the nearest, ties to even
  if (size == 0) return sign;
  return sign | (unsigned short)(unit == -24 ? steps : ((unit + 24) << 10) + steps);
}
static inline unsigned short float_to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if (isnan(x)) return 0x7fff;  // as `cvt` has it
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Inlined, so that the device sees from where a barrier is called.
#define ALWAYS_INLINE static inline __attribute__((always_inline))
ALWAYS_INLINE void __syncthreads() { emulated_block_barrier(); }
ALWAYS_INLINE void __syncwarp(unsigned mask = ~0u) { emulated_warp_barrier(mask, true); }
template <typename T> ALWAYS_INLINE T __shfl_sync(unsigned mask, T value, int lane) {
  T found;
  emulated_exchange(mask, &value, sizeof value, lane, &found);
  return found;
}
template <typename T> ALWAYS_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, emulated_lane() ^ lanes);
}
template <typename T> ALWAYS_INLINE T __shfl_down_sync(unsigned mask, T value, int lanes) {
  int lane = emulated_lane();
  return __shfl_sync(mask, value, lane + lanes < 32 ? lane + lanes : lane);
}
template <typename T> ALWAYS_INLINE T __shfl_up_sync(unsigned mask, T value, int lanes) {
  int lane = emulated_lane();
  return __shfl_sync(mask, value, lane >= lanes ? lane - lanes : lane);
}
ALWAYS_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned found = 0;
  for (int lane = 0; lane < 32; lane++) {
    found |= (unsigned)(__shfl_sync(mask, predicate, lane) != 0) << lane;
  }
  return found;
}
ALWAYS_INLINE int __any_sync(unsigned mask, int predicate) { return emulated_any(mask, predicate); }
template <typename T> UNCHECKED T atomicAdd(T* at, T value) {
  T before = *at;
  *at += value;
  return before;
}
UNCHECKED static int atomicMin(int* at, int value) {
  int before = *at;
  if (value < before) *at = value;
  return before;
}

// A letter for the type of a parameter; of a struct of pointers, their number: `[480]`.
template <typename T> char* letters(char* end) {
  if (std::is_class<T>::value) return end + sprintf(end, "[%zu]", sizeof(T) / sizeof(void*));
  *end = '?';
  if (std::is_pointer<T>::value) *end = 'p';
  if (std::is_same<T, int>::value) *end = 'i';
  if (std::is_same<T, unsigned>::value) *end = 'u';
  if (std::is_same<T, long long>::value) *end = 'l';
  if (std::is_same<T, float>::value) *end = 'f';
  if (std::is_same<T, double>::value) *end = 'd';
  return end + 1;
}

extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[], __bss_start[], _end[];

// run(grid, block, arguments): every block of a grid; the first fault, or null.
template <auto kernel> struct Emulated;
template <typename... A, void (*kernel)(A...)> struct Emulated<kernel> {
  template <size_t... I> UNCHECKED static void apply(void** args, std::index_sequence<I...>) {
    kernel(*(A*)args[I]...);
  }
  UNCHECKED static void call(void** args) { apply(args, std::index_sequence_for<A...>()); }
  static const char* run(const unsigned* grid, const unsigned* block, void** args) {
    return emulated_run(grid, block, call, args, {__ehdr_start, __bss_start, _end, ON_CPU_CHECKED});
  }
  // Of every parameter, so that an argument of another type is a failing test.
  static int kinds(char* found) {
    ((found = letters<A>(found)), ...);
    *found = 0;
    return sizeof...(A);
  }
};
