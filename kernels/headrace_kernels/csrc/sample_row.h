// Arithmetic over one row of logits. Included by sample.cpp, within its namespace. Rows end anywhere: what does not fill
// a vector goes through one that is filled up.

constexpr int LANES = 8;
constexpr float NOTHING = -__builtin_inff();

// The lanes of row[i ...], those past the end as -inf.
inline __m256 part(const float* row, int64_t size, int64_t i) {
    if (i + LANES <= size) return _mm256_loadu_ps(row + i);
    float lanes[LANES];
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = i + lane < size ? row[i + lane] : NOTHING;
    return _mm256_loadu_ps(lanes);
}

inline float largest(__m256 values) {
    float lanes[LANES], best = NOTHING;
    _mm256_storeu_ps(lanes, values);
    for (float lane : lanes) best = lane > best ? lane : best;
    return best;
}

// What e^(logit - best) / temperature is made of.
struct Heat {
    float best;
    float temperature;

    Heat(float logit, double heat)
        : best(logit), temperature((float)(heat > COLDEST ? heat : COLDEST)) {}

    inline __m256 scores(__m256 logits) const {
        return _mm256_div_ps(_mm256_sub_ps(logits, _mm256_set1_ps(best)), _mm256_set1_ps(temperature));
    }

    static constexpr double COLDEST = 1e-30;
};

// e^score in whole units of 2^-34, as two vectors of float64. score: 0 or less.
inline void weigh(__m256 scores, __m256d& low, __m256d& high) {
    const __m256 x = _mm256_max_ps(scores, _mm256_set1_ps(-80.0f)), magic = _mm256_set1_ps(12582912.0f);
    const __m256 turns = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), magic), magic);
    __m256 rest = _mm256_sub_ps(x, _mm256_mul_ps(turns, _mm256_set1_ps(0.693359375f)));
    rest = _mm256_add_ps(rest, _mm256_mul_ps(turns, _mm256_set1_ps(2.12194440e-4f)));
    __m256 value = _mm256_set1_ps(1.9875691500e-4f);
    for (float term : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        value = _mm256_add_ps(_mm256_mul_ps(value, rest), _mm256_set1_ps(term));
    value = _mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(value, rest), rest), rest);
    value = _mm256_add_ps(value, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(turns), 23);
    value = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), power));
    const __m256d unit = _mm256_set1_pd(0x1p34);
    const int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    low = _mm256_round_pd(_mm256_mul_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(value)), unit), nearest);
    high = _mm256_round_pd(_mm256_mul_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(value, 1)), unit), nearest);
}

inline double weight(const Heat& heat, float logit) {
    __m256d low, high;
    weigh(heat.scores(_mm256_set1_ps(logit)), low, high);
    return _mm256_cvtsd_f64(low);
}

// The units of all tokens together: whole numbers below 2^53, whose sum is exact in any order.
inline double mass(const float* row, int64_t size, const Heat& heat) {
    __m256d total = _mm256_setzero_pd(), low, high;
    for (int64_t i = 0; i < size; i += LANES) {
        weigh(heat.scores(part(row, size, i)), low, high);
        total = _mm256_add_pd(total, _mm256_add_pd(low, high));
    }
    double lanes[4];
    _mm256_storeu_pd(lanes, total);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

// The logit's bits, made to descend, above the id's: ascending keys are best first, of equals the lower id.
inline uint64_t key_of(float logit, int64_t token) {
    const float value = logit + 0.0f;  // -0.0 and 0.0 are equal
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    const uint32_t descending = bits >> 31 ? bits : ~bits & 0x7fffffffu;
    return (uint64_t)descending << 32 | (uint64_t)token;
}

inline int64_t token_of(uint64_t key) { return (int64_t)(key & 0xffffffffu); }

using Keys = std::vector<uint64_t>;

// Keys of the tokens that reach `floor`, which is finite.
inline void reaching(const float* row, int64_t size, float floor, Keys& keys) {
    keys.clear();
    for (int64_t i = 0; i < size; i += LANES) {
        int hits = _mm256_movemask_ps(_mm256_cmp_ps(part(row, size, i), _mm256_set1_ps(floor), _CMP_GE_OQ));
        for (; hits; hits &= hits - 1) {
            const int64_t token = i + __builtin_ctz(hits);
            keys.push_back(key_of(row[token], token));
        }
    }
}

// Tokens that are better than `token`, or as good with a lower id.
inline int64_t ranked_before(const float* row, int64_t size, int64_t token) {
    const __m256 value = _mm256_set1_ps(row[token]);
    int64_t count = 0;
    for (int64_t i = 0; i < size; i += LANES) {
        const __m256 here = part(row, size, i);
        const int better = _mm256_movemask_ps(_mm256_cmp_ps(here, value, _CMP_GT_OQ));
        const int equal = _mm256_movemask_ps(_mm256_cmp_ps(here, value, _CMP_EQ_OQ));
        const int lower = token >= i + LANES ? 0xff : token > i ? (1 << (token - i)) - 1 : 0;
        count += __builtin_popcount(better | (equal & lower));
    }
    return count;
}

constexpr float LOWEST = -3.4028234663852886e38f;

// A finite value that `count` or more tokens reach, or all that are not -inf. The best of each run of tokens are tokens of
// the row: as many of them reach a value, as many tokens do at least.
inline float reached_by(const float* row, int64_t size, int64_t count, std::vector<float>& best) {
    const int64_t run = 16, runs = size / run;
    if (count > runs) return LOWEST;
    best.resize(runs);
    for (int64_t i = 0; i < runs; ++i) {
        const float* from = row + i * run;
        best[i] = largest(_mm256_max_ps(_mm256_loadu_ps(from), _mm256_loadu_ps(from + LANES)));
    }
    std::nth_element(best.begin(), best.begin() + (count - 1), best.end(), std::greater<float>());
    return std::max(best[count - 1], LOWEST);
}
