// INT8_GROUPS: weights in 8 bits with a half-precision scale for each GROUP values of a column, as ggml's Q8_0 has them.
// Included within a namespace of its own, after integer.h.
//
// A tile: for each group TILE scales, then GROUP x TILE codes as in INT8.
struct ByteGroupFormat {
    static constexpr int64_t GROUP_BYTES = TILE * 2 + GROUP * TILE;
    static int64_t tile_bytes(int64_t inner) { return inner / GROUP * GROUP_BYTES; }
    static const uint8_t* group(const uint8_t* tile, int64_t index) { return tile + index * GROUP_BYTES; }

    template <int ROWS>
    static inline void sums(const uint8_t* group, const int8_t* const* codes, vi (&sum)[ROWS][2]) {
        ByteFormat::sums(group + TILE * 2, codes, sum);
    }
    static inline vf add(vf total, const uint8_t* group, int half, vi sum, float scale, float) {
        const vf scales = halves(reinterpret_cast<const uint16_t*>(group) + half * LANES);
        return fma(splat(scale) * scales, __builtin_convertvector(sum, vf), total);
    }
    static inline vf finish(const uint8_t*, int, vf total) { return total; }
};

// Codes and scale of one group of one column, into its tile.
static void put_byte_group(uint8_t* packed, int64_t inner, int64_t row, int64_t g, const int8_t* codes, uint16_t scale) {
    uint8_t* group = packed + row / TILE * ByteGroupFormat::tile_bytes(inner) + g * ByteGroupFormat::GROUP_BYTES;
    __builtin_memcpy(group + row % TILE * 2, &scale, 2);
    for (int k = 0; k < GROUP; ++k) group[TILE * 2 + (k / 4 * TILE + row % TILE) * 4 + k % 4] = (uint8_t)codes[k];
}

static void pack_byte_groups(const float* weights, int64_t columns, int64_t inner, uint8_t* packed) {
    for (int64_t row = 0; row < tiles_of(columns) * TILE; ++row)
        for (int64_t g = 0; g < inner / GROUP; ++g) {
            int8_t codes[GROUP] = {};
            uint16_t half = 0;
            if (row < columns) {
                const float* values = weights + row * inner + g * GROUP;
                float most = 0.0f;
                for (int k = 0; k < GROUP; ++k) most = __builtin_fmaxf(most, __builtin_fabsf(values[k]));
                half = to_half(most / 127.0f);
                const float scale = from_half(half);
                for (int k = 0; k < GROUP; ++k) {
                    const float code = scale > 0.0f ? __builtin_rintf(values[k] / scale) : 0.0f;
                    codes[k] = (int8_t)__builtin_fminf(127.0f, __builtin_fmaxf(-127.0f, code));
                }
            }
            put_byte_group(packed, inner, row, g, codes, half);
        }
}
