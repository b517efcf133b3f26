// Sampling: the best token, draws among the survivors of the filters, and how a token stands among the others.
#include "sample.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

// Without "fma", and built with -ffp-contract=off for CFLAGS that bring it: what is rounded twice in numpy must be rounded
// twice here.
#pragma GCC target("avx2")

namespace {

#include "sample_noise.h"
#include "sample_row.h"

constexpr int64_t SCANNED = 1024;  // tokens whose best is looked for at once

struct Best {
    int64_t token;
    bool finite;
};

Best best_of(const float* row, int64_t size) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), last = _mm256_set1_epi32(0x7f7fffff);
    __m256i infinite = _mm256_setzero_si256();
    float best = NOTHING;
    int64_t place = 0;
    for (int64_t start = 0; start < size; start += SCANNED) {
        const int64_t end = std::min(size, start + SCANNED);
        __m256 values = _mm256_set1_ps(NOTHING);
        int64_t i = start;
        for (; i + LANES <= end; i += LANES) {
            const __m256 here = _mm256_loadu_ps(row + i);
            values = _mm256_max_ps(values, here);
            const __m256i bits = _mm256_and_si256(_mm256_castps_si256(here), magnitude);
            infinite = _mm256_or_si256(infinite, _mm256_cmpgt_epi32(bits, last));
        }
        float found = largest(values);
        for (; i < end; ++i) {
            found = row[i] > found ? row[i] : found;
            if (!std::isfinite(row[i])) infinite = _mm256_set1_epi32(-1);
        }
        if (found > best) best = found, place = start;
    }
    while (place + 1 < size && row[place] != best) ++place;
    return {place, _mm256_testz_si256(infinite, infinite) != 0};
}

Stream stream_of(const DrawRequest& draw) {
    const uint64_t seed = (uint64_t)draw.seed;
    return {{(uint32_t)seed, (uint32_t)(seed >> 32)}, (uint32_t)draw.position, (uint32_t)draw.choice};
}

// (logit - best) / temperature as the draw compares it.
struct Scores {
    const float* row;
    double best;
    double temperature;

    double operator()(int64_t token) const { return ((double)row[token] - best) / temperature; }
};

// What float32 may take from a bound, with room to spare: those that matter stay below 100.
constexpr double SLACK = 1e-3;

// The draw among all tokens. Most cost their word and a bound of its noise.
int64_t draw_from_all(const float* row, int64_t size, const DrawRequest& draw, const Scores& scores) {
    const Stream stream = stream_of(draw);
    const Heat heat((float)scores.best, draw.temperature);
    Leader leader = {scores(draw.best) + noise_of(word_of(stream, draw.best)), draw.best};
    alignas(32) uint32_t words[WORDS];
    for (int64_t start = 0; start < size; start += WORDS) {
        words_from(stream, start, words);
        for (int64_t i = start; i < std::min(size, start + WORDS); i += LANES) {
            const __m256i word = _mm256_load_si256((const __m256i*)(words + (i - start)));
            // Half of (1 - u) 2^32 as a signed integer; its float's bits are its logarithm, roughly.
            const __m256i gap = _mm256_srli_epi32(_mm256_andnot_si256(word, _mm256_set1_epi32(-1)), 1);
            const __m256 bits = _mm256_cvtepi32_ps(_mm256_castps_si256(_mm256_cvtepi32_ps(gap)));
            const __m256 bound = _mm256_sub_ps(
                _mm256_set1_ps((float)(LN2 * (32.0 + 126.0))), _mm256_mul_ps(bits, _mm256_set1_ps((float)LN2 * 0x1p-23f)));
            const __m256 reach = _mm256_add_ps(heat.scores(part(row, size, i)), bound);
            const __m256 wanted = _mm256_set1_ps((float)(leader.value - SLACK));
            int hits = _mm256_movemask_ps(_mm256_cmp_ps(reach, wanted, _CMP_GE_OQ));
            for (; hits; hits &= hits - 1) {
                const int64_t token = i + __builtin_ctz(hits);
                leader.challenge(token, scores(token), words[token - start]);
            }
        }
    }
    return leader.token;
}

// How many of the keys, best first, are the fewest that weigh `wanted` units. They stand first on return.
int64_t nucleus(Keys& keys, const float* row, const Heat& heat, double wanted) {
    int64_t low = 0, high = (int64_t)keys.size();
    double before = 0.0;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        std::nth_element(keys.begin() + low, keys.begin() + middle, keys.begin() + high);
        double weighed = 0.0;
        for (int64_t i = low; i < middle; ++i) weighed += weight(heat, row[token_of(keys[i])]);
        if (before + weighed >= wanted) {
            high = middle;
        } else {
            before += weighed;
            low = middle;
        }
    }
    return low + 1;
}

