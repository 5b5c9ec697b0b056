// The matrix units ("tensor cores") and the asynchronous copies that feed them, one warp at a time.
//
// A product is of 16 x 16 by 16 x 8 elements of 16 bits (T: bf16 or f16) and adds up in float. What
// lane l of a warp holds (PTX ISA, mma.m16n8k16), with row = l / 4 and pair = 2 (l % 4):
//
//   left   a[0] (row, pair), a[1] (row + 8, pair), a[2] (row, pair + 8), a[3] (row + 8, pair + 8)
//   right  b[0] (pair, row), b[1] (pair + 8, row): `row` counts columns here
//   sums   d[0], d[1] (row, pair and pair + 1), d[2], d[3] (row + 8, pair and pair + 1)
//
// A register of 32 bits has two neighbours, the first in its lower half: of a left side along its
// rows, of a right side along its columns. So the sums of two neighbouring products are, packed,
// the left side of a next one (`pack_left`). All lanes of a warp call these functions together. On
// a CPU the lanes exchange what they hold, in the same layout.
#pragma once
#include "scalar.cuh"

// `name`: the shared memory that a launch asks for (`Launch.shared_bytes`), bytes without a type.
#ifdef ON_CPU
#define DYNAMIC_SHARED(name) unsigned char* name = emulated_shared
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

// The address of shared memory within its own space; the compiler adds what is constant to it.
__device__ inline unsigned shared_address(const void* at) {
  return (unsigned)__cvta_generic_to_shared(at);
}
#endif

// Sums of two products that are neighbours along their columns, as a left side.
template <typename T>
__device__ inline void pack_left(unsigned (&a)[4], const float (&first)[4],
                                 const float (&second)[4]) {
  a[0] = pack<T>(first[0], first[1]);
  a[1] = pack<T>(first[2], first[3]);
  a[2] = pack<T>(second[0], second[1]);
  a[3] = pack<T>(second[2], second[3]);
}

// sums += left · right.
template <typename T>
__device__ inline void mma_16816(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
#ifdef ON_CPU
template <>
inline void mma_16816<bf16>(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulated_product(sums, a, b, true);
}
template <>
inline void mma_16816<f16>(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulated_product(sums, a, b, false);
}
#else
#define MMA_16816(T, NAME)                                                                       \
  template <>                                                                                    \
  __device__ inline void mma_16816<T>(float (&sums)[4], const unsigned (&a)[4],                  \
                                      const unsigned (&b)[2]) {                                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                  \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"               \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));            \
  }
MMA_16816(bf16, "bf16")
MMA_16816(f16, "f16")
#endif

// Four matrices of 8 x 8 out of shared memory: lane l names row l % 8 of matrix l / 8, aligned to its
// 16 bytes; to[j] gets of matrix j (row, pair) and its neighbour, transposed (pair, row).
template <typename T> __device__ inline void load_matrix_x4(unsigned (&to)[4], const T* row) {
#ifdef ON_CPU
  emulated_rows(to, *(const EmulatedRow*)row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}
template <typename T> __device__ inline void load_matrix_x4_trans(unsigned (&to)[4], const T* row) {
#ifdef ON_CPU
  emulated_rows(to, *(const EmulatedRow*)row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// A tile of 16 x 16 whose rows are `stride` elements apart (a multiple of 8; no bank is met twice
// where it is an odd one) as a left side: as it lies, and transposed.
template <typename T>
__device__ inline void load_left(unsigned (&a)[4], const T* tile, int stride) {
  int lane = threadIdx.x % 32;
  load_matrix_x4(a, tile + (lane % 16) * stride + lane / 16 * 8);
}
template <typename T>
__device__ inline void load_left_trans(unsigned (&a)[4], const T* tile, int stride) {
  int lane = threadIdx.x % 32;
  load_matrix_x4_trans(a, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}
// The right sides of two products, neighbours along their columns: of a tile [columns, depth], and
// of one [depth, columns].
template <typename T>
__device__ inline void load_right(unsigned (&first)[2], unsigned (&second)[2], const T* tile,
                                  int stride) {
  int lane = threadIdx.x % 32;
  unsigned found[4];
  load_matrix_x4(found, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
  first[0] = found[0];
  first[1] = found[1];
  second[0] = found[2];
  second[1] = found[3];
}
template <typename T>
__device__ inline void load_right_trans(unsigned (&first)[2], unsigned (&second)[2], const T* tile,
                                        int stride) {
  int lane = threadIdx.x % 32;
  unsigned found[4];
  load_matrix_x4_trans(found, tile + (lane % 16) * stride + lane / 16 * 8);
  first[0] = found[0];
  first[1] = found[1];
  second[0] = found[2];
  second[1] = found[3];
}

// Begin to copy 16 bytes (4) into shared memory, both sides aligned to them; zeros, and nothing is
// read, where `there` is false (`from` is then any address). Each thread has its own copies. They
// are done after a `wait` of this thread, and other threads see them after a barrier behind it.
__device__ inline void copy_async_16(void* to, const void* from, bool there = true) {
#ifdef ON_CPU
  emulated_copy(to, from, 16, there);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(there ? 16 : 0)
               : "memory");
#endif
}
__device__ inline void copy_async_4(void* to, const void* from, bool there = true) {
#ifdef ON_CPU
  emulated_copy(to, from, 4, there);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 4 : 0)
               : "memory");
#endif
}

// What was begun since the last `commit` is a group; `wait<N>` until all but the last N groups are
// done.
__device__ inline void commit() {
#ifdef ON_CPU
  emulated_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> __device__ inline void wait() {
#ifdef ON_CPU
  emulated_wait(N);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
