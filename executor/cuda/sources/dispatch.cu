// Tokens to the places of their experts and back, as gathers of rows [e b c] and tokens [b t].
//
// A row's holder is the choice [b t k] that has it. Experts may be a shard, from `Ways.first` on.
// Shape legend: b samples, t tokens of a sample, k choices of a token, e experts here, c places of
// an expert, d features.
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
template <typename T, typename V>
__global__ void combine_grad_input(const T* dout, const V* weight, const i64* holders, T* dy,
                                   i64 choices, i64 rows, i64 columns) {
  typedef Wide<T> W;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 holder = holders[row];
    W factor = holder > 0 ? (W)wide(weight[holder - 1]) : (W)0;
    const T* from = dout + (holder - 1) / choices * columns;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      dy[row * columns + at] = narrow<T>(holder > 0 ? wide(from[at]) * factor : (W)0);
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
template <typename T, typename By, typename V>
__global__ void gather(const T* rows_of, const int* expert, const int* place, const V* weight,
                       T* out, const Ways* given, i64 tokens, i64 columns) {
  typedef Wide<T> W;
  const Ways ways = *given;
  for (i64 token = blockIdx.x; token < tokens; token += gridDim.x) {
    i64 first = token * ways.choices;
    for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
      W sum = 0;
      for (i64 choice = first; choice < first + ways.choices; choice++) {
        i64 row = row_of(ways, expert, place, choice);
        if (row < 0) continue;
        sum += wide(rows_of[row * columns + at]) * By::template factor<W>(weight, choice);
      }
      out[token * columns + at] = narrow<T>(sum);
    }
  }
}

// dweight [choice] = dout of its token times y of its row; zero where it has none. One block per
// choice.
template <typename T, typename U, typename O>
__global__ void combine_grad_weight(const T* dout, const U* y, const int* expert, const int* place,
                                    O* dweight, const Ways* given, i64 choices, i64 columns) {
  typedef Wide<T> W;
  const Ways ways = *given;
  for (i64 choice = blockIdx.x; choice < choices; choice += gridDim.x) {
    i64 row = row_of(ways, expert, place, choice);
    const T* slope = dout + choice / ways.choices * columns;
    W sum = 0;
    if (row >= 0) {
      for (i64 at = threadIdx.x; at < columns; at += blockDim.x) {
        sum += wide(slope[at]) * (W)wide(y[row * columns + at]);
      }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dweight[choice] = narrow<O>(sum);
  }
}
