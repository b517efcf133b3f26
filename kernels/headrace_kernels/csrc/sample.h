// Sampling over rows of float32 logits [row, vocabulary]; its specification is the engine's numpy code, result for
// result (headrace/engine/logit_row.py, noise.py, survivors.py).
//
// Built for AVX2 without fused multiplications, whatever the processor: every operation rounds as numpy's does, and what
// is summed are whole numbers, so that a row's outcome depends neither on lanes nor on threads nor on other rows.
#pragma once
#include <cstdint>

extern "C" {

// The first of the largest values of each row, and whether all of the row is finite. Row i starts at logits[i x stride].
void headrace_best(
    const float* logits, int64_t rows, int64_t stride, int64_t vocabulary, int64_t* tokens, uint8_t* finite);

// One draw. row: of the logits, which are finite or -inf. best: its first largest token. log_min_p: -inf is off.
struct DrawRequest {
    int64_t row;
    int64_t best;
    int64_t seed;
    int64_t choice;
    int64_t position;
    int64_t top_k;
    double temperature;
    double top_p;
    double log_min_p;
};
void headrace_draw(
    const float* logits, int64_t stride, int64_t vocabulary, const DrawRequest* requests, int64_t count, int64_t* tokens);

// How `token` stands in a row whose logits are finite or -inf, not all -inf. mass: sum of e^(logit - best), in units of
// 2^-34; before: tokens that rank before it; top: the `count` best that are finite, best first, of equals the lower id.
// Returns how many those are.
int64_t headrace_standing(
    const float* row, int64_t vocabulary, int64_t token, int64_t count, double* mass, int64_t* before, int64_t* top);
}
