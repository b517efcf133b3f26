// Gumbel noise from Philox4x32-10 (Salmon et al., SC 2011). Included by sample.cpp, within its namespace.

struct Stream {
    uint32_t key[2];
    uint32_t position;
    uint32_t choice;
};

constexpr uint32_t MULTIPLIERS[2] = {0xCD9E8D57u, 0xD2511F53u};  // of the second and of the first half of the state
constexpr uint32_t KEY_STEPS[2] = {0x9E3779B9u, 0xBB67AE85u};
constexpr int ROUNDS = 10;

// The word of one token: four neighbouring ids share a counter.
inline uint32_t word_of(const Stream& stream, int64_t token) {
    uint64_t first = (uint64_t)(token >> 2) << 32 | stream.position, second = (uint64_t)stream.choice << 32;
    uint32_t key[2] = {stream.key[0], stream.key[1]};
    for (int round = 0; round < ROUNDS; ++round) {
        const uint64_t to_first = (second >> 32) * MULTIPLIERS[0], to_second = (first >> 32) * MULTIPLIERS[1];
        first = first << 32 ^ to_first ^ (uint64_t)key[0] << 32;
        second = second << 32 ^ to_second ^ (uint64_t)key[1] << 32;
        for (int half = 0; half < 2; ++half) key[half] += KEY_STEPS[half];
    }
    const uint64_t pair = token & 2 ? second : first;
    return token & 1 ? (uint32_t)pair : (uint32_t)(pair >> 32);
}

constexpr int GROUPS = 4;  // of four counters at once: one alone would wait for its own products
constexpr int WORDS = GROUPS * 16;

// The words of the tokens from `token` on, a multiple of 4. Each 64-bit lane holds one half of a counter's state.
inline void words_from(const Stream& stream, int64_t token, uint32_t* words) {
    __m256i first[GROUPS], second[GROUPS];
    for (int group = 0; group < GROUPS; ++group) {
        const __m256i quads = _mm256_add_epi64(_mm256_set1_epi64x(token / 4 + group * 4), _mm256_setr_epi64x(0, 1, 2, 3));
        first[group] = _mm256_or_si256(_mm256_slli_epi64(quads, 32), _mm256_set1_epi64x(stream.position));
        second[group] = _mm256_set1_epi64x((int64_t)((uint64_t)stream.choice << 32));
    }
    uint32_t key[2] = {stream.key[0], stream.key[1]};
    const __m256i to_first = _mm256_set1_epi64x(MULTIPLIERS[0]), to_second = _mm256_set1_epi64x(MULTIPLIERS[1]);
    for (int round = 0; round < ROUNDS; ++round) {
        const __m256i key_first = _mm256_set1_epi64x((int64_t)((uint64_t)key[0] << 32));
        const __m256i key_second = _mm256_set1_epi64x((int64_t)((uint64_t)key[1] << 32));
        for (int group = 0; group < GROUPS; ++group) {
            const __m256i a = _mm256_mul_epu32(_mm256_srli_epi64(second[group], 32), to_first);
            const __m256i b = _mm256_mul_epu32(_mm256_srli_epi64(first[group], 32), to_second);
            first[group] = _mm256_xor_si256(_mm256_xor_si256(_mm256_slli_epi64(first[group], 32), a), key_first);
            second[group] = _mm256_xor_si256(_mm256_xor_si256(_mm256_slli_epi64(second[group], 32), b), key_second);
        }
        for (int half = 0; half < 2; ++half) key[half] += KEY_STEPS[half];
    }
    for (int group = 0; group < GROUPS; ++group) {
        const __m256i a = _mm256_shuffle_epi32(first[group], 0xB1), b = _mm256_shuffle_epi32(second[group], 0xB1);
        const __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
        __m256i* to = (__m256i*)(words + group * 16);
        _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

// Natural logarithm of a positive normal number: fdlibm's (Sun Microsystems, 1993), without its short cuts.
inline double logarithm(double x) {
    int64_t bits;
    __builtin_memcpy(&bits, &x, 8);
    const int64_t power = (bits - 0x3fe6a09e667f3bcd) >> 52;  // x / 2^power lies between sqrt(1/2) and sqrt(2)
    bits -= power << 52;
    double scaled;
    __builtin_memcpy(&scaled, &bits, 8);
    const double k = (double)power, f = scaled - 1.0, s = f / (2.0 + f), z = s * s, w = z * z;
    const double odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double even = z
        * (6.666666666666735130e-01
           + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double half = 0.5 * f * f;
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f);
}

inline double noise_of(uint32_t word) {
    return -logarithm(-logarithm(((double)word + 0.5) / 4294967296.0));
}

// The best of score + noise so far; of equals the lowest id.
struct Leader {
    double value;
    int64_t token;

    void challenge(int64_t other, double score, uint32_t word) {
        const double reached = score + noise_of(word);
        if (reached > value || (reached == value && other < token)) *this = {reached, other};
    }
};

constexpr double LN2 = 0.6931471805599453;

// A bound of the word's noise, -log(-log u) <= -log(1 - u): its exponent and mantissa make a logarithm that is too small
// by 0.09 at most, which lets a few more through and costs no logarithm.
inline double noise_bound(uint32_t word) {
    const double gap = (double)~word + 0.5;  // (1 - u) 2^32
    int64_t bits;
    __builtin_memcpy(&bits, &gap, 8);
    return LN2 * (32.0 + 1023.0 - (double)bits * 0x1p-52);
}
