// Matrices as model files store them, packed row by row. Included within a namespace of its own, after `pack`.
//
// Block encodings are ggml's (ggml-quants.h): 32 values behind a half-precision factor, in Q4_1 also a minimum. A format
// that holds such a block as it is takes its bits; every other one takes the values.

static inline float half_of(const uint8_t* from) {
    uint16_t half;
    __builtin_memcpy(&half, from, 2);
    return from_half(half);
}

static inline int64_t block_bytes(int32_t encoding) {
    return encoding == STORED_Q8_0 ? 2 + GROUP : (encoding == STORED_Q4_1 ? 4 : 2) + GROUP / 2;
}

// Factor, minimum and codes 0 .. 15 of a Q4_0 or Q4_1 block: code k is the low half of byte k, code k + 16 its high half.
struct NibbleBlock {
    float scale, least;
    uint8_t codes[GROUP];

    NibbleBlock(int32_t encoding, const uint8_t* block) {
        scale = half_of(block);
        least = encoding == STORED_Q4_1 ? half_of(block + 2) : -8.0f * scale;
        const uint8_t* bytes = block + block_bytes(encoding) - GROUP / 2;
        for (int k = 0; k < GROUP / 2; ++k) {
            codes[k] = bytes[k] & 15;
            codes[k + GROUP / 2] = bytes[k] >> 4;
        }
    }
};

static void stored_block(int32_t encoding, const uint8_t* block, float* out) {
    if (encoding == STORED_Q8_0) {
        const float scale = half_of(block);
        for (int k = 0; k < GROUP; ++k) out[k] = (float)(int8_t)block[2 + k] * scale;
        return;
    }
    const NibbleBlock nibbles(encoding, block);
    for (int k = 0; k < GROUP; ++k) out[k] = (float)nibbles.codes[k] * nibbles.scale + nibbles.least;
}

static void stored_values(int32_t encoding, const uint8_t* row, int64_t inner, float* out) {
    uint16_t half;
    switch (encoding) {
        case STORED_F32: __builtin_memcpy(out, row, inner * 4); return;
        case STORED_F16:
            for (int64_t k = 0; k < inner; ++k) out[k] = half_of(row + 2 * k);
            return;
        case STORED_BF16:
            for (int64_t k = 0; k < inner; ++k) {
                __builtin_memcpy(&half, row + 2 * k, 2);
                out[k] = widen_one(half);
            }
            return;
        default:
            for (int64_t g = 0; g < inner / GROUP; ++g) stored_block(encoding, row + g * block_bytes(encoding), out + g * GROUP);
    }
}

static inline bool holds(int32_t format, int32_t encoding) {
    return format == INT4 ? encoding == STORED_Q4_0 || encoding == STORED_Q4_1
                          : format == INT8_GROUPS && encoding == STORED_Q8_0;
}

static void put_row(int32_t format, int32_t encoding, const uint8_t* from, int64_t inner, int64_t row, uint8_t* packed) {
    for (int64_t g = 0; g < inner / GROUP; ++g) {
        const uint8_t* block = from + g * block_bytes(encoding);
        if (format == INT4) {
            const NibbleBlock nibbles(encoding, block);
            put_group(packed, inner, row, g, nibbles.codes, nibbles.scale, nibbles.least);
        } else {
            put_byte_group(packed, inner, row, g, (const int8_t*)block + 2, (uint16_t)(block[0] | block[1] << 8));
        }
    }
}

// This thread's part of packing a matrix: a run of tiles. rows: [columns], encodings: of each. values: room for the floats
// of a tile, from the caller: code of a library's templates that is compiled here is code for this instruction set, and
// the linker may choose it for everyone.
static void pack_rows(
    int32_t format, const uint8_t* const* rows, const int32_t* encodings, int64_t columns, int64_t inner, void* packed,
    float* values, int rank, int threads) {
    const int64_t tiles = tiles_of(columns), bytes = packed_bytes(format, TILE, inner);
    for (int64_t tile = tiles * rank / threads; tile < tiles * (rank + 1) / threads; ++tile) {
        const int64_t first = tile * TILE, count = columns - first < TILE ? columns - first : TILE;
        auto* to = static_cast<uint8_t*>(packed) + tile * bytes;
        int64_t held = 0;
        for (int64_t row = first; row < first + count; ++row) held += holds(format, encodings[row]);
        if (held < TILE) {
            for (int64_t row = 0; row < count; ++row)
                stored_values(encodings[first + row], rows[first + row], inner, values + row * inner);
            pack(format, values, count, inner, to);
        }
        for (int64_t row = 0; row < count; ++row)
            if (holds(format, encodings[first + row]))
                put_row(format, encodings[first + row], rows[first + row], inner, row, to);
    }
}
