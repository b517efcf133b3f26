// Vectors of LANES floats, the same source for every instruction set. Included within a namespace of its own.

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

static inline vf load(const float* from) {
    vf value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

static inline void store(float* to, vf value) { __builtin_memcpy(to, &value, sizeof value); }

// Less 0, which changes no bit and costs no instruction; plus 0 would turn -0 into 0.
static inline vf splat(float value) { return value - vf{}; }

// Always one rounding, so that a sum does not depend on what the compiler makes of the code around it.
static inline vf fma(vf a, vf b, vf c) {
#if LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}

static inline vf widen(vh halves) {
#if LANES == 16
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)halves), 16);
#else
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)halves), 16);
#endif
}

static inline vf load(const uint16_t* from) {
    vh halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    return widen(halves);
}

// To the nearest bfloat16, ties to even; NaN stays NaN.
static inline uint16_t narrow(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The same of each lane, in the lower half of a word.
static inline vu narrow_bits(vf value) {
    const vu bits = (vu)value;
    return (bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline void put(float* to, float value) { *to = value; }
static inline void put(uint16_t* to, float value) { *to = narrow(value); }

static inline float sum(vf value) {
    float lanes[LANES], total;
    store(lanes, value);
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    total = lanes[0];
    return total;
}

static inline vf select(vi mask, vf yes, vf no) { return mask ? yes : no; }

// Where either is NaN, b. Of AVX2 the compiler would make two instructions.
#if LANES == 16
static inline vf larger(vf a, vf b) { return a > b ? a : b; }
static inline vf smaller(vf a, vf b) { return a < b ? a : b; }
#else
static inline vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#endif

// e^x within 2 ulp; 0 below -87.3, so that e^-inf is 0. NaN stays NaN in every line.
static inline vf exponential(vf x) {
    const vf magic = splat(12582912.0f);
    const vf bounded = smaller(splat(88.0f), larger(splat(-87.3f), x));
    const vf turns = fma(bounded, splat(1.44269504f), magic) - magic;
    vf rest = fma(turns, splat(-0.693359375f), bounded);
    rest = fma(turns, splat(2.12194440e-4f), rest);
    vf value = splat(1.9875691500e-4f);
    value = fma(value, rest, splat(1.3981999507e-3f));
    value = fma(value, rest, splat(8.3334519073e-3f));
    value = fma(value, rest, splat(4.1665795894e-2f));
    value = fma(value, rest, splat(1.6666665459e-1f));
    value = fma(value, rest, splat(5.0000001201e-1f));
    value = fma(value, rest * rest, rest) + 1.0f;
    const vi power = (__builtin_convertvector(turns, vi) + 127) << 23;
    return select(x < -87.3f, splat(0.0f), value * (vf)power);
}

static inline vf tangent(vf x) {
    const vf bounded = select(x > 10.0f, splat(10.0f), select(x < -10.0f, splat(-10.0f), x));
    return 1.0f - 2.0f / (exponential(2.0f * bounded) + 1.0f);
}

// 0, 1, 2 …
#if LANES == 16
constexpr vi LANE_NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
constexpr vi LANE_NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7};
#endif

// One round of `transpose`: rows HALF apart exchange half of their blocks of HALF lanes.
template <int HALF, int... LANE>
static inline void exchange(vf* rows, std::integer_sequence<int, LANE...>) {
    for (int row = 0; row < LANES; ++row) {
        if (row & HALF) continue;
        const vf upper = rows[row], lower = rows[row + HALF];
        rows[row] = __builtin_shufflevector(upper, lower, (LANE & HALF ? LANES + LANE - HALF : LANE)...);
        rows[row + HALF] = __builtin_shufflevector(upper, lower, (LANE & HALF ? LANES + LANE : LANE + HALF)...);
    }
}

// One round of `sums_of`: from 2 HALF vectors HALF, each the sum of two.
template <int HALF, int... LANE>
static inline void fold(vf* rows, std::integer_sequence<int, LANE...>) {
    for (int row = 0; row < HALF; ++row) {
        const vf upper = rows[row], lower = rows[row + HALF];
        rows[row] = __builtin_shufflevector(upper, lower, (LANE & HALF ? LANES + LANE - HALF : LANE)...) +
                    __builtin_shufflevector(upper, lower, (LANE & HALF ? LANES + LANE : LANE + HALF)...);
    }
}

// Lane i: the sum of the lanes of rows[i], those LANES / 2 apart first, neighbours last.
static inline vf sums_of(vf* rows) {
    constexpr std::make_integer_sequence<int, LANES> lanes;
#if LANES == 16
    fold<8>(rows, lanes);
#endif
    fold<4>(rows, lanes);
    fold<2>(rows, lanes);
    fold<1>(rows, lanes);
    return rows[0];
}

// A square of LANES x LANES floats turned over its diagonal.
static inline void transpose(vf* rows) {
    constexpr std::make_integer_sequence<int, LANES> lanes;
#if LANES == 16
    exchange<8>(rows, lanes);
#endif
    exchange<4>(rows, lanes);
    exchange<2>(rows, lanes);
    exchange<1>(rows, lanes);
}
