// Products in 8-bit integers: activations rounded in groups of GROUP values, weights in 8 bits a column or 4 bits a group.
// Included within a namespace of its own, after linear.h.
//
// Sums within a group are exact; groups are added in their order. So these bits, too, depend on a row alone.

typedef int8_t vb __attribute__((vector_size(LANES * 4)));
typedef int8_t vq __attribute__((vector_size(LANES)));

// Activations of one row: codes [inner], then a scale and a scaled sum of codes for each group.
struct Quantised {
    int8_t* codes;
    float* scales;
    float* sums;
};

static inline int64_t quantised_bytes(int64_t inner) { return (inner + inner / GROUP * 8 + 63) / 64 * 64; }

static inline Quantised quantised(void* scratch, int64_t row, int64_t inner) {
    auto* base = static_cast<int8_t*>(scratch) + row * quantised_bytes(inner);
    auto* floats = reinterpret_cast<float*>(base + inner);
    return {base, floats, floats + inner / GROUP};
}

template <int HALF, int... LANE>
static inline vi with_half(vi value, bool most, std::integer_sequence<int, LANE...>) {
    const vi other = __builtin_shufflevector(value, value, (LANE ^ HALF)...);
    return most ? (value > other ? value : other) : value + other;
}

// The largest lane, or the sum of all.
static inline int32_t over_lanes(vi value, bool most) {
    constexpr std::make_integer_sequence<int, LANES> lanes;
#if LANES == 16
    value = with_half<8>(value, most, lanes);
#endif
    value = with_half<1>(with_half<2>(with_half<4>(value, most, lanes), most, lanes), most, lanes);
    return value[0];
}

// GROUP values to the nearest whole numbers, ties to even, as codes. Returns their sum.
static inline int32_t put_codes(int8_t* to, const float* values, float inverse) {
    vi codes[GROUP / LANES], total = {};
    UNROLLED
    for (int v = 0; v < GROUP / LANES; ++v) {
        // Adding 1.5 x 2^23 rounds: the whole number stands in the low bits.
        codes[v] = (vi)(fma(load(values + v * LANES), splat(inverse), splat(12582912.0f))) - (vi)splat(12582912.0f);
        total += codes[v];
    }
#if LANES == 8
    // Packing joins halves of vectors: the last step puts their words of four in order.
    const __m256i lower = _mm256_packs_epi32((__m256i)codes[0], (__m256i)codes[1]);
    const __m256i upper = _mm256_packs_epi32((__m256i)codes[2], (__m256i)codes[3]);
    const vi words = (vi)_mm256_packs_epi16(lower, upper);
    const vi bytes = __builtin_shufflevector(words, words, 0, 4, 1, 5, 2, 6, 3, 7);
    __builtin_memcpy(to, &bytes, sizeof bytes);
#else
    for (int v = 0; v < GROUP / LANES; ++v) {
        const auto bytes = __builtin_convertvector(codes[v], vq);
        __builtin_memcpy(to + v * LANES, &bytes, sizeof bytes);
    }
#endif
    return over_lanes(total, false);
}

static void quantise_row(const float* in, int64_t inner, Quantised to) {
    constexpr int32_t INFINITE = 0x7f800000;
    for (int64_t group = 0; group < inner / GROUP; ++group) {
        const float* values = in + group * GROUP;
        // Magnitudes are in the order of their bits, and those that are not finite above the others.
        vi most_of = {};
        UNROLLED
        for (int i = 0; i < GROUP; i += LANES) {
            const vi bits = (vi)load(values + i) & 0x7fffffff;
            most_of = bits > most_of ? bits : most_of;
        }
        const int32_t bits = over_lanes(most_of, true);
        // A value that is not finite must reach the logits, where it is noticed.
        if (bits >= INFINITE) {
            __builtin_memset(to.codes + group * GROUP, 1, GROUP);
            to.scales[group] = to.sums[group] = __builtin_nanf("");
            continue;
        }
        float most;
        __builtin_memcpy(&most, &bits, sizeof most);
        const float scale = most / 127.0f, inverse = most > 1e-30f ? 127.0f / most : 0.0f;
        to.scales[group] = scale;
        to.sums[group] = scale * (float)put_codes(to.codes + group * GROUP, values, inverse);
    }
}

static inline vb load_bytes(const void* from) {
    vb value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

static inline vb quad(const int8_t* codes) {
    int32_t word;
    __builtin_memcpy(&word, codes, 4);
    return (vb)(vi{} + word);
}

// Adds to each 32-bit lane the sum of four products of unsigned and signed bytes. `a` is at most 127, so that
// AVX2's 16-bit sums of two cannot overflow.
static inline vi dot(vi sum, vb a, vb b) {
#if LANES == 16
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

// The same for a <= 15 and |b| <= 127, up to eight times onto one sum: without VNNI in 16 bits, half as many operations.
// `widened` makes 32-bit lanes of it.
static inline vi dot_narrow(vi sum, vb a, vb b) {
#if LANES == 16
    return dot(sum, a, b);
#else
    return (vi)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)a, (__m256i)b));
