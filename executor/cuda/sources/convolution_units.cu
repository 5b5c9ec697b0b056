// Convolution and its gradients on the matrix units: bf16 and f16, one group, channels last.
//
// No columns of an image are ever written: what windows read comes in pieces of 8 channels, copied
// behind the products of earlier steps. The gradient of the input goes by classes of inputs as in
// convolution.cu. Where 8 does not divide the channels, pieces are put together value by value.
// Samples and weights have fewer than 2^31 values. Shape legend: see windows.cuh.
#include "matrix_units.cuh"
#include "windows.cuh"

const int UNIT_THREADS = 256;
const int STEP = 32;  // values along the contracted dim that a step multiplies
const int STAGES = 3;

struct alignas(16) Piece { unsigned words[4]; };
template <typename O> struct alignas(2 * sizeof(O)) Pair { O at[2]; };

// Where a piece of 8 lies in a tile of rows of COLUMNS values: turned row by row, so that the rows of
// a matrix of 8 x 8 meet no bank twice.
template <int COLUMNS> __device__ inline int piece_at(int row, int piece) {
  int turn = COLUMNS == 32 ? row / 2 % 4 : row % 8;
  return row * COLUMNS + (piece ^ turn) * 8;
}

// Products of a left side [ROWS, STEP] and a right side [COLUMNS, STEP] by eight warps, each with 32
// columns; a side that is TURNED lies as [STEP, …].
template <typename T, int ROWS, int COLUMNS, bool LEFT_TURNED, bool RIGHT_TURNED> struct Units {
  static const int LEFT = ROWS * STEP, RIGHT = COLUMNS * STEP;
  static const int ACROSS = COLUMNS / 32, DOWN = 8 / ACROSS;
  static const int TALL = ROWS / DOWN;  // rows of a warp
  static const int TILES = TALL / 16;

  float sums[TILES][4][4];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums[m][n][i] = 0;
      }
    }
  }

  // Row and column of sums[m][n][i].
  __device__ static int row(int m, int i) {
    return threadIdx.x / 32 / ACROSS * TALL + m * 16 + threadIdx.x % 32 / 4 + i / 2 * 8;
  }
  __device__ static int column(int n, int i) {
    return threadIdx.x / 32 % ACROSS * 32 + n * 8 + threadIdx.x % 4 * 2 + i % 2;
  }

  __device__ void multiply(const T* left, const T* right) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first_row = warp / ACROSS * TALL, first_column = warp % ACROSS * 32;
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
      unsigned b[4][2];
#pragma unroll
      for (int n = 0; n < 2; n++) {
        int at = first_column + n * 16;
        unsigned found[4];
        if (RIGHT_TURNED) {
          int piece = at / 8 + lane / 16;
          load_matrix_x4_trans(found, right + piece_at<COLUMNS>(k * 16 + lane % 16, piece));
        } else {
          int down = at + lane % 8 + lane / 16 * 8;
          load_matrix_x4(found, right + piece_at<STEP>(down, k * 2 + lane / 8 % 2));
        }
        b[2 * n][0] = found[0];
        b[2 * n][1] = found[1];
        b[2 * n + 1][0] = found[2];
        b[2 * n + 1][1] = found[3];
      }
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        int at = first_row + m * 16;
        unsigned a[4];
        if (LEFT_TURNED) {
          int down = k * 16 + lane % 8 + lane / 16 * 8;
          load_matrix_x4_trans(a, left + piece_at<ROWS>(down, at / 8 + lane / 8 % 2));
        } else {
          load_matrix_x4(a, left + piece_at<STEP>(at + lane % 16, k * 2 + lane / 16));
        }
#pragma unroll
        for (int n = 0; n < 4; n++) mma_16816<T>(sums[m][n], a, b[n]);
      }
    }
  }
};

// Of `Windows`, what is needed again and again.
struct Reach {
  int rows, columns, depth, window_y, window_x, tap_y, tap_x;
  __device__ Reach(const Windows& of)
      : rows((int)of.rows), columns((int)of.columns), depth((int)of.depth),
        window_y((int)of.window_y), window_x((int)of.window_x), tap_y((int)of.tap_y),
        tap_x((int)of.tap_x) {}
};

