/* Recurrences and their gradients, a token at a time, as `sequence/recurrence.py` has them.

   Of b samples, t tokens, g groups of r heads, n features of a key, p of a value: q k [b t g n],
   v [b t g r p], decay [b t g r] or by row [b t g r n], beta [b t g r] (NULL: the state-space
   scan). A head's state S [n p] stays in a core's cache while the head's tokens are gone through. */

#include "arithmetic.h"

typedef struct {
    size samples, tokens, groups, repeats, keys, values, by_row, chunk;
} Recurrence;

typedef struct {
    const float *query, *key, *value, *decay;
    float beta, rate;
    size by_row;
} Token;

typedef struct {
    const float *query, *key, *value, *decay, *beta;
} Given;

static size place_of(const Recurrence *z, size sample, size token, size group)
{
    return (sample * z->tokens + token) * z->groups + group;
}

static Token token_at(const Recurrence *z, const Given *given, size place, size repeat)
{
    size head = place * z->repeats + repeat;
    Token at = {given->query + place * z->keys, given->key + place * z->keys,
                given->value + head * z->values,
                given->decay + head * (z->by_row ? z->keys : 1),
                given->beta ? given->beta[head] : 1.0f, 0.0f, z->by_row};
    at.rate = exponential(at.decay[0]);
    return at;
}

static inline float rate_of(const Token *at, size row)
{
    return at->by_row ? exponential(at->decay[row]) : at->rate;
}

/* decayed = rates before, and the change: the value less what the state has along the key. */
static void decay_state(const Recurrence *z, const Token *at, int corrects, const float *before,
                        float *decayed, float *change)
{
    size keys = z->keys, values = z->values;
    for (size j = 0; j < values; j++)
        change[j] = at->value[j];
    for (size i = 0; i < keys; i++) {
        float rate = rate_of(at, i), seen = corrects ? at->key[i] : 0.0f;
        const float *from = before + i * values;
        float *row = decayed + i * values;
#pragma omp simd
        for (size j = 0; j < values; j++) {
            float kept = rate * from[j];
            row[j] = kept;
            change[j] -= seen * kept;
        }
    }
}

/* after = decayed + key (beta change); `after` may be `decayed`. Where there is a y, Sᵀ query. */
static void lay_down(const Recurrence *z, const Token *at, const float *decayed,
                     const float *change, float *after, float *y)
{
    size keys = z->keys, values = z->values;
    for (size j = 0; y && j < values; j++)
        y[j] = 0.0f;
    for (size i = 0; i < keys; i++) {
        float along = at->key[i] * at->beta, read = at->query[i];
        const float *from = decayed + i * values;
        float *row = after + i * values;
        if (y) {
#pragma omp simd
            for (size j = 0; j < values; j++) {
                row[j] = from[j] + along * change[j];
                y[j] += read * row[j];
            }
        } else {
#pragma omp simd
            for (size j = 0; j < values; j++)
                row[j] = from[j] + along * change[j];
        }
    }
}

/* scratch: of every head a state and a change. */
void recurrence(const float *query, const float *key, const float *value, const float *decay,
                const float *beta, float *y, const Recurrence *z, float *scratch)
{
    Given given = {query, key, value, decay, beta};
    size heads = z->samples * z->groups * z->repeats, area = z->keys * z->values;
#pragma omp parallel for schedule(static)
    for (size head = 0; head < heads; head++) {
        size repeat = head % z->repeats, group = head / z->repeats % z->groups;
        size sample = head / z->repeats / z->groups;
        float *state = scratch + head * (area + z->values), *change = state + area;
        memset(state, 0, area * sizeof(float));
        for (size t = 0; t < z->tokens; t++) {
            size place = place_of(z, sample, t, group);
            Token at = token_at(z, &given, place, repeat);
            decay_state(z, &at, beta != NULL, state, state, change);
            lay_down(z, &at, state, change, state,
                     y + (place * z->repeats + repeat) * z->values);
        }
    }
}

