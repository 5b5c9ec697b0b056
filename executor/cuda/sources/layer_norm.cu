// Layer norm over the last dim and its gradients: R rows, D features of a row, in packs of N.
//
// x is T, gamma and beta are G, the mean and rstd of a row S, dy and dx are D (float where gradients
// of microbatches were added up before); arithmetic is that of S.
#include "slabs.cuh"

// y, mean and rstd of (x, gamma, beta). ADDED: of x + other, which goes to `sum`.
template <typename T, typename G, typename S, int N, int PACKS, bool BY_WARP, bool ADDED>
__global__ void TEAM_BOUNDS(BY_WARP, PACKS, false)
    layer_norm(const T* x, const T* other, const G* gamma, const G* beta, T* sum, T* y, S* mean,
               S* rstd, double epsilon, i64 rows, i64 columns) {
  typedef Wide<S> W;
  Held<G, N, shared_packs(PACKS), BY_WARP> factors, shifts;
  factors.fetch(gamma, columns);
  shifts.fetch(beta, columns);
  for (i64 row = Team<BY_WARP>::first_row(); row < rows; row += Team<BY_WARP>::row_stride()) {
    i64 start = row * columns;
    Held<T, N, PACKS, BY_WARP> here;
    here.fetch(x + start, columns);
    if (ADDED) {
      Held<T, N, PACKS, BY_WARP> more;
      more.fetch(other + start, columns);
      here.add(more, sum + start, columns);
    }
    W total[1] = {0}, squares[1] = {0};
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<T, N> pack = here.at(number, at);
#pragma unroll
      for (int k = 0; k < N; k++) total[0] += (W)wide(pack.of[k]);
    });
    Team<BY_WARP>::sum(total);
    W average = total[0] / (W)columns;
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<T, N> pack = here.at(number, at);
#pragma unroll
      for (int k = 0; k < N; k++) {
        W apart = (W)wide(pack.of[k]) - average;
        squares[0] += apart * apart;
      }
    });
    Team<BY_WARP>::sum(squares);
    W scale = (W)1 / sqrt_of(squares[0] / (W)columns + (W)epsilon);
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<T, N> pack = here.at(number, at);
      Pack<G, N> factor = factors.at(number, at), shift = shifts.at(number, at);
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        W normal = ((W)wide(pack.of[k]) - average) * scale;
        values[k] = normal * (W)wide(factor.of[k]) + (W)wide(shift.of[k]);
      }
      put<N>(y + start + at, values);
    });
    if (Team<BY_WARP>::thread() == 0) {
      mean[row] = narrow<S>(average);
      rstd[row] = narrow<S>(scale);
    }
  }
}

// dx = rstd (g - mean(g) - normal mean(g normal)) with g = dy gamma, normal = (x - mean) rstd.
// ADDED: dx + other, of dx as rounded. WEIGHTS: what the block's rows add to the gradients of gamma
// and beta too, each [blocks, columns].
template <typename D, typename T, typename G, typename S, int N, int PACKS, bool BY_WARP,
          bool ADDED, bool WEIGHTS>
__global__ void TEAM_BOUNDS(BY_WARP, PACKS, WEIGHTS)
    layer_norm_grad_input(const D* dy, const T* x, const G* gamma, const S* mean, const S* rstd,
                          const D* other, D* dx, Wide<S>* slab_sums, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W dgamma[WEIGHTS ? PACKS : 1][N] = {}, dbeta[WEIGHTS ? PACKS : 1][N] = {};
  Held<G, N, shared_packs(PACKS), BY_WARP> factors;
  factors.fetch(gamma, columns);
  i64 stride = Team<BY_WARP>::row_stride(), row = Team<BY_WARP>::first_row();
  Held<D, N, PACKS, BY_WARP> slopes, next_slopes, more;
  Held<T, N, PACKS, BY_WARP> here, next;
  if (WEIGHTS && row < rows) {
    next_slopes.fetch(dy + row * columns, columns);
    next.fetch(x + row * columns, columns);
  }
  for (; row < rows; row += stride) {
    i64 start = row * columns;
    if (WEIGHTS) {  // few blocks: the next row is on its way meanwhile
      slopes = next_slopes, here = next;
      if (row + stride < rows) {
        next_slopes.fetch(dy + start + stride * columns, columns);
        next.fetch(x + start + stride * columns, columns);
      }
    } else {
      slopes.fetch(dy + start, columns);
      here.fetch(x + start, columns);
    }
    if (ADDED) more.fetch(other + start, columns);
    W average = wide(mean[row]), scale = wide(rstd[row]), sums[2] = {0, 0};
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<D, N> slope = slopes.at(number, at);
      Pack<T, N> pack = here.at(number, at);
      Pack<G, N> factor = factors.at(number, at);
#pragma unroll
      for (int k = 0; k < N; k++) {
        W d = (W)wide(slope.of[k]), apart = (W)wide(pack.of[k]) - average;
        W g = d * (W)wide(factor.of[k]);
        sums[0] += g;
        sums[1] += g * apart;
        if constexpr (WEIGHTS) {
          dgamma[number][k] += d * apart * scale;
          dbeta[number][k] += d;
        }
      }
    });
    Team<BY_WARP>::sum(sums);
    W sum = sums[0] / (W)columns, along = sums[1] * scale * scale / (W)columns;
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<D, N> slope = slopes.at(number, at), added;
      Pack<T, N> pack = here.at(number, at);
      Pack<G, N> factor = factors.at(number, at);
      if (ADDED) added = more.at(number, at);
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        W apart = (W)wide(pack.of[k]) - average;
        values[k] = scale * ((W)wide(slope.of[k]) * (W)wide(factor.of[k]) - sum - apart * along);
      }
      narrow_all(slope.of, values);
      if (ADDED) slope = sum_of(slope, added);
      store_pack(dx + start + at, slope);
    });
  }
  if constexpr (WEIGHTS) {
    W* sums = slab_sums + blockIdx.x * columns;
    put_weights<N, PACKS, BY_WARP>(dgamma, sums, columns);
    put_weights<N, PACKS, BY_WARP>(dbeta, sums + gridDim.x * columns, columns);
  }
}

// Sums over the rows of a slab: of dy normal, then of dy, each [slabs, columns]; gridDim.y slabs.
template <typename D, typename T, typename S, int N>
__global__ void layer_norm_grad_weight(const D* dy, const T* x, const S* mean, const S* rstd,
                                       Wide<S>* slab_sums, i64 slab_rows, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W dgamma[N] = {}, dbeta[N] = {}, average[2], scale[2];
  Pack<D, N> slope[2];
  Pack<T, N> here[2];
  i64 column = slab_column<N>();
  if (column < columns) {
    each_slab_row<2>(
        slab_rows, rows,
        [&](int i, i64 row) {
          slope[i] = *(const Pack<D, N>*)(dy + row * columns + column);
          here[i] = *(const Pack<T, N>*)(x + row * columns + column);
          average[i] = wide(mean[row]), scale[i] = wide(rstd[row]);
        },
        [&](int i) {
#pragma unroll
          for (int k = 0; k < N; k++) {
            W d = (W)wide(slope[i].of[k]);
            dgamma[k] += d * ((W)wide(here[i].of[k]) - average[i]) * scale[i];
            dbeta[k] += d;
          }
        });
  }
  slab_sum(dgamma, slab_sums + blockIdx.y * columns, columns);
  slab_sum(dbeta, slab_sums + (gridDim.y + blockIdx.y) * columns, columns);
}
