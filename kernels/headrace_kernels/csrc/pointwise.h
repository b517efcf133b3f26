// Operations on one row at a time. Included within a namespace of its own, after simd.h.

static inline void embed_row(const Embed& op, const Step& step, int64_t row) {
    const int64_t id = step.ids[row];
    float* out = op.out + row * op.width;
    unpack_row(op.format, op.weights, op.width, id, out);
    for (int64_t i = 0; i < op.width; ++i) out[i] *= op.scale;
}

static inline float inverse_rms(const float* in, int64_t width, float eps) {
    vf squares = {};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) squares = fma(load(in + i), load(in + i), squares);
    float total = sum(squares);
    for (; i < width; ++i) total += in[i] * in[i];
    return 1.0f / __builtin_sqrtf(total / (float)width + eps);
}

static inline void norm_row(const float* in, const float* weight, float* out, int64_t width, float eps, bool add) {
    const float scale = inverse_rms(in, width, eps);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        const vf value = load(in + i) * scale * load(weight + i);
        store(out + i, add ? load(out + i) + value : value);
    }
    for (; i < width; ++i) {
        const float value = in[i] * scale * weight[i];
        out[i] = add ? out[i] + value : value;
    }
}

// One head turned by its position. Dimensions beyond `rotary` stay.
static inline void turn(const float* in, const float* cosines, const float* sines, int64_t rotary, int64_t dim, float* out) {
    const int64_t half = rotary / 2;
    for (int64_t i = 0; i < half; ++i) {
        out[i] = in[i] * cosines[i] - in[i + half] * sines[i];
        out[i + half] = in[i + half] * cosines[i + half] + in[i] * sines[i + half];
    }
    for (int64_t i = rotary; i < dim; ++i) out[i] = in[i];
}

template <class Value>
static void put_head(const Rope& op, int64_t slot, int64_t head, int side, const float* values) {
    const int64_t block = slot / op.block_tokens, place = slot % op.block_tokens;
    Value* to = static_cast<Value*>(op.pages)
        + (((block * op.kv_heads + head) * 2 + side) * op.block_tokens + place) * op.dim;
    for (int64_t i = 0; i < op.dim; ++i) put(to + i, values[i]);
}

static void rope_row(const Rope& op, const Step& step, int64_t row) {
    const float* states = op.states + row * (op.heads + 2 * op.kv_heads) * op.dim;
    const float* cosines = op.cosines + step.positions[row] * op.rotary;
    const float* sines = op.sines + step.positions[row] * op.rotary;
    const int64_t slot = step.slots[row];
    float normed[MAX_DIM], turned[MAX_DIM];
    for (int64_t head = 0; head < op.heads + op.kv_heads; ++head) {
        const float* in = states + head * op.dim;
        if (op.norms) {
            norm_row(in, op.norms + head * op.dim, normed, op.dim, op.eps, false);
            in = normed;
        }
        float* to = head < op.heads ? op.queries + (row * op.heads + head) * op.dim : turned;
        turn(in, cosines, sines, op.rotary, op.dim, to);
        if (head < op.heads || slot < 0) continue;
        const float* value = states + (op.kv_heads + head) * op.dim;
        for (int side = 0; side < 2; ++side)
            if (op.format == BF16)
                put_head<uint16_t>(op, slot, head - op.heads, side, side ? value : turned);
            else
                put_head<float>(op, slot, head - op.heads, side, side ? value : turned);
    }
}

static inline vf activated(vf x, int32_t activation) {
    if (activation == SILU) return x / (1.0f + exponential(-x));
    return 0.5f * x * (1.0f + tangent(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static inline void gate_row(const Gate& op, int64_t row) {
    const float* gate = op.in + row * 2 * op.inner;
    const float* up = gate + op.inner;
    float* out = op.out + row * op.inner;
    int64_t i = 0;
    for (; i + LANES <= op.inner; i += LANES) store(out + i, activated(load(gate + i), op.activation) * load(up + i));
    for (; i < op.inner; ++i) out[i] = activated(splat(gate[i]), op.activation)[0] * up[i];
}
