// Embedding: rows of a table by id, and its gradient; N ids, V rows of the table here, D columns.
//
// The gradient sorts positions by id (radix sort from the lowest digit, stable) and adds the rows of
// every run of equal ids in order, so that no two threads ever add to one number.
#include "scalar.cuh"

// Rows of the table, zeros for ids that another rank holds; one block per id.
template <typename T, typename O>
__global__ void embedding(const int* ids, const T* table, O* out, i64 first, i64 table_rows,
                          i64 rows, i64 columns) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 id = ids[row] - first;
    bool here = id >= 0 && id < table_rows;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      out[row * columns + at] = narrow<O>(here ? wide(table[id * columns + at]) : (Wide<T>)0);
    }
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

// Leave the digits of a block's keys in shared memory; return how many there are.
__device__ inline int block_digits(const int* keys, int shift, i64 count, int* digits) {
  i64 first = blockIdx.x * (i64)BLOCK_KEYS;
  int here = (int)smaller(count - first, (i64)BLOCK_KEYS);
  for (int at = threadIdx.x; at < here; at += DIGITS) {
    digits[at] = (int)((unsigned)keys[first + at] >> shift) % DIGITS;
  }
  __syncthreads();
  return here;
}

// How often every digit occurs in every block's keys: places [blocks, DIGITS].
__global__ void count_digits(const int* keys, int* places, int shift, i64 count) {
  __shared__ int digits[BLOCK_KEYS];
  int here = block_digits(keys, shift, count, digits), found = 0;
  for (int at = 0; at < here; at++) found += digits[at] == (int)threadIdx.x;
  places[blockIdx.x * (i64)DIGITS + threadIdx.x] = found;
}

// Turn counts into the place of the first key of every digit and block; one block.
__global__ void place_digits(int* places, i64 blocks) {
  __shared__ int totals[DIGITS];
  int total = 0;
  for (i64 block = 0; block < blocks; block++) total += places[block * DIGITS + threadIdx.x];
  totals[threadIdx.x] = total;
  __syncthreads();
  int place = 0;
  for (int digit = 0; digit < (int)threadIdx.x; digit++) place += totals[digit];
  for (i64 block = 0; block < blocks; block++) {
    int here = places[block * DIGITS + threadIdx.x];
    places[block * DIGITS + threadIdx.x] = place;
    place += here;
  }
}

// Move keys and positions to their places; a thread goes through the keys of its digit in order.
__global__ void move_by_digit(const int* keys, const int* positions, const int* places,
                              int* moved_keys, int* moved_positions, int shift, i64 count) {
  __shared__ int digits[BLOCK_KEYS];
  int here = block_digits(keys, shift, count, digits);
  i64 first = blockIdx.x * (i64)BLOCK_KEYS;
  int place = places[blockIdx.x * (i64)DIGITS + threadIdx.x];
  for (int at = 0; at < here; at++) {
    if (digits[at] != (int)threadIdx.x) continue;
    moved_keys[place] = keys[first + at];
    moved_positions[place] = positions[first + at];
    place++;
  }
}

// Long runs are added up piece by piece, so that no block waits long for one: a piece is PIECE
// sorted positions. A run that lies in one piece is written at once; one that crosses pieces leaves
// partial sums [pieces, 2, D]: at 1 where it begins, at 0 in every piece that it comes into.
const int PIECE = 32;

// One block per sorted position; those that begin a run or, within a run, a piece have work.
template <typename T, typename O>
__global__ void sum_pieces(const int* keys, const int* positions, const T* dy, O* out,
                           Wide<T>* partial, i64 table_rows, i64 rows, i64 columns) {
  for (i64 first = blockIdx.x; first < rows; first += gridDim.x) {
    int key = keys[first];
    bool begins = first == 0 || keys[first - 1] != key;
    if (key == table_rows || (!begins && first % PIECE)) continue;
    i64 piece = first / PIECE, stop = first + 1, limit = smaller(rows, (piece + 1) * PIECE);
    while (stop < limit && keys[stop] == key) stop++;
    bool ends = stop == rows || keys[stop] != key;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      Wide<T> sum = 0;
#pragma unroll 4
      for (i64 n = first; n < stop; n++) sum += wide(dy[positions[n] * columns + at]);
      if (begins && ends) {
        out[key * columns + at] = narrow<O>(sum);
      } else {
        partial[(2 * piece + begins) * columns + at] = sum;
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
