/* Attention by blocks of queries, one pair of a sample and a group of heads at a time.

   Shapes as in `attention/geometry.py`: q [b t g r d], k [b s g d], v [b s g u], logsumexp
   [b t g r]. A query at t sees all keys, or those up to t + offset where `causal`. Head dims are
   multiples of WIDTH. */

#include "arithmetic.h"
#include <omp.h>

#if defined(__AVX512F__)
#define WIDTH 16
#define TILE_ROWS 8
#else
#define WIDTH 8
#define TILE_ROWS 4
#endif
#define QUERIES 64 /* of a block */

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

typedef struct {
    size samples, queries, keys, groups, repeats, head_dim, value_dim, causal, offset;
} Geometry;

int vector_width(void)
{
    return WIDTH;
}

/* c [rows, across WIDTH] (+)= a b: a strip of c that stays in registers. */
static inline __attribute__((always_inline)) void tile(const int rows, const int across,
                                                       const float *a, size a_row, size a_column,
                                                       const float *b, size b_row, float *c,
                                                       size c_row, size depth, int adds)
{
    vector sums[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < across; j++)
            sums[i][j] = adds ? *(const vector *)(c + i * c_row + j * WIDTH) : (vector){0};
    for (size k = 0; k < depth; k++) {
        vector right[2];
#pragma GCC unroll 2
        for (int j = 0; j < across; j++)
            right[j] = *(const vector *)(b + k * b_row + j * WIDTH);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float left = a[i * a_row + k * a_column];
#pragma GCC unroll 2
            for (int j = 0; j < across; j++)
                sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < across; j++)
            *(vector *)(c + i * c_row + j * WIDTH) = sums[i][j];
}

/* c [rows, columns] (+)= a [rows, depth] b [depth, columns]; columns are a multiple of WIDTH. */
static void product(const float *a, size a_row, size a_column, const float *b, size b_row, float *c,
                    size c_row, size rows, size columns, size depth, int adds)
{
    for (size j = 0; j < columns; j += 2 * WIDTH) {
        int pair = j + WIDTH < columns;
        size i = 0;
        for (; i + TILE_ROWS <= rows; i += TILE_ROWS)
            if (pair)
                tile(TILE_ROWS, 2, a + i * a_row, a_row, a_column, b + j, b_row,
                     c + i * c_row + j, c_row, depth, adds);
            else
                tile(TILE_ROWS, 1, a + i * a_row, a_row, a_column, b + j, b_row,
                     c + i * c_row + j, c_row, depth, adds);
        for (; i < rows; i++)
            if (pair)
                tile(1, 2, a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row,
                     depth, adds);
            else
                tile(1, 1, a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row,
                     depth, adds);
    }
}

/* Rows [keys, dim] as columns [dim, padded], zeros behind the last key. */
static void turn(const float *rows, size row, float *columns, size keys, size padded, size dim)
{
    for (size begin = 0; begin < padded; begin += WIDTH)
        for (size d = 0; d < dim; d++)
            for (size s = begin; s < begin + WIDTH; s++)
                columns[d * padded + s] = s < keys ? rows[s * row + d] : 0.0f;
}

static inline size seen(const Geometry *g, size query)
{
    size end = query + g->offset + 1;
    return g->causal && end < g->keys ? end : g->keys;
}

static inline size up(size n)
{
    return (n + WIDTH - 1) / WIDTH * WIDTH;
}

/* Floats of scratch that a thread takes. */
size attention_scratch(const Geometry *g)
{
    size padded = up(g->keys);
    return padded * (g->head_dim + g->value_dim + 2 * QUERIES) + QUERIES * g->head_dim;
}

static void scaled(const float *q, size row, float *out, size rows, size dim, float scale)
{
    for (size t = 0; t < rows; t++)
#pragma omp simd
        for (size d = 0; d < dim; d++)
            out[t * dim + d] = q[t * row + d] * scale;
}

