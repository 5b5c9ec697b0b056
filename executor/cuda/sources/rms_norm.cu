// RMS norm with its gradients, and rows brought to length one: R rows, D features, packs of N.
//
// x is T, gamma G, what is kept of a row S, dy and dx are D (float where gradients of microbatches
// were added up before); arithmetic is that of S.
#include "slabs.cuh"

// y and rstd = 1 / sqrt(mean(x^2) + epsilon) of (x, gamma). ADDED: of x + other, which goes to `sum`.
template <typename T, typename G, typename S, int N, int PACKS, bool BY_WARP, bool ADDED>
__global__ void TEAM_BOUNDS(BY_WARP, PACKS, false)
    rms_norm(const T* x, const T* other, const G* gamma, T* sum, T* y, S* rstd, double epsilon,
             i64 rows, i64 columns) {
  typedef Wide<S> W;
  Held<G, N, shared_packs(PACKS), BY_WARP> factors;
  factors.fetch(gamma, columns);
  for (i64 row = Team<BY_WARP>::first_row(); row < rows; row += Team<BY_WARP>::row_stride()) {
    i64 start = row * columns;
    Held<T, N, PACKS, BY_WARP> here;
    here.fetch(x + start, columns);
    if (ADDED) {
      Held<T, N, PACKS, BY_WARP> more;
      more.fetch(other + start, columns);
      here.add(more, sum + start, columns);
    }
    W squares[1] = {here.template squares<W>(columns)};
    Team<BY_WARP>::sum(squares);
    W scale = (W)1 / sqrt_of(squares[0] / (W)columns + (W)epsilon);
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<T, N> pack = here.at(number, at);
      Pack<G, N> factor = factors.at(number, at);
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) values[k] = (W)wide(pack.of[k]) * (scale * (W)wide(factor.of[k]));
      put<N>(y + start + at, values);
    });
    if (Team<BY_WARP>::thread() == 0) rstd[row] = narrow<S>(scale);
  }
}

// dx = rstd (g - x rstd^2 mean(g x)) with g = dy gamma. ADDED: dx + other, of dx as rounded.
// WEIGHTS: what the block's rows add to the gradient of gamma too, [blocks, columns].
template <typename D, typename T, typename G, typename S, int N, int PACKS, bool BY_WARP,
          bool ADDED, bool WEIGHTS>
__global__ void TEAM_BOUNDS(BY_WARP, PACKS, WEIGHTS)
    rms_norm_grad_input(const D* dy, const T* x, const G* gamma, const S* rstd, const D* other,
                        D* dx, Wide<S>* slab_sums, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W dgamma[WEIGHTS ? PACKS : 1][N] = {};
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
    W scale = wide(rstd[row]), along[1] = {0};
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<D, N> slope = slopes.at(number, at);
      Pack<T, N> pack = here.at(number, at);
      Pack<G, N> factor = factors.at(number, at);
#pragma unroll
      for (int k = 0; k < N; k++) {
        W d = (W)wide(slope.of[k]), x_here = (W)wide(pack.of[k]);
        along[0] += d * (W)wide(factor.of[k]) * x_here;
        if constexpr (WEIGHTS) dgamma[number][k] += d * x_here * scale;
      }
    });
    Team<BY_WARP>::sum(along);
    W part = along[0] * scale * scale / (W)columns;
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<D, N> slope = slopes.at(number, at), added;
      Pack<T, N> pack = here.at(number, at);
      Pack<G, N> factor = factors.at(number, at);
      if (ADDED) added = more.at(number, at);
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        W g = (W)wide(slope.of[k]) * (W)wide(factor.of[k]);
        values[k] = scale * (g - (W)wide(pack.of[k]) * part);
      }
      narrow_all(slope.of, values);
      if (ADDED) slope = sum_of(slope, added);
      store_pack(dx + start + at, slope);
    });
  }
  if constexpr (WEIGHTS) put_weights<N, PACKS, BY_WARP>(dgamma, slab_sums + blockIdx.x * columns, columns);
}

