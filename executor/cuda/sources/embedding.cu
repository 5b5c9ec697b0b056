// Embedding: rows of a table by id, and its gradient; N ids, V rows of the table here, D columns.
//
// The gradient sorts positions by id (radix sort from the lowest digit, stable) and adds the rows of
// every run of equal ids in order, so that no two threads ever add to one number.
#include "packs.cuh"

// Rows of the table, zeros for ids that another rank holds; a thread for every pack of N columns.
template <typename T, typename O, int N, typename I>
__global__ void embedding(const int* ids, const T* table, O* out, i64 first, i64 table_rows,
                          i64 columns, i64 count) {
  I packs = (I)(columns / N);
  for (i64 at = first_element(); at < count; at += element_stride()) {
    I row = (I)at / packs;
    i64 column = (i64)((I)at - row * packs) * N, id = ids[row] - first;
    Wide<T> values[N] = {};
    if (id >= 0 && id < table_rows) take<N>(values, table + id * columns + column);
    put<N>(out + (i64)row * columns + column, values);
  }
}

// What is sorted: the row of every id here, V for those without; and where it stands.
__global__ void sort_keys(const int* ids, int* keys, int* positions, i64 first, i64 padding,
                          i64 table_rows, i64 count) {
  for (i64 at = first_element(); at < count; at += element_stride()) {
    i64 id = ids[at], row = id - first;
    bool counts = row >= 0 && row < table_rows && id != padding;
    keys[at] = (int)(counts ? row : table_rows);
    positions[at] = (int)at;
  }
}

const int DIGITS = 256;      // of eight bits, and as many threads of a block
const int BLOCK_KEYS = 1024; // that a block sorts: `sequence/embedding.py` launches as many blocks

const unsigned short NO_DIGIT = 0xffff;
const int OF_PACK = 8;  // digits that a thread reads at once

// Digits of a block's keys in shared memory; behind the last key there is none.
struct Digits {
  Pack<unsigned short, OF_PACK> packs[BLOCK_KEYS / OF_PACK];

  __device__ void fill(const int* keys, int shift, i64 count) {
    i64 first = blockIdx.x * (i64)BLOCK_KEYS;
#pragma unroll
    for (int at = threadIdx.x; at < BLOCK_KEYS; at += DIGITS) {
      unsigned short digit = NO_DIGIT;
      if (first + at < count) digit = (unsigned short)((unsigned)keys[first + at] >> shift) % DIGITS;
      packs[at / OF_PACK].of[at % OF_PACK] = digit;
    }
    __syncthreads();
  }
  // work(at): on every key of this thread's digit, in order.
  template <typename F> __device__ void each(F work) const {
    for (int pack = 0; pack < BLOCK_KEYS / OF_PACK; pack++) {
      Pack<unsigned short, OF_PACK> here = packs[pack];
#pragma unroll
      for (int k = 0; k < OF_PACK; k++) {
        if (here.of[k] == (unsigned short)threadIdx.x) work(pack * OF_PACK + k);
      }
    }
  }
};

// How often every digit occurs in every block's keys: places [blocks, DIGITS].
__global__ void count_digits(const int* keys, int* places, int shift, i64 count) {
  __shared__ Digits digits;
  digits.fill(keys, shift, count);
  int found = 0;
  digits.each([&](int) { found++; });
  places[blockIdx.x * (i64)DIGITS + threadIdx.x] = found;
}