void attention(const float *q, const float *k, const float *v, float *out, float *logsumexp,
               const Geometry *g, float scale, float *scratch)
{
    size padded = up(g->keys), heads = g->groups * g->repeats, each = attention_scratch(g);
    size q_row = heads * g->head_dim, k_row = g->groups * g->head_dim;
    size o_row = heads * g->value_dim, v_row = g->groups * g->value_dim;
#pragma omp parallel for collapse(2) schedule(static)
    for (size b = 0; b < g->samples; b++)
        for (size head = 0; head < g->groups; head++) {
            float *turned = scratch + omp_get_thread_num() * each;
            float *scores = turned + padded * g->head_dim, *query = scores + padded * QUERIES;
            const float *key = k + b * g->keys * k_row + head * g->head_dim;
            const float *value = v + b * g->keys * v_row + head * g->value_dim;
            turn(key, k_row, turned, g->keys, padded, g->head_dim);
            for (size repeat = 0; repeat < g->repeats; repeat++)
                for (size t = 0; t < g->queries; t += QUERIES) {
                    size rows = g->queries - t < QUERIES ? g->queries - t : QUERIES;
                    size first = b * g->queries + t, place = head * g->repeats + repeat;
                    size end = seen(g, t + rows - 1), wide = up(end);
                    scaled(q + first * q_row + place * g->head_dim, q_row, query, rows,
                           g->head_dim, scale);
                    product(query, g->head_dim, 1, turned, padded, scores, padded, rows, wide,
                            g->head_dim, 0);
                    float *to = out + first * o_row + place * g->value_dim;
                    float totals[QUERIES];
                    for (size i = 0; i < rows; i++) {
                        size last = seen(g, t + i);
                        float *row = scores + i * padded, largest = -INFINITY, total = 0.0f;
#pragma omp simd reduction(max : largest)
                        for (size s = 0; s < last; s++)
                            largest = row[s] > largest ? row[s] : largest;
#pragma omp simd reduction(+ : total)
                        for (size s = 0; s < last; s++) {
                            row[s] = exponential(row[s] - largest);
                            total += row[s];
                        }
                        for (size s = last; s < end; s++)
                            row[s] = 0.0f;
                        totals[i] = 1.0f / total;
                        logsumexp[(first + i) * heads + place] = largest + logf(total);
                    }
                    product(scores, padded, 1, value, v_row, to, o_row, rows, g->value_dim, end, 0);
                    for (size i = 0; i < rows; i++)
#pragma omp simd
                        for (size u = 0; u < g->value_dim; u++)
                            to[i * o_row + u] *= totals[i];
                }
        }
}

/* With P = exp(scores - logsumexp) and D = sum_u dout out: dv = P^T dout, dS = P (dout v^T - D),
   dq = scale dS k, dk = scale dS^T q (Dao 2022, appendix B.2). */
void attention_grad(const float *q, const float *k, const float *v, const float *out,
                    const float *logsumexp, const float *dout, float *dq, float *dk, float *dv,
                    const Geometry *g, float scale, float *scratch)
{
    size padded = up(g->keys), heads = g->groups * g->repeats, each = attention_scratch(g);
    size q_row = heads * g->head_dim, k_row = g->groups * g->head_dim;
    size o_row = heads * g->value_dim, v_row = g->groups * g->value_dim;
#pragma omp parallel for collapse(2) schedule(static)
    for (size b = 0; b < g->samples; b++)
        for (size head = 0; head < g->groups; head++) {
            float *turned = scratch + omp_get_thread_num() * each;
            float *scores = turned + padded * g->head_dim, *query = scores + padded * QUERIES;
            float *values = query + QUERIES * g->head_dim;
            float *slopes = values + padded * g->value_dim;
            size key_place = b * g->keys * k_row + head * g->head_dim;
            size value_place = b * g->keys * v_row + head * g->value_dim;
            turn(k + key_place, k_row, turned, g->keys, padded, g->head_dim);
            turn(v + value_place, v_row, values, g->keys, padded, g->value_dim);
            for (size s = 0; s < g->keys; s++) {
                memset(dk + key_place + s * k_row, 0, g->head_dim * sizeof(float));
                memset(dv + value_place + s * v_row, 0, g->value_dim * sizeof(float));
            }
            for (size repeat = 0; repeat < g->repeats; repeat++)
                for (size t = 0; t < g->queries; t += QUERIES) {
                    size rows = g->queries - t < QUERIES ? g->queries - t : QUERIES;
                    size first = b * g->queries + t, place = head * g->repeats + repeat;
                    size end = seen(g, t + rows - 1), wide = up(end);
                    size query_place = first * q_row + place * g->head_dim;
                    size out_place = first * o_row + place * g->value_dim;
                    const float *slope = dout + out_place;
                    scaled(q + query_place, q_row, query, rows, g->head_dim, scale);
                    product(query, g->head_dim, 1, turned, padded, scores, padded, rows, wide,
                            g->head_dim, 0);
                    product(slope, o_row, 1, values, padded, slopes, padded, rows, wide,
                            g->value_dim, 0);
                    for (size i = 0; i < rows; i++) {
                        size last = seen(g, t + i);
                        float *row = scores + i * padded, *other = slopes + i * padded;
                        const float *of_query = slope + i * o_row, *result = out + out_place + i * o_row;
                        float shift = logsumexp[(first + i) * heads + place], along = 0.0f;
#pragma omp simd reduction(+ : along)
                        for (size u = 0; u < g->value_dim; u++)
                            along += of_query[u] * result[u];
#pragma omp simd
                        for (size s = 0; s < last; s++) {
                            row[s] = exponential(row[s] - shift);
                            other[s] = row[s] * (other[s] - along);
                        }
                        for (size s = last; s < end; s++)
                            row[s] = other[s] = 0.0f;
                    }
                    product(scores, 1, padded, slope, o_row, dv + value_place, v_row, end,
                            g->value_dim, rows, 1);
                    product(slopes, 1, padded, query, g->head_dim, dk + key_place, k_row, end,
                            g->head_dim, rows, 1);
                    product(slopes, padded, 1, k + key_place, k_row, dq + query_place, q_row, rows,
                            g->head_dim, end, 0);
                    for (size i = 0; i < rows; i++)
#pragma omp simd
                        for (size d = 0; d < g->head_dim; d++)
                            dq[query_place + i * q_row + d] *= scale;
                }
        }
}