// A logit that everyone who survives reaches, and not many more do. everyone: units of the whole row, 0 if not asked for.
float floor_of(const float* row, int64_t size, const DrawRequest& draw, double best, double everyone) {
    static thread_local std::vector<float> room;
    double depth = draw.log_min_p;
    // Tokens below half of (1 - top_p) mass / size weigh less than (1 - top_p) mass together, rounding included.
    if (everyone > 0.0) depth = std::max(depth, std::log((1.0 - draw.top_p) * everyone * 0x1p-35 / (double)size));
    double floor = best + std::max(draw.temperature, Heat::COLDEST) * (depth - SLACK) - 1e-6 * std::fabs(best);
    if (draw.top_k > 0 && draw.top_k < size)
        floor = std::max(floor, (double)reached_by(row, size, draw.top_k, room));
    return (float)std::max(floor, (double)LOWEST);
}

// Keys of the survivors: the best top_k, of these all that reach min_p, of these the nucleus.
void survive(const float* row, int64_t size, const DrawRequest& draw, const Scores& scores, Keys& keys) {
    const Heat heat((float)scores.best, draw.temperature);
    const bool few = draw.top_k > 0 && draw.top_k < size, least = draw.log_min_p > -HUGE_VAL;
    const double everyone = draw.top_p < 1.0 && !few && !least ? mass(row, size, heat) : 0.0;
    reaching(row, size, floor_of(row, size, draw, scores.best, everyone), keys);
    if (few && draw.top_k < (int64_t)keys.size()) {
        std::nth_element(keys.begin(), keys.begin() + draw.top_k, keys.end());
        keys.resize(draw.top_k);
    }
    if (least)
        std::erase_if(keys, [&](uint64_t key) { return scores(token_of(key)) < draw.log_min_p; });
    if (draw.top_p == 1.0) return;
    double total = everyone;
    if (everyone == 0.0)
        for (uint64_t key : keys) total += weight(heat, row[token_of(key)]);
    keys.resize(nucleus(keys, row, heat, draw.top_p * total));
}

int64_t draw_one(const float* row, int64_t size, const DrawRequest& draw) {
    static thread_local Keys keys;
    const Scores scores = {row, (double)row[draw.best], std::max(draw.temperature, Heat::COLDEST)};
    if (draw.top_k == 0 && draw.top_p == 1.0 && draw.log_min_p == -HUGE_VAL)
        return draw_from_all(row, size, draw, scores);
    survive(row, size, draw, scores, keys);
    const Stream stream = stream_of(draw);
    Leader leader = {-HUGE_VAL, std::numeric_limits<int64_t>::max()};
    for (uint64_t key : keys) {
        const int64_t token = token_of(key);
        const uint32_t word = word_of(stream, token);
        if (scores(token) + noise_bound(word) >= leader.value - SLACK) leader.challenge(token, scores(token), word);
    }
    return leader.token;
}

}  // namespace

void headrace_best(
    const float* logits, int64_t rows, int64_t stride, int64_t vocabulary, int64_t* tokens, uint8_t* finite) {
    for (int64_t row = 0; row < rows; ++row) {
        const Best best = best_of(logits + row * stride, vocabulary);
        tokens[row] = best.token;
        finite[row] = best.finite;
    }
}

void headrace_draw(
    const float* logits, int64_t stride, int64_t vocabulary, const DrawRequest* requests, int64_t count, int64_t* tokens) {
    for (int64_t i = 0; i < count; ++i)
        tokens[i] = draw_one(logits + requests[i].row * stride, vocabulary, requests[i]);
}

int64_t headrace_standing(
    const float* row, int64_t vocabulary, int64_t token, int64_t count, double* total, int64_t* before, int64_t* top) {
    static thread_local Keys keys;
    static thread_local std::vector<float> room;
    *total = mass(row, vocabulary, Heat(row[best_of(row, vocabulary).token], 1.0));
    *before = ranked_before(row, vocabulary, token);
    if (!count) return 0;
    reaching(row, vocabulary, reached_by(row, vocabulary, count, room), keys);
    const int64_t found = std::min(count, (int64_t)keys.size());
    std::partial_sort(keys.begin(), keys.begin() + found, keys.end());
    for (int64_t i = 0; i < found; ++i) top[i] = token_of(keys[i]);
    return found;
}
