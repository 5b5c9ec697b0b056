/* Functions of every element, and sums of tensors of one shape or with a row for all rows. */

#include "arithmetic.h"

#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi), Hendrycks and Gimpel 2016, section 2 */
#define GELU_CUBIC 0.044715f

#define EACH(n) _Pragma("omp parallel for simd schedule(static) if(n > GRAIN)") \
    for (size i = 0; i < n; i++)

/* x (1 + tanh u) / 2 = x sigmoid(2 u). */
void gelu(const float *x, float *y, size n)
{
    EACH(n)
    {
        float v = x[i];
        y[i] = v * sigmoid(2.0f * GELU_SCALE * (v + GELU_CUBIC * v * v * v));
    }
}

void gelu_grad(const float *x, const float *dy, float *dx, size n)
{
    EACH(n)
    {
        float v = x[i], square = v * v;
        float s = sigmoid(2.0f * GELU_SCALE * (v + GELU_CUBIC * v * square));
        float slope = 2.0f * GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * square);
        dx[i] = dy[i] * (s + v * s * (1.0f - s) * slope);
    }
}

/* Phi(-|x|) and exp(-x^2 / 2), by the polynomial that `functions.py` fits: of degree 6. */
static inline float tail_of(float size_of_x, float density, const float *fit)
{
    float w = fit[1] / (size_of_x + fit[0]) + fit[2];
    float p = fit[9];
    p = p * w + fit[8];
    p = p * w + fit[7];
    p = p * w + fit[6];
    p = p * w + fit[5];
    p = p * w + fit[4];
    p = p * w + fit[3];
    return p * density;
}

void gelu_erf(const float *x, float *y, size n, const float *fit)
{
    EACH(n)
    {
        float v = x[i], a = fabsf(v);
        float tail = tail_of(a, exponential(-0.5f * v * v), fit);
        y[i] = (v > 0.0f ? v : 0.0f) - a * tail;
    }
}

void gelu_erf_grad(const float *x, const float *dy, float *dx, size n, const float *fit)
{
    EACH(n)
    {
        float v = x[i], a = fabsf(v), density = exponential(-0.5f * v * v);
        float r = tail_of(a, density, fit) - a * 0.3989422804014327f * density;
        dx[i] = dy[i] * (v > 0.0f ? 1.0f - r : r);
    }
}

void silu(const float *x, float *y, size n)
{
    EACH(n) y[i] = x[i] * sigmoid(x[i]);
}

void silu_grad(const float *x, const float *dy, float *dx, size n)
{
    EACH(n)
    {
        float s = sigmoid(x[i]);
        dx[i] = dy[i] * s * (1.0f + x[i] * (1.0f - s));
    }
}

void swiglu(const float *gate, const float *up, float *y, size n)
{
    EACH(n) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

void swiglu_grad(const float *gate, const float *up, const float *dy, float *dgate, float *dup,
                 size n)
{
    EACH(n)
    {
        float s = sigmoid(gate[i]), value = gate[i] * s, slope = dy[i], factor = up[i];
        dup[i] = slope * value;
        dgate[i] = slope * factor * (s + value * (1.0f - s));
    }
}

void relu(const float *x, float *y, size n)
{
    EACH(n) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

void relu_grad(const float *x, const float *dy, float *dx, size n)
{
    EACH(n) dx[i] = x[i] > 0.0f ? dy[i] : 0.0f * dy[i];
}

void scale(const float *x, float *y, size n, float factor)
{
    EACH(n) y[i] = x[i] * factor;
}

void add(const float *a, const float *b, float *y, size n)
{
    EACH(n) y[i] = a[i] + b[i];
}

void copy(const float *x, float *y, size n)
{
    EACH(n) y[i] = x[i];
}

void add_row(const float *x, const float *row, float *y, size rows, size columns)
{
#pragma omp parallel for schedule(static) if (rows * columns > GRAIN)
    for (size r = 0; r < rows; r++)
#pragma omp simd
        for (size c = 0; c < columns; c++)
            y[r * columns + c] = x[r * columns + c] + row[c];
}

/* Sums over rows; every thread has columns of its own, so that they do not depend on threads. */
void sum_rows(const float *x, float *y, size rows, size columns)
{
#pragma omp parallel for schedule(static) if (rows * columns > GRAIN)
    for (size begin = 0; begin < columns; begin += 64) {
        size end = begin + 64 < columns ? begin + 64 : columns;
        float sums[64] = {0};
        for (size r = 0; r < rows; r++)
#pragma omp simd
            for (size c = begin; c < end; c++)
                sums[c - begin] += x[r * columns + c];
        for (size c = begin; c < end; c++)
            y[c] = sums[c - begin];
    }
}