// The value under a window of number `number`, taken apart; its successors are found by `pass`.
struct Under {
  int channel, column, row;
  __device__ Under() {}
  __device__ Under(const Reach& of, int number) {
    int place = number / of.depth, across = larger(of.window_x, 1);
    channel = number % of.depth;
    column = place % across;
    row = place / across;
  }
  __device__ void pass(const Reach& of, int steps) {
    channel += steps;
    while (channel >= of.depth) {
      channel -= of.depth;
      if (++column >= of.window_x) {
        column = 0;
        row++;
      }
    }
  }
};

// Where a window at (y, x) of a sample reads its value `under` in it; -1: in the padding, or behind
// the last value.
__device__ inline int read_at(const Reach& of, int y, int x, const Under& under) {
  y += under.row * of.tap_y;
  x += under.column * of.tap_x;
  bool inside = under.row < of.window_y && (unsigned)y < (unsigned)of.rows &&
                (unsigned)x < (unsigned)of.columns;
  return inside ? (y * of.columns + x) * of.depth + under.channel : -1;
}

const int NOWHERE = -(1 << 30);  // the row of a window that is none: every tap is in the padding

// A piece of what a window reads, from `under` on; all in one go where 8 divides the depth.
template <bool WHOLE, typename T>
__device__ inline void fetch_window(T* to, const T* sample, const Reach& of, int y, int x,
                                    const Under& under) {
  if (WHOLE) {
    int at = read_at(of, y, x, under);
    copy_async_16(to, sample + at, at >= 0);  // which reads nothing where it is not there
  } else {
    Piece found = {};
    Under each = under;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = read_at(of, y, x, each);
      unsigned bits = at < 0 ? 0u : sample[at].bits;
      found.words[i / 2] |= bits << (i % 2 * 16);
      each.pass(of, 1);
    }
    *(Piece*)to = found;
  }
}

// Up to 8 neighbours, of which `count` are there.
template <bool WHOLE, typename T>
__device__ inline void fetch_row(T* to, const T* from, int count) {
  if (WHOLE) {
    copy_async_16(to, from, count > 0);
  } else {
    Piece found = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      unsigned bits = i < count ? from[i].bits : 0u;
      found.words[i / 2] |= bits << (i % 2 * 16);
    }
    *(Piece*)to = found;
  }
}

