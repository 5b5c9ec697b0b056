/* Functions of one value that compilers turn into vector instructions: no branch, no call. */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef long size;

/* Elements below which threads cost more than they save. */
#define GRAIN 32768

/* exp(x) to 1 part in 10^7; 0 below the smallest normal number, infinity close to the largest.
   x = n log 2 + r with |r| <= log(2) / 2; a polynomial of r (Cephes' expf, 1992) times 2^n. */
static inline float exponential(float x)
{
    float clipped = x > 88.3762626647949f ? 88.3762626647949f : x;
    float n = __builtin_rintf(clipped * 1.44269504088896341f);
    float r = clipped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    n = n < -126.0f ? -126.0f : n;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    float inside = x > 88.3762626647949f ? INFINITY : p * power;
    return x < -87.3365447505f ? 0.0f : inside;
}

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + exponential(-x));
}