// Sums over the rows of a slab of dy x rstd, [slabs, columns]; gridDim.y slabs.
template <typename D, typename T, typename S, int N>
__global__ void rms_norm_grad_weight(const D* dy, const T* x, const S* rstd, Wide<S>* slab_sums,
                                     i64 slab_rows, i64 rows, i64 columns) {
  typedef Wide<S> W;
  W dgamma[N] = {}, scale[2];
  Pack<D, N> slope[2];
  Pack<T, N> here[2];
  i64 column = slab_column<N>();
  if (column < columns) {
    each_slab_row<2>(
        slab_rows, rows,
        [&](int i, i64 row) {
          slope[i] = *(const Pack<D, N>*)(dy + row * columns + column);
          here[i] = *(const Pack<T, N>*)(x + row * columns + column);
          scale[i] = wide(rstd[row]);
        },
        [&](int i) {
#pragma unroll
          for (int k = 0; k < N; k++) {
            dgamma[k] += (W)wide(slope[i].of[k]) * (W)wide(here[i].of[k]) * scale[i];
          }
        });
  }
  slab_sum(dgamma, slab_sums + blockIdx.y * columns, columns);
}

// Rows of length one, and one over the length that they had, which is at least `epsilon`.
template <typename T, typename S, int N, int PACKS, bool BY_WARP>
__global__ void TEAM_BOUNDS(BY_WARP, PACKS, false)
    l2_normalize(const T* x, T* y, S* rnorm, double epsilon, i64 rows, i64 columns) {
  typedef Wide<S> W;
  for (i64 row = Team<BY_WARP>::first_row(); row < rows; row += Team<BY_WARP>::row_stride()) {
    i64 start = row * columns;
    Held<T, N, PACKS, BY_WARP> here;
    here.fetch(x + start, columns);
    W squares[1] = {here.template squares<W>(columns)};
    Team<BY_WARP>::sum(squares);
    W scale = (W)1 / larger(sqrt_of(squares[0]), (W)epsilon);
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<T, N> pack = here.at(number, at);
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) values[k] = (W)wide(pack.of[k]) * scale;
      put<N>(y + start + at, values);
    });
    if (Team<BY_WARP>::thread() == 0) rnorm[row] = narrow<S>(scale);
  }
}

// dx = rnorm (dy - y sum(dy y)).
template <typename D, typename T, typename S, int N, int PACKS, bool BY_WARP>
__global__ void TEAM_BOUNDS(BY_WARP, PACKS, false)
    l2_normalize_grad(const D* dy, const T* y, const S* rnorm, D* dx, i64 rows, i64 columns) {
  typedef Wide<S> W;
  for (i64 row = Team<BY_WARP>::first_row(); row < rows; row += Team<BY_WARP>::row_stride()) {
    i64 start = row * columns;
    Held<D, N, PACKS, BY_WARP> slopes;
    Held<T, N, PACKS, BY_WARP> here;
    slopes.fetch(dy + start, columns);
    here.fetch(y + start, columns);
    W scale = wide(rnorm[row]), along[1] = {0};
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<D, N> slope = slopes.at(number, at);
      Pack<T, N> pack = here.at(number, at);
#pragma unroll
      for (int k = 0; k < N; k++) along[0] += (W)wide(slope.of[k]) * (W)wide(pack.of[k]);
    });
    Team<BY_WARP>::sum(along);
    each_pack<N, PACKS, BY_WARP>(columns, [&](int number, i64 at) {
      Pack<D, N> slope = slopes.at(number, at);
      Pack<T, N> pack = here.at(number, at);
      W values[N];
#pragma unroll
      for (int k = 0; k < N; k++) {
        values[k] = scale * ((W)wide(slope.of[k]) - (W)wide(pack.of[k]) * along[0]);
      }
      put<N>(dx + start + at, values);
    });
  }
}
