// Which experts a token goes to, and which place it gets there.
//
// Scores are ranked by value, equals by the lower index, so that what is chosen next is the best
// that ranks behind the last choice: nothing is marked, and any number of experts will do. A NaN
// counts as infinite. Shape legend: b samples, t tokens of a sample, k choices of a token, e
// experts, g groups of experts.
#include "control.cuh"
#include "reduce.cuh"

template <typename W> struct Ranked {
  W value;
  int index;  // -1: none
  __device__ bool before(const Ranked& other) const {
    if (index < 0) return false;
    if (other.index < 0) return true;
    return value > other.value || (value == other.value && index < other.index);
  }
};

template <typename W> __device__ inline W comparable(W value) {
  return value == value ? value : -lowest<W>();
}

template <typename W> __device__ inline Ranked<W> warp_best(Ranked<W> best) {
  for (int lane = 16; lane > 0; lane /= 2) {
    Ranked<W> other = {__shfl_xor_sync(0xffffffffu, best.value, lane),
                       __shfl_xor_sync(0xffffffffu, best.index, lane)};
    if (other.before(best)) best = other;
  }
  return best;
}

// The value of an expert for choosing: its score, and its bias where there is one.
template <typename T> __device__ inline Wide<T> choice_value(const T* values, const T* bias, i64 at) {
  return comparable(bias ? wide(values[at]) + wide(bias[at]) : wide(values[at]));
}

// The best of `values` behind `last` (index -1: of all), among the experts of groups that rank not
// behind `limit` (index -1: among all); `group_size` experts make a group.
template <typename T, typename W>
__device__ inline Ranked<W> next_of(const T* values, const T* bias, int count, Ranked<W> last,
                                    const W* groups, int group_size, Ranked<W> limit) {
  Ranked<W> best = {0, -1};
  for (int at = threadIdx.x % 32; at < count; at += 32) {
    Ranked<W> one = {choice_value(values, bias, at), at};
    if (last.index >= 0 && !last.before(one)) continue;
    if (limit.index >= 0) {
      Ranked<W> group = {comparable(groups[at / group_size]), at / group_size};
      if (limit.before(group)) continue;
    }
    if (one.before(best)) best = one;
  }
  return warp_best(best);
}

// groups [b t, g] = the sum of a group's two largest scores, or its only one; `biased`: `bias` is
// added to them.
template <typename T>
__global__ void group_scores(const T* scores, const T* bias, int biased, Wide<T>* groups,
                             i64 group_size, i64 group_count, i64 count) {
  typedef Wide<T> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    const T* from = scores + at * group_size;
    const T* added = biased ? bias + at % group_count * group_size : nullptr;
    W first = lowest<W>(), second = lowest<W>();
    for (i64 expert = 0; expert < group_size; expert++) {
      W value = choice_value(from, added, expert);
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    groups[at] = group_size > 1 ? first + second : first;
  }
}

// value, expert [b t, k] of scores [b t, e], and the experts once more as chosen [b, k, t]; one
// warp per token. `kept` groups may be chosen from, all where it is 0; `biased`: choices are those
// of the scores plus `bias`.
template <typename T>
__global__ void choose(const T* scores, const T* bias, int biased, const Wide<T>* groups, T* value, int* expert, int* chosen,
                       Control* control, int experts, int choices, int group_count, int kept,
                       i64 sample_tokens, i64 tokens) {
  typedef Wide<T> W;
  const Ranked<W> none = {0, -1};
  const T* added = biased ? bias : nullptr;
  const W* alone = nullptr;
  i64 warps = blockDim.x / 32;
  W margin = -lowest<W>();
  for (i64 token = blockIdx.x * warps + threadIdx.x / 32; token < tokens;
       token += gridDim.x * warps) {
    const T* from = scores + token * experts;
    const W* of_groups = groups + token * group_count;
    Ranked<W> limit = none;
    for (int group = 0; group < kept; group++) {
      limit = next_of(of_groups, alone, group_count, limit, of_groups, 1, none);
    }
    if (kept > 0) {
      Ranked<W> left_out = next_of(of_groups, alone, group_count, limit, of_groups, 1, none);
      margin = smaller(margin, limit.value - left_out.value);
    }
    Ranked<W> last = none;
    for (int choice = 0; choice < choices; choice++) {
      last = next_of(from, added, experts, last, of_groups, experts / group_count, limit);
      if (threadIdx.x % 32 == 0) {
        value[token * choices + choice] = from[last.index];
        expert[token * choices + choice] = last.index;
        i64 sample = token / sample_tokens;
        chosen[(sample * choices + choice) * sample_tokens + token % sample_tokens] = last.index;
      }
    }
    Ranked<W> left_out = next_of(from, added, experts, last, of_groups, experts / group_count, limit);
    if (left_out.index >= 0) margin = smaller(margin, last.value - left_out.value);
  }
  // of numbers that are not negative the bits rank as they do; a NaN is no margin
  if (threadIdx.x % 32 == 0 && margin >= 0) {
    atomicMin(&control->margin_bits, __float_as_int((float)margin));
  }
}

// place [b, t, k] of chosen [b, k, t]: how many of the same expert come before; -1 from `capacity`
// on. One warp per sample and expert.
__global__ void give_places(const int* chosen, int* place, int experts, int choices, int capacity,
                            i64 tokens, i64 warps) {
  i64 warp = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
  if (warp >= warps) return;
  int expert = (int)(warp % experts), lane = threadIdx.x % 32;
  i64 sample = warp / experts, count = tokens * choices;
  const int* from = chosen + sample * count;
  int* to = place + sample * count;
  int given = 0;
#pragma unroll 4
  for (i64 start = 0; start < count; start += 32) {
    i64 at = start + lane;
    bool here = at < count && from[at] == expert;
    unsigned all = __ballot_sync(0xffffffffu, here);
    if (here) {
      int mine = given + __popc(all & ((1u << lane) - 1));
      to[at % tokens * choices + at / tokens] = mine < capacity ? mine : -1;
    }
    given += __popc(all);
  }
}

// dscores [b t, e] of (dvalue, expert) [b t, k].
template <typename T, typename O>
__global__ void top_k_grad(const T* dvalue, const int* expert, O* dscores, i64 experts,
                           i64 choices, i64 count) {
  typedef Wide<T> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    i64 first = at / experts * choices, here = at % experts;
    W slope = 0;
    for (i64 choice = first; choice < first + choices; choice++) {
      if (expert[choice] == here) slope = wide(dvalue[choice]);
    }
    dscores[at] = narrow<O>(slope);
  }
}

// load [b, e] = the share of a sample's choices that fall on an expert; one warp for each.
template <typename O>
__global__ void expert_load(const int* expert, O* load, i64 experts, i64 choices, i64 warps) {
  typedef Wide<O> W;
  i64 warp = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
  if (warp >= warps) return;
  const int* from = expert + warp / experts * choices;
  i64 count = 0;
  for (i64 at = threadIdx.x % 32; at < choices; at += 32) count += from[at] == warp % experts;
  count = warp_reduce<Add>(count);
  if (threadIdx.x % 32 == 0) load[warp] = narrow<O>((W)count / (W)choices);
}
