// Tokens to the places of their experts and back, as gathers of rows [e b c] and tokens [b t].
//
// A row's holder is the choice [b t k] that has it. Experts may be a shard, from `Ways.first` on.
// Shape legend: b samples, t tokens of a sample, k choices of a token, e experts here, c places of
// an expert, d features, of which a thread has packs of N.
#include "packs.cuh"
#include "reduce.cuh"

struct Ways {
  i64 first, experts, samples, capacity;
  i64 tokens, choices;  // tokens of a sample, choices of a token
};

// The row of a choice [b t k]; -1 where it was dropped or where another rank holds its expert.
__device__ inline i64 row_of(const Ways& ways, const int* expert, const int* place, i64 choice) {
  i64 here = expert[choice] - ways.first;
  if (place[choice] < 0 || here < 0 || here >= ways.experts) return -1;
  i64 sample = choice / (ways.tokens * ways.choices);
  return (here * ways.samples + sample) * ways.capacity + place[choice];
}

// holders [e b c] = one more than the choice that has a row, where one has: zeros before.
__global__ void find_holders(const int* expert, const int* place, i64* holders, const Ways* given,
                             i64 count) {
  const Ways ways = *given;
  for (i64 choice = first_element(); choice < count; choice += element_stride()) {
    i64 row = row_of(ways, expert, place, choice);
    if (row >= 0) holders[row] = choice + 1;
  }
}

// made [row] = x of the token that has it; zeros elsewhere. Bits are copied: a row has `columns` of
// any type as wide as it allows. One block per row.
template <typename U>
__global__ void dispatch(const U* x, const i64* holders, U* made, i64 choices, i64 rows,
                         i64 columns) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 holder = holders[row];
    const U* from = x + (holder - 1) / choices * columns;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      made[row * columns + at] = holder > 0 ? from[at] : U{};
    }
  }
}

// dy [row] = dout of the token that has it, by weight; zeros elsewhere. One block per row.
template <typename T, typename V, int N>
__global__ void combine_grad_input(const T* dout, const V* weight, const i64* holders, T* dy,
                                   i64 choices, i64 rows, i64 columns) {
  typedef Wide<T> W;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 holder = holders[row];
    W factor = holder > 0 ? (W)wide(weight[holder - 1]) : (W)0;
    const T* from = dout + (holder - 1) / choices * columns;
    for (i64 at = (i64)threadIdx.x * N; at < columns; at += (i64)blockDim.x * N) {
      W here[N] = {};
      if (holder > 0) take<N>(here, from + at);
#pragma unroll
      for (int k = 0; k < N; k++) here[k] *= factor;
      put<N>(dy + row * columns + at, here);
    }
  }
}

struct Plain {  // every choice counts alike
  template <typename W> __device__ static W factor(const void*, i64) { return 1; }
};
template <typename V> struct Weighted {
  template <typename W> __device__ static W factor(const V* weight, i64 choice) {
    return (W)wide(weight[choice]);
  }
};

// out [token] = the sum of the rows of its choices, in their order, by weight where there is one.
// One block per token.
template <typename T, typename By, typename V, int N>
__global__ void gather(const T* rows_of, const int* expert, const int* place, const V* weight,
                       T* out, const Ways* given, i64 tokens, i64 columns) {
  typedef Wide<T> W;
  const Ways ways = *given;
  for (i64 token = blockIdx.x; token < tokens; token += gridDim.x) {
    i64 first = token * ways.choices;
    for (i64 at = (i64)threadIdx.x * N; at < columns; at += (i64)blockDim.x * N) {
      W sum[N] = {}, here[N];
      for (i64 choice = first; choice < first + ways.choices; choice++) {
        i64 row = row_of(ways, expert, place, choice);
        if (row < 0) continue;
        W factor = By::template factor<W>(weight, choice);
        take<N>(here, rows_of + row * columns + at);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += here[k] * factor;
      }
      put<N>(out + token * columns + at, sum);
    }
  }
}

// dweight [choice] = dout of its token times y of its row; zero where it has none. One block per
// choice.
template <typename T, typename U, typename O, int N>
__global__ void combine_grad_weight(const T* dout, const U* y, const int* expert, const int* place,
                                    O* dweight, const Ways* given, i64 choices, i64 columns) {
  typedef Wide<T> W;
  const Ways ways = *given;
  for (i64 choice = blockIdx.x; choice < choices; choice += gridDim.x) {
    i64 row = row_of(ways, expert, place, choice);
    const T* slope = dout + choice / ways.choices * columns;
    W sum = 0;
    if (row >= 0) {
      W here[N], other[N];
      for (i64 at = (i64)threadIdx.x * N; at < columns; at += (i64)blockDim.x * N) {
        take<N>(here, slope + at);
        take<N>(other, y + row * columns + at);
#pragma unroll
        for (int k = 0; k < N; k++) sum += here[k] * other[k];
      }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dweight[choice] = narrow<O>(sum);
  }
}
