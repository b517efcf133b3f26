// Products with BF16 matrices where no instruction multiplies them: weights are widened to float32, and activations
// stay it. Included within a namespace of its own, after linear.h.

static int64_t half_packed_bytes(int64_t columns, int64_t inner) { return tiles_of(columns) * TILE * inner * 2; }

static void half_pack(const float* weights, int64_t columns, int64_t inner, void* packed) {
    pack_floats(weights, columns, inner, static_cast<uint16_t*>(packed));
}

static inline float half_at(const void* packed, int64_t inner, int64_t row, int64_t k) {
    const auto* tile = static_cast<const uint16_t*>(packed) + row / TILE * TILE * inner;
    return widen_one(tile[k * TILE + 2 * (row % TILE % LANES) + row % TILE / LANES]);
}

static int64_t half_scratch_bytes(int64_t, int64_t) { return 0; }

static void half_linear(const Linear& op, int64_t rows, const Output& out, std::atomic<int64_t>& next, int, Team& team) {
    float_linear<HalfFormat>(op.in, rows, op.inner, op.weights, out, next, team.size());
}
