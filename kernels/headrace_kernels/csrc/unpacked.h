// Single rows out of packed matrices: what an embedding reads, so that one tied to the head is held once.
// Included within a namespace of its own, after every format.

static void unpack_bytes_row(const uint8_t* packed, int64_t inner, int64_t row, float* out) {
    const uint8_t* tile = packed + row / TILE * ByteFormat::tile_bytes(inner);
    float scale;
    __builtin_memcpy(&scale, tile + row % TILE * 4, 4);
    for (int64_t k = 0; k < inner; ++k)
        out[k] = (float)(int8_t)tile[TILE * 4 + (k / 4 * TILE + row % TILE) * 4 + k % 4] * scale;
}

static void unpack_byte_groups_row(const uint8_t* packed, int64_t inner, int64_t row, float* out) {
    for (int64_t g = 0; g < inner / GROUP; ++g) {
        const uint8_t* group = ByteGroupFormat::group(packed + row / TILE * ByteGroupFormat::tile_bytes(inner), g);
        uint16_t half;
        __builtin_memcpy(&half, group + row % TILE * 2, 2);
        const float scale = from_half(half);
        for (int k = 0; k < GROUP; ++k)
            out[g * GROUP + k] = (float)(int8_t)group[TILE * 2 + (k / 4 * TILE + row % TILE) * 4 + k % 4] * scale;
    }
}

static void unpack_nibbles_row(const uint8_t* packed, int64_t inner, int64_t row, float* out) {
    for (int64_t g = 0; g < inner / GROUP; ++g) {
        const uint8_t* group = NibbleFormat::group(packed + row / TILE * NibbleFormat::tile_bytes(inner), g);
        uint16_t factors[2];
        __builtin_memcpy(factors, group + row % TILE * 2, 2);
        __builtin_memcpy(factors + 1, group + (TILE + row % TILE) * 2, 2);
        const float scale = from_half(factors[0]), least = from_half(factors[1]);
        for (int k = 0; k < GROUP / 2; ++k) {
            const uint8_t both = group[TILE * 4 + (k / 4 * TILE + row % TILE) * 4 + k % 4];
            out[g * GROUP + k] = (float)(both & 15) * scale + least;
            out[g * GROUP + GROUP / 2 + k] = (float)(both >> 4) * scale + least;
        }
    }
}

// Row `row` of a packed matrix with rows of `inner` values.
static void unpack_row(int32_t format, const void* packed, int64_t inner, int64_t row, float* out) {
    const auto* bytes = static_cast<const uint8_t*>(packed);
    const float* floats = static_cast<const float*>(packed) + row / TILE * TILE * inner + row % TILE;
    switch (format) {
        case F32:
            for (int64_t k = 0; k < inner; ++k) out[k] = floats[k * TILE];
            return;
        case BF16:
            for (int64_t k = 0; k < inner; ++k) out[k] = half_at(packed, inner, row, k);
            return;
        case INT8: return unpack_bytes_row(bytes, inner, row, out);
        case INT8_GROUPS: return unpack_byte_groups_row(bytes, inner, row, out);
        default: return unpack_nibbles_row(bytes, inner, row, out);
    }
}
