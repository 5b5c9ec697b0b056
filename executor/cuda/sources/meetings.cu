// Blocks of tensors where ranks meet: laid one after the other for a library of flat collectives,
// and put back; or, where members share a device, read from where they lie.
//
// A block is one of the parts into which a dim cuts a tensor: runs of contiguous elements, one every
// so many elements (the stride). What is only moved is moved in the widest unit that divides a run.
#include "reduce.cuh"

struct alignas(16) bytes16 { u64 low, high; };
typedef u64 bytes8;
typedef unsigned bytes4;
typedef unsigned short bytes2;

// Where element `at` of a block lies, from the block's first on.
__device__ inline i64 place(i64 at, i64 run, i64 stride) {
  return at < run ? at : at / run * stride + at % run;
}

// From [outer, inner, length] to [inner, outer, length].
template <typename U>
__global__ void transpose_blocks(const U* from, U* to, i64 outer, i64 inner, i64 length,
                                 i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    i64 row = at / length, of_outer = row % outer, of_inner = row / outer;
    to[at] = from[(of_outer * inner + of_inner) * length + at % length];
  }
}

// A block that is cut along one dim, to where it is one along another.
template <typename U>
__global__ void move_block(const U* from, U* to, i64 from_run, i64 from_stride, i64 to_run,
                           i64 to_stride, i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    to[place(at, to_run, to_stride)] = from[place(at, from_run, from_stride)];
  }
}

// The larger, or what is no number where one is none.
struct Largest {
  template <typename W> __device__ static inline W of(W x, W y) { return y > x || y != y ? y : x; }
};

// Adds a block to contiguous elements, or takes the maximum; 16 bits are joined as float, rounded.
template <typename T, typename Join>
__global__ void join_block(const T* from, T* to, i64 run, i64 stride, i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    to[at] = narrow<T>(Join::of(wide(to[at]), wide(from[place(at, run, stride)])));
  }
}