// Turn counts into the place of the first key of every digit and block. One block: PARTS threads
// have a digit each, and share out the blocks.
const int PARTS = 4;
__global__ void __launch_bounds__(PARTS* DIGITS) place_digits(int* places, i64 blocks) {
  __shared__ int totals[PARTS][DIGITS], starts[DIGITS];
  int digit = threadIdx.x % DIGITS, part = threadIdx.x / DIGITS;
  i64 share = (blocks + PARTS - 1) / PARTS;
  i64 first = smaller(part * share, blocks), last = smaller(first + share, blocks);
  int total = 0;
#pragma unroll 8
  for (i64 block = first; block < last; block++) total += places[block * DIGITS + digit];
  totals[part][digit] = total;
  __syncthreads();
  if (part == 0) {
    int all = 0;
    for (int one = 0; one < PARTS; one++) all += totals[one][digit];
    starts[digit] = all;
  }
  __syncthreads();
  int place = 0;
  for (int before = 0; before < digit; before++) place += starts[before];
  for (int before = 0; before < part; before++) place += totals[before][digit];
  for (i64 block = first; block < last; block += 8) {
    int here[8];  // read before anything is written, so that the reads overlap
#pragma unroll
    for (int i = 0; i < 8; i++) here[i] = block + i < last ? places[(block + i) * DIGITS + digit] : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (block + i < last) places[(block + i) * DIGITS + digit] = place;
      place += here[i];
    }
  }
}

// Move keys and positions to their places; a thread goes through the keys of its digit in order.
__global__ void move_by_digit(const int* keys, const int* positions, const int* places,
                              int* moved_keys, int* moved_positions, int shift, i64 count) {
  __shared__ Digits digits;
  __shared__ int own_keys[BLOCK_KEYS], own_positions[BLOCK_KEYS];
  i64 first = blockIdx.x * (i64)BLOCK_KEYS;
  for (int at = threadIdx.x; at < BLOCK_KEYS && first + at < count; at += DIGITS) {
    own_keys[at] = keys[first + at];
    own_positions[at] = positions[first + at];
  }
  digits.fill(keys, shift, count);
  int place = places[blockIdx.x * (i64)DIGITS + threadIdx.x];
  digits.each([&](int at) {
    moved_keys[place] = own_keys[at];
    moved_positions[place] = own_positions[at];
    place++;
  });
}

// Long runs are added up piece by piece, so that no block waits long for one: a piece is PIECE
// sorted positions. A run that lies in one piece is written at once; one that crosses pieces leaves
// partial sums [pieces, 2, D]: at 1 where it begins, at 0 in every piece that it comes into.
const int PIECE = 32;

// One block per sorted position; those that begin a run or, within a run, a piece have work.
template <typename T, typename O, int N>
__global__ void sum_pieces(const int* keys, const int* positions, const T* dy, O* out,
                           Wide<T>* partial, i64 table_rows, i64 rows, i64 columns) {
  for (i64 first = blockIdx.x; first < rows; first += gridDim.x) {
    int key = keys[first];
    bool begins = first == 0 || keys[first - 1] != key;
    if (key == table_rows || (!begins && first % PIECE)) continue;
    i64 piece = first / PIECE, stop = first + 1, limit = smaller(rows, (piece + 1) * PIECE);
    while (stop < limit && keys[stop] == key) stop++;
    bool ends = stop == rows || keys[stop] != key;
    for (i64 at = (i64)threadIdx.x * N; at < columns; at += (i64)blockDim.x * N) {
      Wide<T> sum[N] = {};
#pragma unroll 4
      for (i64 n = first; n < stop; n++) {
        Pack<T, N> here = *(const Pack<T, N>*)(dy + positions[n] * columns + at);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += wide(here.of[k]);
      }
      if (begins && ends) {
        put<N>(out + key * columns + at, sum);
      } else {
        put<N>(partial + (2 * piece + begins) * columns + at, sum);
      }
    }
  }
}

// One block per piece; those in which a run begins that goes on into the next add it up.
template <typename W, typename O>
__global__ void join_pieces(const int* keys, const W* partial, O* out, i64 table_rows, i64 count,
                            i64 pieces, i64 columns) {
  for (i64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    i64 next = (piece + 1) * PIECE;
    if (next >= count) continue;
    int key = keys[next];
    bool goes_on = keys[next - 1] == key;
    bool comes_in = piece > 0 && keys[piece * PIECE - 1] == key;
    if (key == table_rows || !goes_on || comes_in) continue;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      W sum = partial[(2 * piece + 1) * columns + at];
      for (i64 n = piece + 1; n * PIECE < count && keys[n * PIECE] == key; n++) {
        sum += partial[2 * n * columns + at];
      }
      out[key * columns + at] = narrow<O>(sum);
    }
  }
}
