// Rotary positions: pairs of features turned by the angle of their position.
#include "scalar.cuh"

// x and y [outer, T, heads, D], one block per row (outer, t). The first 2 `pairs` features of a head
// turn, the others stay. `table` [2, T, pairs]: cosines, then sines; `turn` is -1 to turn back.
template <typename T, typename O, bool INTERLEAVED>
__global__ void rotary(const T* x, O* y, const Wide<T>* table, i64 positions, int features,
                       int pairs, int turn, i64 rows, i64 columns) {
  typedef Wide<T> W;
  int units = features - pairs;  // of a head: pairs, and features that stay
  int heads = (int)(columns / features);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const W* cosines = table + row % positions * pairs;
    const W* sines = cosines + positions * pairs;
    for (int unit = threadIdx.x; unit < heads * units; unit += blockDim.x) {
      int pair = unit % units;
      i64 head = row * columns + unit / units * features;
      if (pair >= pairs) {
        y[head + pairs + pair] = narrow<O>(wide(x[head + pairs + pair]));
        continue;
      }
      i64 first = head + (INTERLEAVED ? 2 * pair : pair);
      i64 second = first + (INTERLEAVED ? 1 : pairs);
      W a = wide(x[first]), b = wide(x[second]);
      W cosine = cosines[pair], sine = (W)turn * sines[pair];
      y[first] = narrow<O>(a * cosine - b * sine);
      y[second] = narrow<O>(b * cosine + a * sine);
    }
  }
}
