// INT4 for many rows: a run of tiles is taken apart once, into a byte a code, and then meets all of them. Included within
// a namespace of its own, after integer.h.
//
// Sums within a group are exact and the rest is as in INT4, so the bits are the same.

// A tile: for each group TILE scales and TILE minima as floats, then GROUP x TILE codes as in INT8.
struct WideNibbleFormat {
    static constexpr int64_t GROUP_BYTES = TILE * 8 + GROUP * TILE;
    static int64_t tile_bytes(int64_t inner) { return inner / GROUP * GROUP_BYTES; }
    static const uint8_t* group(const uint8_t* tile, int64_t index) { return tile + index * GROUP_BYTES; }

    template <int ROWS>
    static inline void sums(const uint8_t* group, const int8_t* const* codes, vi (&sum)[ROWS][2]) {
        UNROLLED
        for (int q = 0; q < GROUP / 4; ++q) {
            const uint8_t* from = group + TILE * 8 + 2 * q * LANES * 4;
            const vb low = load_bytes(from), high = load_bytes(from + LANES * 4);
            UNROLLED
            for (int r = 0; r < ROWS; ++r) {
                const vb x = quad(codes[r] + 4 * q);
                sum[r][0] = dot_narrow(sum[r][0], low, x);
                sum[r][1] = dot_narrow(sum[r][1], high, x);
#if LANES == 8
                // Without it the compiler reorders additions until sixteen registers do not suffice.
                asm("" : "+x"(sum[r][0]), "+x"(sum[r][1]));
#endif
            }
        }
        UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            sum[r][0] = widened(sum[r][0]);
            sum[r][1] = widened(sum[r][1]);
        }
    }
    static inline vf add(vf total, const uint8_t* group, int half, vi sum, float scale, float x_sum) {
        const auto* scales = reinterpret_cast<const float*>(group) + half * LANES;
        total = fma(splat(scale) * load(scales), __builtin_convertvector(sum, vf), total);
        return fma(splat(x_sum), load(scales + TILE), total);
    }
    static inline vf finish(const uint8_t*, int, vf total) { return total; }
};

static inline void put_bytes(uint8_t* to, vu bytes) { __builtin_memcpy(to, &bytes, sizeof bytes); }

BLOCK take_apart(const uint8_t* tile, int64_t inner, uint8_t* to) {
    constexpr int HALF = GROUP * TILE / 2, STEP = LANES * 4;
    for (int64_t g = 0; g < inner / GROUP; ++g, to += WideNibbleFormat::GROUP_BYTES) {
        const uint8_t* group = NibbleFormat::group(tile, g);
        for (int v = 0; v < 2 * TILE; v += LANES)
            store(reinterpret_cast<float*>(to) + v, halves(reinterpret_cast<const uint16_t*>(group) + v));
        for (int byte = 0; byte < HALF; byte += STEP) {
            const vu both = (vu)load_bytes(group + TILE * 4 + byte);
            put_bytes(to + TILE * 8 + byte, both & 0x0f0f0f0fu);
            put_bytes(to + TILE * 8 + HALF + byte, both >> 4 & 0x0f0f0f0fu);
        }
    }
}

constexpr int64_t WIDE_BYTES = 2 * CACHED_BYTES;  // room of a thread
constexpr int64_t WIDE_RUN = 64 << 10;            // bytes that meet all rows while they are in the cache
constexpr int64_t WIDE_ROWS = 12;                 // fewer are quicker with tiles as they are

static inline bool widens(int64_t rows, int64_t inner) {
    return rows >= WIDE_ROWS && WideNibbleFormat::tile_bytes(inner) <= WIDE_BYTES;
}

// What this thread gets of a product.
static void wide_linear(
    void* scratch, int64_t rows, int64_t inner, const void* packed, const Output& out, Claims claims) {
    alignas(64) static thread_local uint8_t room[WIDE_BYTES];
    const auto* bytes = static_cast<const uint8_t*>(packed);
    const int64_t size = NibbleFormat::tile_bytes(inner), wide = WideNibbleFormat::tile_bytes(inner);
    const int64_t run = wide < WIDE_RUN ? WIDE_RUN / wide : 1;
    for (int64_t first, last; claims.take(first, last);)
        for (; first < last; first += run) {
            const int64_t count = last - first < run ? last - first : run;
            for (int64_t i = 0; i < count; ++i) take_apart(bytes + (first + i) * size, inner, room + i * wide);
            each_block<INTEGER_ROWS>(rows, wide, 0, count, [&]<int ROWS>(int64_t row, int64_t i) {
                integer_block<ROWS, WideNibbleFormat>(scratch, inner, room + i * wide, row, (first + i) * TILE, out);
            });
        }
}