// made [places, channels] = image [places, taps] · weight [channels, taps]ᵀ by class. Weights lie
// as [channels, taps], or BACKWARD as [taps, channels]. DEPTH8, MADE8: whether 8 divides these.
template <typename T, int COLUMNS, bool BACKWARD, bool DEPTH8, bool MADE8>
__global__ void __launch_bounds__(UNIT_THREADS, 2)
    conv_units(const T* image, const T* weight, T* made, const Windows* classes,
               int channel_tiles, int place_tiles) {
  const int ROWS = 128;
  typedef Units<T, ROWS, COLUMNS, false, BACKWARD> Here;
  __shared__ Piece room[STAGES * (Here::LEFT + Here::RIGHT) / 8];
  T* tiles = (T*)room;
  int thread = threadIdx.x;
  int first_channel = blockIdx.x % channel_tiles * COLUMNS, tile_of = blockIdx.x / channel_tiles;
  i64 first_place = (i64)(tile_of % place_tiles) * ROWS;
  classes += tile_of / place_tiles;
  const Windows& of = *classes;
  i64 end = places(of);
  if (first_place >= end) return;  // classes differ by a row or a column
  const Reach reach(of);
  int depth = (int)taps(of), steps = (depth + STEP - 1) / STEP;

  // left: a thread has one piece of each of two rows
  const T* samples[2];
  int ys[2], xs[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    Place place = place_of<true>(of, 0, first_place + thread / 4 + i * 64, end);
    samples[i] = place.source < 0 ? image : image + place.source;
    ys[i] = place.source < 0 ? NOWHERE : place.y;
    xs[i] = place.x;
  }
  Under under(reach, thread % 4 * 8);
  // right: pieces along the taps, or along the channels
  const int ACROSS = BACKWARD ? COLUMNS / 8 : 4, DOWN = UNIT_THREADS / ACROSS;
  const int OF_RIGHT = (BACKWARD ? STEP : COLUMNS) / DOWN;
  int piece = thread % ACROSS, down = thread / ACROSS;
  const T* right = weight;
  int left_over;  // channels from the piece on
  Under tap;
  int of_channel = (int)of.weight_depth, of_row = (int)of.weight_y, of_column = (int)of.weight_x;
  if (BACKWARD) {
    right += of.weight_first + first_channel + piece * 8;
    left_over = (int)of.target_channels - first_channel - piece * 8;
    tap = Under(reach, down);
  } else {
    right += (first_channel + down) * of.weight_target + piece * 8;
    left_over = (int)of.target_channels - first_channel - down;
  }

  Here product;
  product.clear();
  for (int step = 1 - STAGES; step < steps; step++) {
    wait<STAGES - 2>();
    __syncthreads();
    int next = step + STAGES - 1;
    if (next < steps) {
      T* tile = tiles + next % STAGES * (Here::LEFT + Here::RIGHT);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        T* to = tile + piece_at<STEP>(thread / 4 + i * 64, thread % 4);
        fetch_window<DEPTH8>(to, samples[i], reach, ys[i], xs[i], under);
      }
      under.pass(reach, STEP);
      tile += Here::LEFT;
#pragma unroll
      for (int i = 0; i < OF_RIGHT; i++) {
        int row = down + i * DOWN;
        if (BACKWARD) {
          int from = tap.channel * of_channel + tap.row * of_row + tap.column * of_column;
          bool there = tap.row < reach.window_y;
          fetch_row<MADE8>(tile + piece_at<COLUMNS>(row, piece), right + from,
                           there ? left_over : 0);
          tap.pass(reach, DOWN);
        } else {
          bool there = i * DOWN < left_over;
          fetch_row<DEPTH8>(tile + piece_at<STEP>(row, piece), right + i * DOWN * depth,
                            there ? depth - next * STEP - piece * 8 : 0);
        }
      }
      if (!BACKWARD) right += STEP;
    }
    commit();
    if (step >= 0) {
      const T* tile = tiles + step % STAGES * (Here::LEFT + Here::RIGHT);
      product.multiply(tile, tile + Here::LEFT);
    }
  }

  // through shared memory, so that neighbouring threads write neighbours
  const int WIDTH = COLUMNS + 8;
  static_assert(ROWS * (WIDTH * sizeof(T) + sizeof(i64)) <= sizeof(room), "the tiles' room will do");
  i64* targets = (i64*)(tiles + ROWS * WIDTH);
  wait<0>();
  __syncthreads();
  if (thread < ROWS) {
    i64 place = (i64)(blockIdx.x / channel_tiles % place_tiles) * ROWS + thread;
    targets[thread] = place_of<true>(of, 0, place, places(of)).target;
  }
#pragma unroll
  for (int m = 0; m < Here::TILES; m++) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        unsigned two = pack<T>(product.sums[m][n][i], product.sums[m][n][i + 1]);
        *(unsigned*)(tiles + Here::row(m, i) * WIDTH + Here::column(n, i)) = two;
      }
    }
  }
  __syncthreads();
  for (int at = thread; at < ROWS * COLUMNS / 8; at += UNIT_THREADS) {
    int row = at / (COLUMNS / 8), first = at % (COLUMNS / 8) * 8;
    i64 target = targets[row], channel = (i64)(blockIdx.x % channel_tiles) * COLUMNS + first;
    if (target < 0 || channel >= of.target_channels) continue;
    const T* from = tiles + row * WIDTH + first;
    T* to = made + target + channel;
    if (MADE8) {
      *(Piece*)to = *(const Piece*)from;
    } else {
      for (int i = 0; i < 8 && channel + i < of.target_channels; i += 2) {
        unsigned two = *(const unsigned*)(from + i);
        to[i].bits = (unsigned short)two;
        if (channel + i + 1 < of.target_channels) to[i + 1].bits = (unsigned short)(two >> 16);
      }
    }
  }
}

