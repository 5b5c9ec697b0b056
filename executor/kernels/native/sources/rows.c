/* Norms, rotary positions and cross-entropy of rows. */

#include "arithmetic.h"

#define EACH_ROW _Pragma("omp parallel for schedule(static) if(rows * columns > GRAIN)") \
    for (size r = 0; r < rows; r++)

void layer_norm(const float *x, const float *gamma, const float *beta, float *y, float *means,
                float *rstds, size rows, size columns, float epsilon)
{
    EACH_ROW
    {
        const float *row = x + r * columns;
        float *out = y + r * columns;
        float total = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : total)
        for (size c = 0; c < columns; c++)
            total += row[c];
        float mean = total / columns;
#pragma omp simd reduction(+ : squares)
        for (size c = 0; c < columns; c++)
            squares += (row[c] - mean) * (row[c] - mean);
        float rstd = 1.0f / sqrtf(squares / columns + epsilon);
#pragma omp simd
        for (size c = 0; c < columns; c++)
            out[c] = (row[c] - mean) * rstd * gamma[c] + beta[c];
        means[r] = mean;
        rstds[r] = rstd;
    }
}

/* dx = rstd (g - mean(g) - x^ mean(g x^)), g = dy gamma. */
void layer_norm_grad_input(const float *dy, const float *x, const float *gamma, const float *means,
                           const float *rstds, float *dx, size rows, size columns)
{
    EACH_ROW
    {
        const float *row = x + r * columns, *slope = dy + r * columns;
        float *out = dx + r * columns;
        float mean = means[r], rstd = rstds[r], along = 0.0f, average = 0.0f;
#pragma omp simd reduction(+ : along, average)
        for (size c = 0; c < columns; c++) {
            float g = slope[c] * gamma[c];
            average += g;
            along += g * (row[c] - mean);
        }
        average /= columns;
        along *= rstd * rstd / columns;
#pragma omp simd
        for (size c = 0; c < columns; c++)
            out[c] = (slope[c] * gamma[c] - average - (row[c] - mean) * along) * rstd;
    }
}

void layer_norm_grad_weight(const float *dy, const float *x, const float *means,
                            const float *rstds, float *dgamma, float *dbeta, size rows,
                            size columns)
{
#pragma omp parallel for schedule(static) if (rows * columns > GRAIN)
    for (size begin = 0; begin < columns; begin += 64) {
        size end = begin + 64 < columns ? begin + 64 : columns;
        float gammas[64] = {0}, betas[64] = {0};
        for (size r = 0; r < rows; r++) {
            float mean = means[r], rstd = rstds[r];
#pragma omp simd
            for (size c = begin; c < end; c++) {
                float slope = dy[r * columns + c];
                gammas[c - begin] += slope * (x[r * columns + c] - mean) * rstd;
                betas[c - begin] += slope;
            }
        }
        for (size c = begin; c < end; c++) {
            dgamma[c] = gammas[c - begin];
            dbeta[c] = betas[c - begin];
        }
    }
}

void rms_norm(const float *x, const float *gamma, float *y, float *rstds, size rows, size columns,
              float epsilon)
{
    EACH_ROW
    {
        const float *row = x + r * columns;
        float *out = y + r * columns, squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (size c = 0; c < columns; c++)
            squares += row[c] * row[c];
        float rstd = 1.0f / sqrtf(squares / columns + epsilon);
#pragma omp simd
        for (size c = 0; c < columns; c++)
            out[c] = row[c] * rstd * gamma[c];
        rstds[r] = rstd;
    }
}

/* dx = rstd (g - x^ mean(g x^)), g = dy gamma. */
void rms_norm_grad_input(const float *dy, const float *x, const float *gamma, const float *rstds,
                         float *dx, size rows, size columns)
{
    EACH_ROW
    {
        const float *row = x + r * columns, *slope = dy + r * columns;
        float *out = dx + r * columns, rstd = rstds[r], along = 0.0f;
#pragma omp simd reduction(+ : along)
        for (size c = 0; c < columns; c++)
            along += slope[c] * gamma[c] * row[c];
        along *= rstd * rstd / columns;
#pragma omp simd
        for (size c = 0; c < columns; c++)
            out[c] = (slope[c] * gamma[c] - row[c] * along) * rstd;
    }
}

void rms_norm_grad_weight(const float *dy, const float *x, const float *rstds, float *dgamma,
                          size rows, size columns)
{
#pragma omp parallel for schedule(static) if (rows * columns > GRAIN)
    for (size begin = 0; begin < columns; begin += 64) {
        size end = begin + 64 < columns ? begin + 64 : columns;
        float gammas[64] = {0};
        for (size r = 0; r < rows; r++)
#pragma omp simd
            for (size c = begin; c < end; c++)
                gammas[c - begin] += dy[r * columns + c] * x[r * columns + c] * rstds[r];
        for (size c = begin; c < end; c++)
            dgamma[c] = gammas[c - begin];
    }
}

/* x [outer, positions, inner, columns]: the pairs (c, c + pairs), or (2 c, 2 c + 1) where they are
   `interleaved`, turned by the angle of their position; columns behind them as they are. */
void rotary(const float *x, float *y, const float *cosines, const float *sines, size outer,
            size positions, size inner, size columns, size pairs, size interleaved)
{
    size rows = outer * positions * inner;
    EACH_ROW
    {
        const float *row = x + r * columns;
        const float *cosine = cosines + r / inner % positions * pairs;
        const float *sine = sines + r / inner % positions * pairs;
        float *out = y + r * columns;
        if (interleaved)
#pragma omp simd
            for (size c = 0; c < pairs; c++) {
                out[2 * c] = row[2 * c] * cosine[c] - row[2 * c + 1] * sine[c];
                out[2 * c + 1] = row[2 * c + 1] * cosine[c] + row[2 * c] * sine[c];
            }
        else
#pragma omp simd
            for (size c = 0; c < pairs; c++) {
                out[c] = row[c] * cosine[c] - row[c + pairs] * sine[c];
                out[c + pairs] = row[c + pairs] * cosine[c] + row[c] * sine[c];
            }
        memcpy(out + 2 * pairs, row + 2 * pairs, (columns - 2 * pairs) * sizeof(float));
    }
}

/* Losses and logsumexps of rows of logits; a target below 0 is none. */
void cross_entropy(const float *logits, const int32_t *targets, float *losses, float *logsumexps,
                   size rows, size columns)
{
    EACH_ROW
    {
        const float *row = logits + r * columns;
        float largest = -INFINITY, total = 0.0f;
#pragma omp simd reduction(max : largest)
        for (size c = 0; c < columns; c++)
            largest = row[c] > largest ? row[c] : largest;
#pragma omp simd reduction(+ : total)
        for (size c = 0; c < columns; c++)
            total += exponential(row[c] - largest);
        logsumexps[r] = largest + logf(total);
        losses[r] = targets[r] < 0 ? 0.0f : logsumexps[r] - row[targets[r]];
    }
}

/* Columns `first` to `first + columns` of the vocabulary. */
void cross_entropy_grad(const float *logits, const int32_t *targets, const float *logsumexps,
                        float *slopes, size rows, size columns, size first)
{
    EACH_ROW
    {
        const float *row = logits + r * columns;
        float *out = slopes + r * columns;
        if (targets[r] < 0) {
            memset(out, 0, columns * sizeof(float));
            continue;
        }
        float shift = logsumexps[r];
#pragma omp simd
        for (size c = 0; c < columns; c++)
            out[c] = exponential(row[c] - shift);
        size place = targets[r] - first;
        if (place >= 0 && place < columns)
            out[place] -= 1.0f;
    }
}
