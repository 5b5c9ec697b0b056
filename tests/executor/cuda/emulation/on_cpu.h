// CUDA's language on a CPU, for tests: a block's threads are fibers of one thread, blocks run one
// after the other. What is static and `__shared__` is shared by the block, as on a device.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

#define ON_CPU 1
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 { unsigned x, y, z; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;
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
  if (isnan(x)) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;
  int exponent;
  frexpf(size, &exponent);  // size = fraction · 2^exponent, fraction in [0.5, 1)
  int unit = exponent - 11 < -24 ? -24 : exponent - 11;  // the last bit's power of two
  long steps = lrintf(ldexpf(size, -unit));              // to the nearest, ties to even
  if (size == 0) return sign;
  return sign | (unsigned short)(unit == -24 ? steps : ((unit + 24) << 10) + steps);
}

namespace fibers {
const int MAX = 1024;
const size_t STACK_BYTES = 64 * 1024;
static jmp_buf resume[MAX], scheduler;
static ucontext_t start[MAX], back;
static char* stacks;
static bool begun[MAX], ended[MAX];
static int current, count;
static int arrived_block, block_round;
static int arrived_warp[MAX / 32], warp_round[MAX / 32], warp_size[MAX / 32];
static void (*body)(void**);
static void** arguments;
static char exchanged[MAX][16];
static bool finished_any;

static void set_thread(int index) {
  current = index;
  threadIdx.x = index % blockDim.x;
  threadIdx.y = index / blockDim.x % blockDim.y;
  threadIdx.z = index / (blockDim.x * blockDim.y);
}
static void yield() {
  int here = current;
  if (!_setjmp(resume[here])) _longjmp(scheduler, 1);
}
static void trampoline() {
  body(arguments);
  ended[current] = true;
  _longjmp(scheduler, 1);
}
static void block_barrier() {
  int round = block_round;
  int alive = 0;
  for (int i = 0; i < count; i++) alive += !ended[i];
  if (alive != count) abort();  // a barrier that some threads have left: undefined on a device
  if (++arrived_block == count) {
    arrived_block = 0;
    block_round++;
    return;
  }
  while (block_round == round) yield();
}
static void warp_barrier() {
  int warp = current / 32, round = warp_round[warp];
  if (++arrived_warp[warp] == warp_size[warp]) {
    arrived_warp[warp] = 0;
    warp_round[warp]++;
    return;
  }
  while (warp_round[warp] == round) yield();
}
static void run_block(void (*kernel)(void**), void** args) {
  if (!stacks) stacks = (char*)malloc(MAX * STACK_BYTES);
  count = blockDim.x * blockDim.y * blockDim.z;
  if (count > MAX) abort();
  body = kernel;
  arguments = args;
  arrived_block = block_round = 0;
  for (int i = 0; i < count; i++) begun[i] = ended[i] = false;
  for (int w = 0; w * 32 < count; w++) {
    arrived_warp[w] = warp_round[w] = 0;
    warp_size[w] = count - w * 32 < 32 ? count - w * 32 : 32;
  }
  volatile int left = count;
  while (left) {
    left = 0;
    for (volatile int i = 0; i < count; i++) {
      if (ended[i]) continue;
      set_thread(i);
      if (!_setjmp(scheduler)) {
        if (begun[i]) _longjmp(resume[i], 1);
        begun[i] = true;
        getcontext(&start[i]);
        start[i].uc_stack.ss_sp = stacks + i * STACK_BYTES;
        start[i].uc_stack.ss_size = STACK_BYTES;
        start[i].uc_link = nullptr;
        makecontext(&start[i], trampoline, 0);
        setcontext(&start[i]);
      }
      if (!ended[i]) left = left + 1;
    }
  }
}
template <typename T> static T exchange(T value, int from) {
  int warp = current / 32 * 32;
  memcpy(exchanged[current], &value, sizeof value);
  warp_barrier();
  T found;
  memcpy(&found, exchanged[warp + from], sizeof found);
  warp_barrier();
  return found;
}
}  // namespace fibers

static inline void __syncthreads() { fibers::block_barrier(); }
static inline void __syncwarp(unsigned = ~0u) { fibers::warp_barrier(); }
template <typename T> static inline T __shfl_xor_sync(unsigned, T value, int lane) {
  return fibers::exchange(value, (fibers::current % 32) ^ lane);
}
template <typename T> static inline T __shfl_down_sync(unsigned, T value, int delta) {
  int lane = fibers::current % 32;
  return fibers::exchange(value, lane + delta < 32 ? lane + delta : lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned, T value, int delta) {
  int lane = fibers::current % 32;
  return fibers::exchange(value, lane >= delta ? lane - delta : lane);
}
template <typename T> static inline T __shfl_sync(unsigned, T value, int lane) {
  return fibers::exchange(value, lane);
}
static inline unsigned __ballot_sync(unsigned, int predicate) {
  unsigned found = 0;
  for (int lane = 0; lane < 32; lane++) {
    found |= (unsigned)(fibers::exchange(predicate, lane) != 0) << lane;
  }
  return found;
}
template <typename T> static inline T atomicAdd(T* at, T value) {
  T before = *at;
  *at += value;
  return before;
}
static inline int atomicMin(int* at, int value) {
  int before = *at;
  if (value < before) *at = value;
  return before;
}

template <typename T> constexpr char letter() {
  if (std::is_pointer<T>::value) return 'p';
  if (std::is_same<T, int>::value) return 'i';
  if (std::is_same<T, unsigned>::value) return 'u';
  if (std::is_same<T, long long>::value) return 'l';
  if (std::is_same<T, float>::value) return 'f';
  if (std::is_same<T, double>::value) return 'd';
  return '?';
}

// run(grid, block, arguments): every block of a grid, one after the other.
template <auto kernel> struct Emulated;
template <typename... A, void (*kernel)(A...)> struct Emulated<kernel> {
  template <size_t... I> static void apply(void** args, std::index_sequence<I...>) {
    kernel(*(A*)args[I]...);
  }
  static void call(void** args) { apply(args, std::index_sequence_for<A...>()); }
  static void run(const unsigned* grid, const unsigned* block, void** args) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned z = 0; z < grid[2]; z++)
      for (unsigned y = 0; y < grid[1]; y++)
        for (unsigned x = 0; x < grid[0]; x++) {
          blockIdx = {x, y, z};
          fibers::run_block(call, args);
        }
  }
  // One letter per parameter, so that an argument of another type is a failing test.
  static int kinds(char* found) {
    char all[] = {letter<A>()..., 0};
    memcpy(found, all, sizeof all);
    return sizeof...(A);
  }
};
