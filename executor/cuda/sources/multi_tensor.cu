// Work on many tensors in one launch. Their addresses come by value: those of one kind of operand
// after the other, TENSORS of each, of which the last may be there only to fill the struct.
//
// A table cuts all tensors into chunks of equal length, but for the last of each: a block has one
// (executor/cuda/kernels/multi_tensor/tensor_chunks.py).
#include "squares.cuh"
#include "updates.cuh"

template <int COLUMNS, int TENSORS> struct Chunk {
  i64 tensor, start, count;

  // Rows of the table: tensor, first element and elements of every chunk.
  __device__ Chunk(const i64* table) {
    const i64* row = table + 3 * (i64)blockIdx.x;
    tensor = row[0], start = row[1], count = row[2];
  }
  template <typename T>
  __device__ T* of(const Pointers<COLUMNS * TENSORS>& tensors, int column) const {
    return (T*)tensors.at[column * TENSORS + tensor] + start;
  }
};

template <typename W, typename G, typename T, typename R, int TENSORS>
__global__ void adamw_of_many(const __grid_constant__ Pointers<5 * TENSORS> tensors,
                              const i64* table, const Control* control, const T* totals,
                              const R* rate, double beta1, double beta2, double epsilon,
                              double decay, double clip_norm) {
  AdamW<Wide<W>> update(control, totals, rate, beta1, beta2, epsilon, decay, clip_norm);
  Chunk<5, TENSORS> chunk(table);
  update.over(chunk.template of<const W>(tensors, 0), chunk.template of<const G>(tensors, 1),
              chunk.template of<W>(tensors, 2), chunk.template of<W>(tensors, 3),
              chunk.template of<W>(tensors, 4), threadIdx.x, blockDim.x, chunk.count);
}

template <typename W, typename G, typename T, typename R, int TENSORS>
__global__ void sgd_of_many(const __grid_constant__ Pointers<3 * TENSORS> tensors,
                            const i64* table, const Control* control, const T* totals,
                            const R* rate, double decay, double clip_norm) {
  Descent<Wide<W>> update(control, totals, rate, 0.0, decay, clip_norm);
  Chunk<3, TENSORS> chunk(table);
  update.template over<false>(
      chunk.template of<const W>(tensors, 0), chunk.template of<const G>(tensors, 1),
      chunk.template of<W>(tensors, 2), (W*)nullptr, threadIdx.x, blockDim.x, chunk.count);
}

template <typename W, typename G, typename T, typename R, int TENSORS>
__global__ void sgd_momentum_of_many(const __grid_constant__ Pointers<4 * TENSORS> tensors,
                                     const i64* table, const Control* control, const T* totals,
                                     const R* rate, double momentum, double decay,
                                     double clip_norm) {
  Descent<Wide<W>> update(control, totals, rate, momentum, decay, clip_norm);
  Chunk<4, TENSORS> chunk(table);
  update.template over<true>(chunk.template of<const W>(tensors, 0),
                             chunk.template of<const G>(tensors, 1),
                             chunk.template of<W>(tensors, 2), chunk.template of<W>(tensors, 3),
                             threadIdx.x, blockDim.x, chunk.count);
}

// y = x, or y += x, of (x, y): in the wider of both types. Two packs of a thread are on their way
// at once.
template <bool ADDED, typename X, typename Y, int TENSORS>
__global__ void move_many(const __grid_constant__ Pointers<2 * TENSORS> tensors,
                          const i64* table) {
  typedef decltype(Wide<X>() + Wide<Y>()) W;
  const int N = pack_of<X, Y>();
  Chunk<2, TENSORS> chunk(table);
  const X* x = chunk.template of<const X>(tensors, 0);
  Y* y = chunk.template of<Y>(tensors, 1);
  i64 stride = (i64)blockDim.x * N;
  for (i64 start = (i64)threadIdx.x * N; start < chunk.count; start += 2 * stride) {
    Pack<X, N> given[2];
    Pack<Y, N> made[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      given[i] = load_pack<N>(x, start + i * stride, chunk.count);
      if (ADDED) made[i] = load_pack<N>(y, start + i * stride, chunk.count);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        W value = (W)wide(given[i].of[k]);
        values[k] = ADDED ? (W)wide(made[i].of[k]) + value : value;
      }
      narrow_all(made[i].of, values);
      store_pack(y, start + i * stride, chunk.count, made[i]);
    }
  }
}

// The sum of squares of every chunk of x, of (x, where its sum goes).
template <typename X, int TENSORS>
__global__ void squares_of_chunks(const __grid_constant__ Pointers<2 * TENSORS> tensors,
                                  const i64* table, double* parts) {
  Chunk<2, TENSORS> chunk(table);
  double sum = squares(chunk.template of<const X>(tensors, 0), threadIdx.x, blockDim.x, chunk.count);
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// A block adds up the chunks of a tensor, which are those from firsts[tensor] on.
template <typename Y, int TENSORS>
__global__ void sums_of_chunks(const __grid_constant__ Pointers<2 * TENSORS> tensors,
                               const i64* firsts, const double* parts) {
  double sum = 0;
  for (i64 at = firsts[blockIdx.x] + threadIdx.x; at < firsts[blockIdx.x + 1]; at += blockDim.x) {
    sum += parts[at];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) *(Y*)tensors.at[TENSORS + blockIdx.x] = narrow<Y>((Wide<Y>)sum);
}