#endif
}

static inline vi widened(vi sum) {
#if LANES == 16
    return sum;
#else
    return (vi)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
#endif
}

// Signed by signed: |w| by x with w's sign.
static inline vi dot_signed(vi sum, vb w, vb x) {
#if LANES == 16
    const __mmask64 negative = _mm512_movepi8_mask((__m512i)w);
    const __m512i turned = _mm512_mask_sub_epi8((__m512i)x, negative, _mm512_setzero_si512(), (__m512i)x);
    return dot(sum, (vb)_mm512_abs_epi8((__m512i)w), (vb)turned);
#else
    const __m256i turned = _mm256_sign_epi8((__m256i)x, (__m256i)w);
    return dot(sum, (vb)_mm256_abs_epi8((__m256i)w), (vb)turned);
#endif
}

static inline vf halves(const uint16_t* from) {
#if LANES == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#endif
}

static inline uint16_t to_half(float value) { return (uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
static inline float from_half(uint16_t half) { return _cvtsh_ss(half); }

// INT8. A tile: for each group GROUP x TILE codes, [quad of inner][column][4]; before them TILE float scales.
struct ByteFormat {
    static int64_t tile_bytes(int64_t inner) { return TILE * 4 + inner * TILE; }
    static const uint8_t* group(const uint8_t* tile, int64_t index) { return tile + TILE * 4 + index * GROUP * TILE; }

    template <int ROWS>
    static inline void sums(const uint8_t* group, const int8_t* const* codes, vi (&sum)[ROWS][2]) {
        ROLLED
        for (int q = 0; q < GROUP / 4; ++q) {
            const vb low = load_bytes(group + 2 * q * LANES * 4), high = load_bytes(group + (2 * q + 1) * LANES * 4);
            UNROLLED
            for (int r = 0; r < ROWS; ++r) {
                const vb x = quad(codes[r] + 4 * q);
                sum[r][0] = dot_signed(sum[r][0], low, x);
                sum[r][1] = dot_signed(sum[r][1], high, x);
            }
        }
    }
    static inline vf add(vf total, const uint8_t*, int, vi sum, float scale, float) {
        return fma(splat(scale), __builtin_convertvector(sum, vf), total);
    }
    static inline vf finish(const uint8_t* tile, int half, vf total) {
        return total * load(reinterpret_cast<const float*>(tile) + half * LANES);
    }
};

// INT4. A tile: for each group TILE half-precision scales, TILE minima, and GROUP x TILE / 2 bytes whose low halves are
// the first GROUP / 2 inner values and whose high halves are the others, each [quad of inner][column][4].
struct NibbleFormat {
    static constexpr int64_t GROUP_BYTES = TILE * 4 + GROUP * TILE / 2;
    static int64_t tile_bytes(int64_t inner) { return inner / GROUP * GROUP_BYTES; }
    static const uint8_t* group(const uint8_t* tile, int64_t index) { return tile + index * GROUP_BYTES; }

    template <int ROWS>
    static inline void sums(const uint8_t* group, const int8_t* const* codes, vi (&sum)[ROWS][2]) {
        ROLLED
        for (int q = 0; q < GROUP / 8; ++q) {
            const vu left = (vu)load_bytes(group + TILE * 4 + 2 * q * LANES * 4);
            const vu right = (vu)load_bytes(group + TILE * 4 + (2 * q + 1) * LANES * 4);
            const vb left_low = (vb)(left & 0x0f0f0f0fu), left_high = (vb)(left >> 4 & 0x0f0f0f0fu);
            const vb right_low = (vb)(right & 0x0f0f0f0fu), right_high = (vb)(right >> 4 & 0x0f0f0f0fu);
            UNROLLED
            for (int r = 0; r < ROWS; ++r) {
                const vb first = quad(codes[r] + 4 * q), second = quad(codes[r] + GROUP / 2 + 4 * q);
                sum[r][0] = dot_narrow(dot_narrow(sum[r][0], left_low, first), left_high, second);
                sum[r][1] = dot_narrow(dot_narrow(sum[r][1], right_low, first), right_high, second);
            }
        }
        UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            sum[r][0] = widened(sum[r][0]);
            sum[r][1] = widened(sum[r][1]);
        }
    }
    static inline vf add(vf total, const uint8_t* group, int half, vi sum, float scale, float x_sum) {
        const auto* scales = reinterpret_cast<const uint16_t*>(group);
        total = fma(splat(scale) * halves(scales + half * LANES), __builtin_convertvector(sum, vf), total);
        return fma(splat(x_sum), halves(scales + TILE + half * LANES), total);
    }
    static inline vf finish(const uint8_t*, int, vf total) { return total; }
};

constexpr int INTEGER_ROWS = 4;

// ROWS rows of one tile, whose columns begin at `column`.
template <int ROWS, class Format>
BLOCK integer_block(
    void* scratch, int64_t inner, const uint8_t* tile, int64_t row, int64_t column, const Output& out) {
    vf totals[ROWS][2] = {};
    Quantised x[ROWS];
    UNROLLED
    for (int r = 0; r < ROWS; ++r) x[r] = quantised(scratch, row + r, inner);
    for (int64_t g = 0; g < inner / GROUP; ++g) {
        const uint8_t* group = Format::group(tile, g);
        const int8_t* codes[ROWS];
        UNROLLED
        for (int r = 0; r < ROWS; ++r) codes[r] = x[r].codes + g * GROUP;
        vi sum[ROWS][2] = {};
        Format::sums(group, codes, sum);
        UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            totals[r][0] = Format::add(totals[r][0], group, 0, sum[r][0], x[r].scales[g], x[r].sums[g]);
            totals[r][1] = Format::add(totals[r][1], group, 1, sum[r][1], x[r].scales[g], x[r].sums[g]);
        }
    }
    UNROLLED
    for (int r = 0; r < ROWS; ++r) {
        out.write(row + r, column, Format::finish(tile, 0, totals[r][0]));
        out.write(row + r, column + LANES, Format::finish(tile, 1, totals[r][1]));
    }
}

