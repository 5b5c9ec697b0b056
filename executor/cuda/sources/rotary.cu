// Rotary positions: pairs of features turned by the angle of their position.
#include "packs.cuh"

// x and y [outer, T, heads, D], one block per row (outer, t). The first 2 `pairs` features of a head
// turn, the others stay. `table` [2, T, pairs]: cosines, then sines; `turn` is -1 to turn back.
// A thread has N pairs, or N features that stay; both are numbers of packs.
template <typename T, typename O, bool INTERLEAVED, int N>
__global__ void rotary(const T* x, O* y, const Wide<T>* table, i64 positions, int features,
                       int pairs, int turn, i64 rows, i64 columns) {
  typedef Wide<T> W;
  int turned = pairs / N, units = turned + (features - 2 * pairs) / N;  // of a head
  int heads = (int)(columns / features);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const W* cosines = table + row % positions * pairs;
    const W* sines = cosines + positions * pairs;
    for (int unit = threadIdx.x; unit < heads * units; unit += blockDim.x) {
      int number = unit % units, pair = number * N;
      i64 head = row * columns + unit / units * features;
      if (number >= turned) {
        W same[N];
        take<N>(same, x + head + pairs + pair);
        put<N>(y + head + pairs + pair, same);
        continue;
      }
      i64 first = head + (INTERLEAVED ? 2 * pair : pair);
      i64 second = first + (INTERLEAVED ? N : pairs);
      W a[N], b[N], cosine[N], sine[N];
      take<N>(a, x + first);
      take<N>(b, x + second);
      take<N>(cosine, cosines + pair);
      take<N>(sine, sines + pair);
#pragma unroll
      for (int k = 0; k < N; k++) {
        // neighbours of the two packs, or the same place in both
        W& one = !INTERLEAVED ? a[k] : 2 * k < N ? a[2 * k % N] : b[2 * k % N];
        W& other = !INTERLEAVED ? b[k] : 2 * k + 1 < N ? a[(2 * k + 1) % N] : b[(2 * k + 1) % N];
        W given = one, turning = (W)turn * sine[k];
        one = given * cosine[k] - other * turning;
        other = other * cosine[k] + given * turning;
      }
      put<N>(y + first, a);
      put<N>(y + second, b);
    }
  }
}
