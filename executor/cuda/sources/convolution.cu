// Convolution and its gradients as products of tiles whose loaders find what windows read: no
// columns of an image are ever written.
//
// The gradient of the input is a convolution too: inputs whose row and column leave the same rest
// by the stride meet the same taps of the weights, at consecutive outputs. Every such class of
// inputs has `Windows` of its own. LAST: channels come last, and neighbouring threads fetch them.
// Shape legend: see windows.cuh.
#include "reduce.cuh"
#include "tile.cuh"
#include "windows.cuh"

// Blocks that a multiprocessor should hold at once: 512 threads, which leaves 128 registers each;
// half of them where sums are double.
template <typename T, int THREADS> struct Resident {
  static const int BLOCKS = 2048 / THREADS / (int)sizeof(Wide<T>);
};

// made [channels, places] = weight [channels, taps] · image [taps, places], by group and class.
template <typename T, int DEPTH, int ROWS, int LANES, int QUADS, bool LAST>
__global__ void __launch_bounds__(ROWS * LANES, Resident<T, ROWS * LANES>::BLOCKS)
    conv(const T* image, const T* weight, T* made, const Windows* classes, i64 channel_tiles,
         i64 place_tiles) {
  typedef Wide<T> W;
  typedef Tile<W, DEPTH, ROWS, LANES, QUADS> Here;
  __shared__ Here tile;
  __shared__ Tap step[Here::DEPTH];
  __shared__ Place columns[Here::COLUMNS];
  int thread = threadIdx.x;
  i64 block = blockIdx.x;
  i64 first_channel = block % channel_tiles * Here::CHANNELS;
  block /= channel_tiles;
  i64 first_place = block % place_tiles * Here::COLUMNS;
  block /= place_tiles;
  i64 groups = classes->groups, group = block % groups;
  const Windows of = classes[block / groups];
  i64 end = places(of), depth = taps(of);
  if (first_place >= end) return;  // classes differ by a row or a column

  for (int at = thread; at < Here::COLUMNS; at += Here::THREADS) {
    columns[at] = place_of<LAST>(of, group, first_place + at, end);
  }
  W sums[4][QUADS][4] = {};
  W lefts[Here::OF_LEFT], rights[Here::OF_RIGHT];
  for (i64 start = -Here::DEPTH; start < depth; start += Here::DEPTH) {
    if (start >= 0) {
#pragma unroll
      for (int i = 0; i < Here::OF_LEFT; i++) {
        int at = thread + i * Here::THREADS;
        if (at < Here::CHANNELS * Here::DEPTH) {
          tile.put_left(at % Here::DEPTH, at / Here::DEPTH, lefts[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < Here::OF_RIGHT; i++) {
        int at = thread + i * Here::THREADS;
        int down = LAST ? at % Here::DEPTH : at / Here::COLUMNS;
        tile.put_right(down, LAST ? at / Here::DEPTH : at % Here::COLUMNS, rights[i]);
      }
    }
    if (thread < Here::DEPTH) step[thread] = tap_of<LAST>(of, start + Here::DEPTH + thread);
    __syncthreads();
    // the next step's values are on their way while this one's are multiplied
    if (start + Here::DEPTH < depth) {
#pragma unroll
      for (int i = 0; i < Here::OF_LEFT; i++) {
        int at = thread + i * Here::THREADS;
        i64 channel = first_channel + at / Here::DEPTH;
        const Tap& tap = step[at % Here::DEPTH];
        bool there = tap.source >= 0 && channel < of.target_channels;
        i64 from = group * of.weight_group + channel * of.weight_target + tap.weight;
        lefts[i] = there ? wide(weight[from]) : (W)0;
      }
#pragma unroll
      for (int i = 0; i < Here::OF_RIGHT; i++) {
        int at = thread + i * Here::THREADS;
        int down = LAST ? at % Here::DEPTH : at / Here::COLUMNS;
        const Place& place = columns[LAST ? at / Here::DEPTH : at % Here::COLUMNS];
        rights[i] = value_at<LAST>(image, of, step[down], place);
      }
    }
    if (start >= 0) tile.add_to(sums);
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) {
    i64 channel = first_channel + Here::channel(i);
    if (channel >= of.target_channels) break;
    i64 plane = channel * target_channel<LAST>(of);
    for (int quad = 0; quad < QUADS; quad++) {
      for (int j = 0; j < 4; j++) {
        i64 target = columns[Here::column(quad, j)].target;
        if (target >= 0) made[target + plane] = narrow<T>(sums[i][quad][j]);
      }
    }
  }
}

// slabs [slab, channels, taps] = dy [channels, places] · image [taps, places]ᵀ, by group; a slab
// has `slab_places` places.
template <typename T, typename O, int DEPTH, int ROWS, int LANES, int QUADS, bool LAST>
__global__ void __launch_bounds__(ROWS * LANES, Resident<T, ROWS * LANES>::BLOCKS)
    conv_grad_weight(const T* image, const T* dy, O* slabs, const Windows* windows,
                     i64 channel_tiles, i64 tap_tiles, i64 slab_places) {
  typedef Wide<T> W;
  typedef Tile<W, DEPTH, ROWS, LANES, QUADS> Here;
  __shared__ Here tile;
  static_assert(Here::CHANNELS * Here::DEPTH % Here::THREADS == 0, "left sides are whole too");
  __shared__ Place step[Here::DEPTH];
  __shared__ Tap columns[Here::COLUMNS];
  int thread = threadIdx.x;
  const Windows of = *windows;
  i64 block = blockIdx.x;
  i64 first_channel = block % channel_tiles * Here::CHANNELS;
  block /= channel_tiles;
  i64 first_tap = block % tap_tiles * Here::COLUMNS;
  block /= tap_tiles;
  i64 group = block % of.groups, slab = block / of.groups;
  i64 begin = slab * slab_places, end = smaller(begin + slab_places, places(of));

  for (int at = thread; at < Here::COLUMNS; at += Here::THREADS) {
    columns[at] = tap_of<LAST>(of, first_tap + at);
  }
  W sums[4][QUADS][4] = {};
  W lefts[Here::OF_LEFT], rights[Here::OF_RIGHT];
  for (i64 start = begin - Here::DEPTH; start < end; start += Here::DEPTH) {
    if (start >= begin) {
#pragma unroll
      for (int i = 0; i < Here::OF_LEFT; i++) {
        int at = thread + i * Here::THREADS;
        tile.put_left(at % Here::DEPTH, at / Here::DEPTH, lefts[i]);
      }
#pragma unroll
      for (int i = 0; i < Here::OF_RIGHT; i++) {
        int at = thread + i * Here::THREADS;
        tile.put_right(at % Here::DEPTH, at / Here::DEPTH, rights[i]);
      }
    }
    if (thread < Here::DEPTH) {
      step[thread] = place_of<LAST>(of, group, start + Here::DEPTH + thread, end);
    }
    __syncthreads();
    if (start + Here::DEPTH < end) {
#pragma unroll
      for (int i = 0; i < Here::OF_LEFT; i++) {
        int at = thread + i * Here::THREADS;
        i64 channel = first_channel + at / Here::DEPTH;
        const Place& place = step[at % Here::DEPTH];
        bool there = place.source >= 0 && channel < of.target_channels;
        lefts[i] = there ? wide(dy[place.target + channel * target_channel<LAST>(of)]) : (W)0;
      }
#pragma unroll
      for (int i = 0; i < Here::OF_RIGHT; i++) {
        int at = thread + i * Here::THREADS;
        rights[i] = value_at<LAST>(image, of, columns[at / Here::DEPTH], step[at % Here::DEPTH]);
      }
    }
    if (start >= begin) tile.add_to(sums);
    __syncthreads();
  }
  O* to = slabs + (slab * of.groups + group) * of.target_channels * taps(of);
  for (int i = 0; i < 4; i++) {
    i64 channel = first_channel + Here::channel(i);
    if (channel >= of.target_channels) break;
    for (int quad = 0; quad < QUADS; quad++) {
      for (int j = 0; j < 4; j++) {
        i64 tap = first_tap + Here::column(quad, j);
        if (tap < taps(of)) to[channel * taps(of) + tap] = narrow<O>(sums[i][quad][j]);
      }
    }
  }
}

// The same for groups of few channels, whose tiles would be mostly empty: a block per weight and
// slab.
template <typename T, typename O, bool LAST>
__global__ void conv_grad_weight_few(const T* image, const T* dy, O* slabs,
                                     const Windows* windows, i64 weights, i64 slab_places) {
  typedef Wide<T> W;
  const Windows of = *windows;
  i64 weight = blockIdx.x % weights, slab = blockIdx.x / weights;
  i64 depth = taps(of), group = weight / (of.target_channels * depth);
  i64 plane = weight / depth % of.target_channels * target_channel<LAST>(of);
  i64 begin = slab * slab_places, end = smaller(begin + slab_places, places(of));
  Tap tap = tap_of<LAST>(of, weight % depth);
  W sum = 0;
  for (i64 at = begin + threadIdx.x; at < end; at += blockDim.x) {
    Place place = place_of<LAST>(of, group, at, end);
    sum += wide(dy[place.target + plane]) * value_at<LAST>(image, of, tap, place);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) slabs[slab * weights + weight] = narrow<O>(sum);
}

// out = the sum of the slabs, one after the other.
template <typename P, typename T>
__global__ void add_slabs(const P* slabs, T* out, i64 count, i64 elements) {
  for (i64 at = first_element(); at < elements; at += element_stride()) {
    Wide<P> sum = 0;
    for (i64 slab = 0; slab < count; slab++) sum += wide(slabs[slab * elements + at]);
    out[at] = narrow<T>(sum);
  }
}
