// Dropout by Philox-4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011, section 3.3 (the round) and table 2 (the multipliers).
//
// Element i of sample n of the run is kept by word i mod 4 of the counter (i div 4, n).
#include "control.cuh"
#include "packs.cuh"
#include "strides.cuh"

struct Words { unsigned at[4]; };

__device__ inline Words philox(i64 index, i64 sample, unsigned first, unsigned second) {
  unsigned a = (unsigned)index, b = (unsigned)(index >> 32);
  unsigned c = (unsigned)sample, d = (unsigned)(sample >> 32);
  for (int turn = 0; turn < 10; turn++) {
    unsigned left = 0xD2511F53u * a, left_high = __umulhi(0xD2511F53u, a);
    unsigned right = 0xCD9E8D57u * c, right_high = __umulhi(0xCD9E8D57u, c);
    a = right_high ^ b ^ first;
    b = right;
    c = left_high ^ d ^ second;
    d = left;
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
  return Words{{a, b, c, d}};
}

// y = x factor, or 0 where the word is below the threshold. A table leads to the sample (in the
// microbatch) and the index in the sample of every element; `in_step` numbers the first sample of
// the firing within its step, which has `per_step` samples. Where `by_counter` holds, four neighbours
// are the four words of one counter.
template <typename T, typename I>
__global__ void dropout(const T* x, T* y, const Control* control, const i64* table, int dims,
                        i64 first_index, i64 in_step, i64 per_step, unsigned key, unsigned key_second,
                        i64 threshold, int by_counter, double factor, i64 count) {
  typedef Wide<T> W;
  i64 first_sample = control->step * per_step + in_step;
  const int N = pack_of<T>() < 4 ? 4 : pack_of<T>();
  for (i64 start = first_pack<N>(); start < count; start += pack_stride<N>()) {
    Pack<T, N> given[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      given[i] = load_pack<N>(x, start + i * next_pack<N>(), count);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      unsigned kept = 0;  // bit k: whether element k is
      auto draw = [&](int k) {
        // behind the end: a word that nobody reads
        i64 at = smaller(start + i * next_pack<N>() + k, count - 1);
        Places place = places_of((I)at, table, dims);
        i64 index = first_index + place.second;
        Words words = philox(index >> 2, first_sample + place.first, key, key_second);
        unsigned found = 0;
#pragma unroll
        for (int word = 0; word < 4; word++) {
          found |= (unsigned)((i64)words.at[word] >= threshold) << word;
        }
        return by_counter ? found : found >> (index & 3) & 1u;
      };
      if (by_counter) {
#pragma unroll
        for (int k = 0; k < N; k += 4) kept |= draw(k) << k;
      } else {
#pragma unroll 1
        for (int k = 0; k < N; k++) kept |= draw(k) << k;
      }
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        W value = wide(given[i].of[k]) * (W)factor;
        values[k] = kept >> k & 1u ? value : (W)0;
      }
      narrow_all(given[i].of, values);
      store_pack(y, start + i * next_pack<N>(), count, given[i]);
    }
  }
}