// What this thread gets of a product.
template <class Format>
static void integer_linear(
    void* scratch, int64_t rows, int64_t inner, const void* packed, const Output& out, Claims claims) {
    const auto* bytes = static_cast<const uint8_t*>(packed);
    const int64_t tile_bytes = Format::tile_bytes(inner);
    for (int64_t first, last; claims.take(first, last);)
        each_block<INTEGER_ROWS>(rows, tile_bytes, first, last, [&]<int ROWS>(int64_t row, int64_t tile) {
            integer_block<ROWS, Format>(scratch, inner, bytes + tile * tile_bytes, row, tile * TILE, out);
        });
}

static void pack_bytes(const float* weights, int64_t columns, int64_t inner, uint8_t* packed) {
    for (int64_t row = 0; row < tiles_of(columns) * TILE; ++row) {
        uint8_t* tile = packed + row / TILE * ByteFormat::tile_bytes(inner);
        const float* values = weights + row * inner;
        float most = 0.0f;
        for (int64_t k = 0; row < columns && k < inner; ++k) most = __builtin_fmaxf(most, __builtin_fabsf(values[k]));
        const float scale = most / 127.0f;
        __builtin_memcpy(tile + row % TILE * 4, &scale, 4);
        for (int64_t k = 0; k < inner; ++k) {
            const float code = most > 0.0f ? __builtin_rintf(values[k] / scale) : 0.0f;
            tile[TILE * 4 + (k / 4 * TILE + row % TILE) * 4 + k % 4] = (uint8_t)(int8_t)code;
        }
    }
}

// Codes, scale and minimum of one group of one column, into its tile.
static void put_group(uint8_t* packed, int64_t inner, int64_t row, int64_t g, const uint8_t* codes, float scale, float least) {
    uint8_t* group = packed + row / TILE * NibbleFormat::tile_bytes(inner) + g * NibbleFormat::GROUP_BYTES;
    auto* scales = reinterpret_cast<uint16_t*>(group);
    scales[row % TILE] = to_half(scale);
    scales[TILE + row % TILE] = to_half(least);
    uint8_t* bytes = group + TILE * 4;
    for (int k = 0; k < GROUP / 2; ++k)
        bytes[(k / 4 * TILE + row % TILE) * 4 + k % 4] = (uint8_t)(codes[k] | codes[k + GROUP / 2] << 4);
}

static void pack_nibbles(const float* weights, int64_t columns, int64_t inner, uint8_t* packed) {
    for (int64_t row = 0; row < tiles_of(columns) * TILE; ++row)
        for (int64_t g = 0; g < inner / GROUP; ++g) {
            uint8_t codes[GROUP] = {};
            float least = 0.0f, scale = 0.0f;
            if (row < columns) {
                const float* values = weights + row * inner + g * GROUP;
                float most = values[0];
                least = values[0];
                for (int k = 1; k < GROUP; ++k) {
                    least = __builtin_fminf(least, values[k]);
                    most = __builtin_fmaxf(most, values[k]);
                }
                scale = from_half(to_half((most - least) / 15.0f));
                least = from_half(to_half(least));
                for (int k = 0; k < GROUP; ++k) {
                    const float code = scale > 0.0f ? __builtin_rintf((values[k] - least) / scale) : 0.0f;
                    codes[k] = (uint8_t)__builtin_fminf(15.0f, __builtin_fmaxf(0.0f, code));
                }
            }
            put_group(packed, inner, row, g, codes, scale, least);
        }
}