// slabs [slab, channels, taps] = dy [places, channels]ᵀ · image [places, taps]; a slab has
// `slab_places` places.
template <typename T, typename O, int ROWS, bool DEPTH8, bool MADE8>
__global__ void __launch_bounds__(UNIT_THREADS, 2)
    conv_units_weight(const T* image, const T* dy, O* slabs, const Windows* windows,
                      i64 channel_tiles, i64 tap_tiles, i64 slab_places) {
  const int COLUMNS = 128;
  typedef Units<T, ROWS, COLUMNS, true, true> Here;
  __shared__ Piece room[STAGES * (Here::LEFT + Here::RIGHT) / 8];
  T* tiles = (T*)room;
  int thread = threadIdx.x;
  const Windows& of = *windows;
  i64 block = blockIdx.x;
  i64 first_channel = block % channel_tiles * ROWS;
  block /= channel_tiles;
  i64 first_tap = block % tap_tiles * COLUMNS, slab = block / tap_tiles;
  i64 begin = slab * slab_places, end = smaller(begin + slab_places, places(of));
  const Reach reach(of);
  i64 depth = taps(of), channels = of.target_channels;
  int steps = (int)((end - begin + STEP - 1) / STEP);

  // left: pieces along the channels of dy, whose places are neighbours
  const int ACROSS = ROWS / 8, DOWN = UNIT_THREADS / ACROSS, OF_LEFT = STEP / DOWN;
  int left_piece = thread % ACROSS, left_down = thread / ACROSS;
  int left_over = (int)(channels - first_channel) - left_piece * 8;
  const T* left = dy + (begin + left_down) * channels + first_channel + left_piece * 8;
  // right: one piece of a window, at two places of a step
  int piece = thread % 16, down = thread / 16;
  const Under under(reach, (int)(first_tap + piece * 8));
  int places_x = (int)of.places_x, places_y = (int)of.places_y;
  int place_x = (int)of.place_x, place_y = (int)of.place_y;
  int first_x = (int)of.first_x, first_y = (int)of.first_y;
  i64 sample_size = of.rows * of.columns * of.depth;
  const T* samples[2];
  int rows[2], columns[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    i64 place = begin + down + i * 16;
    columns[i] = (int)(place % places_x);
    rows[i] = (int)(place / places_x % places_y);
    samples[i] = image + place / ((i64)places_x * places_y) * sample_size;
  }

  Here product;
  product.clear();
  for (int step = 1 - STAGES; step < steps; step++) {
    wait<STAGES - 2>();
    __syncthreads();
    int next = step + STAGES - 1;
    if (next < steps) {
      T* tile = tiles + next % STAGES * (Here::LEFT + Here::RIGHT);
      i64 rest = end - begin - (i64)next * STEP;  // places from the step's first on
#pragma unroll
      for (int i = 0; i < OF_LEFT; i++) {
        int row = left_down + i * DOWN;
        fetch_row<MADE8>(tile + piece_at<ROWS>(row, left_piece), left + i * DOWN * channels,
                         row < rest ? left_over : 0);
      }
      left += STEP * channels;
      tile += Here::LEFT;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int row = down + i * 16;
        bool there = row < rest;
        fetch_window<DEPTH8>(tile + piece_at<COLUMNS>(row, piece), samples[i], reach,
                             there ? first_y + rows[i] * place_y : NOWHERE,
                             first_x + columns[i] * place_x, under);
        columns[i] += STEP;
        while (columns[i] >= places_x) {
          columns[i] -= places_x;
          if (++rows[i] == places_y) {
            rows[i] = 0;
            samples[i] += sample_size;
          }
        }
      }
    }
    commit();
    if (step >= 0) {
      const T* tile = tiles + step % STAGES * (Here::LEFT + Here::RIGHT);
      product.multiply(tile, tile + Here::LEFT);
    }
  }

  O* to = slabs + slab * channels * depth;
#pragma unroll
  for (int m = 0; m < Here::TILES; m++) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        i64 channel = first_channel + Here::row(m, i), tap = first_tap + Here::column(n, i);
        if (channel >= channels || tap >= depth) continue;
        O* at = to + channel * depth + tap;
        O first = narrow<O>(product.sums[m][n][i]), second = narrow<O>(product.sums[m][n][i + 1]);
        if (DEPTH8) {
          *(Pair<O>*)at = {first, second};
        } else {
          at[0] = first;
          if (tap + 1 < depth) at[1] = second;
        }
      }
    }
  }
}
