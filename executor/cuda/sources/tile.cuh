// A tile of a matrix product: left [DEPTH, channels] and right [DEPTH, columns] in shared memory,
// sums in registers.
//
// ROWS x LANES threads; thread (row, lane) has four channels, from 4 · row on, and QUADS times four
// columns, from 4 · (quad · LANES + lane) on. Sums go up in the order of the depth.
#pragma once
#include "scalar.cuh"

template <typename W> struct alignas(4 * sizeof(W)) Quad { W of[4]; };

template <typename W, int DEPTH_, int ROWS, int LANES, int QUADS> struct Tile {
  static const int DEPTH = DEPTH_;
  static const int THREADS = ROWS * LANES;
  static const int CHANNELS = 4 * ROWS;
  static const int COLUMNS = 4 * LANES * QUADS;
  // what a thread fetches of each side for one step
  static const int OF_LEFT = (CHANNELS * DEPTH + THREADS - 1) / THREADS;
  static const int OF_RIGHT = COLUMNS * DEPTH / THREADS;
  static_assert(COLUMNS * DEPTH % THREADS == 0, "every thread fetches as much of the right side");

  // one quad more, so that threads that write down the depth meet fewer banks twice
  Quad<W> left[DEPTH][ROWS + 1];
  Quad<W> right[DEPTH][LANES * QUADS + 1];

  __device__ void put_left(int depth, int channel, W value) {
    left[depth][channel / 4].of[channel % 4] = value;
  }
  __device__ void put_right(int depth, int column, W value) {
    right[depth][column / 4].of[column % 4] = value;
  }

  __device__ static int channel(int at) { return threadIdx.x / LANES * 4 + at; }
  __device__ static int column(int quad, int at) {
    return (quad * LANES + threadIdx.x % LANES) * 4 + at;
  }

  __device__ void add_to(W (&sums)[4][QUADS][4]) const {
#pragma unroll
    for (int depth = 0; depth < DEPTH; depth++) {
      Quad<W> channels = left[depth][threadIdx.x / LANES];
#pragma unroll
      for (int quad = 0; quad < QUADS; quad++) {
        Quad<W> columns = right[depth][quad * LANES + threadIdx.x % LANES];
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
          for (int j = 0; j < 4; j++) sums[i][quad][j] += channels.of[i] * columns.of[j];
        }
      }
    }
  }
};
