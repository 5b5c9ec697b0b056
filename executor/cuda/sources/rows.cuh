// Rows in packs of 16 bytes, which a thread reads and writes at once.
//
// Tensors begin on a multiple of 16 bytes. Where rows hold a whole number of packs, a thread takes
// its packs by column (take, put). Otherwise a row begins and ends inside a pack: `Row` goes over
// the packs that touch it and leaves alone what is not its own.
#pragma once
#include "packs.cuh"
#include "reduce.cuh"

// A row of any length (below 2^31), of tensors of T. `at` is a column, that of a pack's first
// element: below 0 where the row begins inside of its first pack.
template <typename T> struct Row {
  static const int N = 16 / sizeof(T);
  i64 start;
  int columns;

  __device__ Row(i64 row, i64 columns) : start(row * columns), columns((int)columns) {}
  __device__ int first() const { return (int)threadIdx.x * N - (int)(start % N); }
  __device__ int stride() const { return (int)blockDim.x * N; }
  __device__ bool has_pack(int at) const { return at >= 0 && at + N <= columns; }
  __device__ bool has(int at) const { return at >= 0 && at < columns; }

  // What lies outside of the row reads as `outside`, and is not written.
  template <typename W>
  __device__ void take_at(W (&into)[N], const T* tensor, int at, W outside) const {
    const T* from = tensor + start + at;
    if (has_pack(at)) return take<N>(into, from);
    for (int k = 0; k < N; k++) into[k] = has(at + k) ? (W)wide(from[k]) : outside;
  }
  template <typename W> __device__ void put_at(T* tensor, int at, const W (&from)[N]) const {
    T* into = tensor + start + at;
    if (has_pack(at)) return put<N>(into, from);
    for (int k = 0; k < N; k++) {
      if (has(at + k)) into[k] = narrow<T>(from[k]);
    }
  }
};

// The same row as whole packs from column `head` on, which begin on a multiple of a pack, and the few
// elements on both sides. A thread has every so many of the packs, and one of the elements or none;
// a block has as many threads as there may be of these.
template <typename T> struct Cut {
  static const int N = 16 / sizeof(T);
  i64 start;
  int head, packs, columns;

  // Rows begin `pitch` elements apart.
  __device__ Cut(i64 row, i64 row_columns, i64 pitch)
      : start(row * pitch), columns((int)row_columns) {
    head = smaller((int)((N - start % N) % N), columns);
    packs = (columns - head) / N;
  }
  __device__ int at(int pack) const { return head + pack * N; }
  __device__ int edge() const {
    int here = threadIdx.x, column = here < head ? here : here + packs * N;
    return column < columns && here < 2 * N ? column : -1;
  }
  // work(i, column) on this thread's packs, MANY of which fetch(i, column) has brought before.
  template <int MANY, typename F, typename G> __device__ void each(F fetch, G work) const {
    for (int pack = threadIdx.x; pack < packs; pack += MANY * blockDim.x) {
#pragma unroll
      for (int i = 0; i < MANY; i++) {
        int here = pack + i * (int)blockDim.x;
        if (here < packs) fetch(i, at(here));
      }
#pragma unroll
      for (int i = 0; i < MANY; i++) {
        int here = pack + i * (int)blockDim.x;
        if (here < packs) work(i, at(here));
      }
    }
  }
};
