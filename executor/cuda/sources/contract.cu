// A product of two operands of any strides, for what the vendor's library cannot be told.
//
// Labels are batch, left (of a and d), contracted (of a and b) or right (of b and d); a table per
// class and operand holds the offset of every index, in elements. A block computes a tile of
// TILE x TILE of d, of which a thread has CELL x CELL, and adds up in steps of DEPTH, in order.
#include "scalar.cuh"

const int TILE = 64, DEPTH = 16, SIDE = 16, CELL = TILE / SIDE, THREADS = SIDE * SIDE;

// One tile of an operand into shared memory, zero outside; neighbours in memory go to neighbours
// among the threads: along the contracted label, or along the other.
template <typename W, typename T>
__device__ inline void load_tile(W (*tile)[TILE + 1], const T* from, const i64* rows,
                                 const i64* steps, i64 first_row, i64 first_step, i64 row_count,
                                 i64 step_count, int along_steps) {
  for (int at = threadIdx.x; at < TILE * DEPTH; at += THREADS) {
    int row = along_steps ? at / DEPTH : at % TILE;
    int step = along_steps ? at % DEPTH : at / TILE;
    bool inside = first_row + row < row_count && first_step + step < step_count;
    tile[step][row] =
        inside ? (W)wide(from[rows[first_row + row] + steps[first_step + step]]) : (W)0;
  }
}

template <typename A, typename B, typename D>
__global__ void __launch_bounds__(256)
    contract(const A* a, const B* b, D* d, const i64* a_batch, const i64* a_left,
             const i64* a_contracted, const i64* b_batch, const i64* b_contracted,
             const i64* b_right, const i64* d_batch, const i64* d_left, const i64* d_right,
             int a_along_contracted, int b_along_contracted, i64 batch, i64 left, i64 contracted,
             i64 right) {
  typedef decltype(Wide<A>() * Wide<B>() * Wide<D>()) W;
  __shared__ W a_tile[DEPTH][TILE + 1];
  __shared__ W b_tile[DEPTH][TILE + 1];
  int down = threadIdx.x / SIDE, across = threadIdx.x % SIDE;
  i64 tiles_right = (right + TILE - 1) / TILE, tiles_left = (left + TILE - 1) / TILE;
  i64 tiles = batch * tiles_left * tiles_right;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    i64 first_right = tile % tiles_right * TILE;
    i64 first_left = tile / tiles_right % tiles_left * TILE;
    i64 pair = tile / tiles_right / tiles_left;
    W sums[CELL][CELL] = {};
    for (i64 first = 0; first < contracted; first += DEPTH) {
      load_tile(a_tile, a + a_batch[pair], a_left, a_contracted, first_left, first, left,
                contracted, a_along_contracted);
      load_tile(b_tile, b + b_batch[pair], b_right, b_contracted, first_right, first, right,
                contracted, b_along_contracted);
      __syncthreads();
      for (int step = 0; step < DEPTH; step++) {
        for (int i = 0; i < CELL; i++) {
          for (int j = 0; j < CELL; j++) {
            sums[i][j] += a_tile[step][down + i * SIDE] * b_tile[step][across + j * SIDE];
          }
        }
      }
      __syncthreads();  // both tiles have been read
    }
    for (int i = 0; i < CELL; i++) {
      i64 row = first_left + down + i * SIDE;
      for (int j = 0; j < CELL; j++) {
        i64 column = first_right + across + j * SIDE;
        if (row < left && column < right) {
          d[d_batch[pair] + d_left[row] + d_right[column]] = narrow<D>(sums[i][j]);
        }
      }
    }
  }
}
