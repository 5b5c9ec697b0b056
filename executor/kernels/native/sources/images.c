/* Batch norm of arrays [rows, channels], and pooling of images whose channels come last. */

#include "arithmetic.h"

#define BLOCK 64 /* channels that a thread adds up at a time */

/* Rows are added up in parts, part by part in order, so that sums do not depend on the threads. */
#define PARTS 64

/* Sums over rows of first(r, c) and second(r, c), into sums of [channels] each. */
#define SUMS(first, second, first_sums, second_sums) \
    do { \
        size length = (rows + PARTS - 1) / PARTS; \
        _Pragma("omp parallel for schedule(static) if(rows * channels > GRAIN)") \
        for (size part = 0; part < PARTS; part++) { \
            float *one = room + part * 2 * channels, *other = one + channels; \
            size stop = (part + 1) * length < rows ? (part + 1) * length : rows; \
            memset(one, 0, 2 * channels * sizeof(float)); \
            for (size r = part * length; r < stop; r++) { \
                _Pragma("omp simd") \
                for (size c = 0; c < channels; c++) { \
                    one[c] += first; \
                    other[c] += second; \
                } \
            } \
        } \
        for (size c = 0; c < channels; c++) { \
            float a = 0.0f, b = 0.0f; \
            for (size part = 0; part < PARTS; part++) { \
                a += room[part * 2 * channels + c]; \
                b += room[part * 2 * channels + channels + c]; \
            } \
            first_sums; \
            second_sums; \
        } \
    } while (0)

/* Floats of room that sums take. */
size sums_room(size channels)
{
    return (PARTS + 1) * 2 * channels;
}

void channel_sums(const float *x, float *sums, size rows, size channels, float *room)
{
    SUMS(x[r * channels + c], 0.0f, sums[c] = a, (void)b);
}

void channel_squares(const float *x, const float *sums, float *squares, size rows, size channels,
                     float *room, float count)
{
    float *mean = room + PARTS * 2 * channels;
    for (size c = 0; c < channels; c++)
        mean[c] = sums[c] / count;
    SUMS((x[r * channels + c] - mean[c]) * (x[r * channels + c] - mean[c]), 0.0f, squares[c] = a,
         (void)b);
}

void batch_norm(const float *x, const float *sums, const float *squares, const float *gamma,
                const float *beta, float *y, size rows, size channels, float *room, float count,
                float epsilon)
{
    float *factor = room, *shift = room + channels;
    for (size c = 0; c < channels; c++) {
        factor[c] = gamma[c] / sqrtf(squares[c] / count + epsilon);
        shift[c] = sums[c] / count;
    }
#pragma omp parallel for schedule(static) if (rows * channels > GRAIN)
    for (size r = 0; r < rows; r++)
#pragma omp simd
        for (size c = 0; c < channels; c++)
            y[r * channels + c] = (x[r * channels + c] - shift[c]) * factor[c] + beta[c];
}

void batch_norm_grad_sums(const float *dy, const float *x, const float *sums, const float *squares,
                          float *dgamma, float *dbeta, size rows, size channels, float *room,
                          float count, float epsilon)
{
    float *mean = room + PARTS * 2 * channels;
    for (size c = 0; c < channels; c++)
        mean[c] = sums[c] / count;
    SUMS(dy[r * channels + c] * (x[r * channels + c] - mean[c]), dy[r * channels + c],
         dgamma[c] = a / sqrtf(squares[c] / count + epsilon), dbeta[c] = b);
}

/* dx = gamma rstd (dy - dbeta / count - x^ dgamma / count). */
void batch_norm_grad_input(const float *dy, const float *x, const float *sums, const float *squares,
                           const float *gamma, const float *dgamma, const float *dbeta, float *dx,
                           size rows, size channels, float *room, float count, float epsilon)
{
    float *mean = room, *along = room + channels, *average = along + channels;
    float *factor = average + channels;
    for (size c = 0; c < channels; c++) {
        float rstd = 1.0f / sqrtf(squares[c] / count + epsilon);
        mean[c] = sums[c] / count;
        along[c] = rstd * dgamma[c] / count;
        average[c] = dbeta[c] / count;
        factor[c] = gamma[c] * rstd;
    }
#pragma omp parallel for schedule(static) if (rows * channels > GRAIN)
    for (size r = 0; r < rows; r++)
#pragma omp simd
        for (size c = 0; c < channels; c++) {
            size i = r * channels + c;
            dx[i] = (dy[i] - (x[i] - mean[c]) * along[c] - average[c]) * factor[c];
        }
}

typedef struct {
    size samples, channels, y, x, j, i, window_y, window_x, stride_y, stride_x, pad_y, pad_x;
} Pooling;

void max_pool(const float *x, float *y, const Pooling *p)
{
    size channels = p->channels;
#pragma omp parallel for collapse(2) schedule(static)
    for (size b = 0; b < p->samples; b++)
        for (size j = 0; j < p->j; j++)
            for (size i = 0; i < p->i; i++) {
                float *out = y + ((b * p->j + j) * p->i + i) * channels;
                for (size c = 0; c < channels; c++)
                    out[c] = -INFINITY;
                for (size q = 0; q < p->window_y; q++)
                    for (size w = 0; w < p->window_x; w++) {
                        size row = j * p->stride_y + q - p->pad_y;
                        size column = i * p->stride_x + w - p->pad_x;
                        if (row < 0 || row >= p->y || column < 0 || column >= p->x)
                            continue;
                        const float *in = x + ((b * p->y + row) * p->x + column) * channels;
#pragma omp simd
                        for (size c = 0; c < channels; c++)
                            out[c] = in[c] > out[c] || in[c] != in[c] ? in[c] : out[c];
                    }
            }
}

/* dy goes to the first of a window's largest, row by row; a thread has samples of its own. */
void max_pool_grad(const float *x, const float *dy, float *dx, const Pooling *p)
{
    size channels = p->channels;
#pragma omp parallel for schedule(static)
    for (size b = 0; b < p->samples; b++) {
        memset(dx + b * p->y * p->x * channels, 0, p->y * p->x * channels * sizeof(float));
        for (size j = 0; j < p->j; j++)
            for (size i = 0; i < p->i; i++) {
                const float *slope = dy + ((b * p->j + j) * p->i + i) * channels;
                for (size begin = 0; begin < channels; begin += BLOCK) {
                    size many = channels - begin < BLOCK ? channels - begin : BLOCK;
                    float largest[BLOCK];
                    int32_t place[BLOCK];
                    for (size c = 0; c < many; c++) {
                        largest[c] = -INFINITY;
                        place[c] = -1;
                    }
                    for (size q = 0; q < p->window_y; q++)
                        for (size w = 0; w < p->window_x; w++) {
                            size row = j * p->stride_y + q - p->pad_y;
                            size column = i * p->stride_x + w - p->pad_x;
                            if (row < 0 || row >= p->y || column < 0 || column >= p->x)
                                continue;
                            int32_t tap = (int32_t)(row * p->x + column);
                            const float *in = x + (b * p->y * p->x + tap) * channels + begin;
#pragma omp simd
                            for (size c = 0; c < many; c++) {
                                int better = in[c] > largest[c] || place[c] < 0;
                                largest[c] = better ? in[c] : largest[c];
                                place[c] = better ? tap : place[c];
                            }
                        }
                    for (size c = 0; c < many; c++)
                        if (place[c] >= 0)
                            dx[(b * p->y * p->x + place[c]) * channels + begin + c] +=
                                slope[begin + c];
                }
            }
    }
}