/* One token backward: slope is the gradient of the state behind it, then of that before it. */
static void take_back(const Recurrence *z, const Token *at, int corrects, const float *decayed,
                      const float *after, const float *change, float *slope, const float *dy,
                      float *along, float *dquery, float *dkey, float *dvalue, float *ddecay,
                      float *dbeta)
{
    size keys = z->keys, values = z->values;
    for (size j = 0; j < values; j++)
        along[j] = 0.0f;
    for (size i = 0; i < keys; i++) {
        float read = at->query[i], written = at->key[i], of_query = 0.0f, of_key = 0.0f;
        const float *state = after + i * values;
        float *row = slope + i * values;
#pragma omp simd reduction(+ : of_query, of_key)
        for (size j = 0; j < values; j++) {
            of_query += state[j] * dy[j];
            row[j] += read * dy[j];
            along[j] += written * row[j];
            of_key += row[j] * change[j];
        }
        dquery[i] += of_query;
        dkey[i] += at->beta * of_key;
    }
    float of_beta = 0.0f, of_decay = 0.0f;
#pragma omp simd reduction(+ : of_beta)
    for (size j = 0; j < values; j++) {
        of_beta += along[j] * change[j];
        along[j] *= at->beta;
        dvalue[j] = along[j];
    }
    for (size i = 0; i < keys; i++) {
        float written = corrects ? at->key[i] : 0.0f, rate = rate_of(at, i);
        float of_key = 0.0f, of_rate = 0.0f;
        const float *state = decayed + i * values;
        float *row = slope + i * values;
#pragma omp simd reduction(+ : of_key, of_rate)
        for (size j = 0; j < values; j++) {
            float kept = row[j] - written * along[j];
            of_key += state[j] * along[j];
            of_rate += kept * state[j];
            row[j] = rate * kept;
        }
        if (corrects)
            dkey[i] -= of_key;
        if (at->by_row)
            ddecay[i] = of_rate;
        of_decay += of_rate;
    }
    if (!at->by_row)
        *ddecay = of_decay;
    if (corrects)
        *dbeta = of_beta;
}

/* scratch: of every group the states before chunks, those within one, a decayed one, a slope, and
   two rows. Heads of a group add to the gradients of what they share one after the other. */
void recurrence_grad(const float *query, const float *key, const float *value, const float *decay,
                     const float *beta, const float *dy, float *dquery, float *dkey,
                     float *dvalue, float *ddecay, float *dbeta, const Recurrence *z,
                     float *scratch)
{
    Given given = {query, key, value, decay, beta};
    size area = z->keys * z->values, chunk = z->chunk, chunks = (z->tokens + chunk - 1) / chunk;
    size room = (chunks + chunk + 3) * area + 2 * z->values;
    int corrects = beta != NULL;
    memset(dquery, 0, z->samples * z->tokens * z->groups * z->keys * sizeof(float));
    memset(dkey, 0, z->samples * z->tokens * z->groups * z->keys * sizeof(float));
#pragma omp parallel for schedule(static)
    for (size both = 0; both < z->samples * z->groups; both++) {
        size sample = both / z->groups, group = both % z->groups;
        float *begins = scratch + both * room, *states = begins + chunks * area;
        float *decayed = states + (chunk + 1) * area, *slope = decayed + area;
        float *change = slope + area, *along = change + z->values;
        for (size repeat = 0; repeat < z->repeats; repeat++) {
            memset(states, 0, area * sizeof(float));
            for (size t = 0; t < z->tokens; t++) {
                if (t % chunk == 0)
                    memcpy(begins + t / chunk * area, states, area * sizeof(float));
                Token at = token_at(z, &given, place_of(z, sample, t, group), repeat);
                decay_state(z, &at, corrects, states, states, change);
                lay_down(z, &at, states, change, states, NULL);
            }
            memset(slope, 0, area * sizeof(float));
            for (size number = chunks - 1; number >= 0; number--) {
                size first = number * chunk, end = first + chunk;
                end = end < z->tokens ? end : z->tokens;
                memcpy(states, begins + number * area, area * sizeof(float));
                for (size t = first; t < end; t++) {
                    float *before = states + (t - first) * area;
                    Token at = token_at(z, &given, place_of(z, sample, t, group), repeat);
                    decay_state(z, &at, corrects, before, before + area, change);
                    lay_down(z, &at, before + area, change, before + area, NULL);
                }
                for (size t = end - 1; t >= first; t--) {
                    const float *before = states + (t - first) * area;
                    size place = place_of(z, sample, t, group);
                    size head = place * z->repeats + repeat;
                    Token at = token_at(z, &given, place, repeat);
                    decay_state(z, &at, corrects, before, decayed, change);
                    take_back(z, &at, corrects, decayed, before + area, change, slope,
                              dy + head * z->values, along, dquery + place * z->keys,
                              dkey + place * z->keys, dvalue + head * z->values,
                              ddecay + head * (z->by_row ? z->keys : 1),
                              corrects ? dbeta + head : NULL);
                }
            }
        }
    }
}
