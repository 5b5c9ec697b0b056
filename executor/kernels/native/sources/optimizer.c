/* The end of a step: sums of squares, and AdamW in one pass. */

#include "arithmetic.h"

#define PARTS 1024

/* Added up in double, in parts whose sizes do not depend on the threads. */
double squared_sum(const float *x, size n)
{
    double sums[PARTS];
    size length = (n + PARTS - 1) / PARTS;
    length = length < 4096 ? 4096 : length;
    size parts = (n + length - 1) / length;
#pragma omp parallel for schedule(static) if (n > GRAIN)
    for (size part = 0; part < parts; part++) {
        size end = (part + 1) * length < n ? (part + 1) * length : n;
        double total = 0.0;
#pragma omp simd reduction(+ : total)
        for (size i = part * length; i < end; i++)
            total += (double)x[i] * x[i];
        sums[part] = total;
    }
    double total = 0.0;
    for (size part = 0; part < parts; part++)
        total += sums[part];
    return total;
}

/* Loshchilov and Hutter 2019, algorithm 2, as `optimizer.py` writes it. */
void adamw(const float *w, const float *gradient, float *m, float *v, float *target, size n,
           float scale, float beta1, float beta2, float floor, float pace, float keep)
{
#pragma omp parallel for simd schedule(static) if (n > GRAIN)
    for (size i = 0; i < n; i++) {
        float g = gradient[i] * scale;
        float first = m[i] * beta1 + g * (1.0f - beta1);
        float second = v[i] * beta2 + g * g * (1.0f - beta2);
        m[i] = first;
        v[i] = second;
        target[i] = w[i] * keep - pace * first / (sqrtf(second) + floor);
    }
}
