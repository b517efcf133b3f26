// Products of activations with packed matrices. Included within a namespace of its own, after tiling.h.
//
// An output is always summed in the order of `inner`, whatever else is in the batch: its bits depend on its row alone.

constexpr int GROUP = 32;  // inner values that share a scale in INT8's activations and in INT4

// Formats of plain floats: `load` gives the TILE weights of one inner index as two vectors.
struct FloatFormat {
    using Weight = float;
    static inline void load_tile(const float* w, vf& low, vf& high) {
        low = load(w);
        high = load(w + LANES);
    }
};

// Column j and column j + LANES share a 32-bit word, so that each vector is one operation away.
struct HalfFormat {
    using Weight = uint16_t;
    static inline void load_tile(const uint16_t* w, vf& low, vf& high) {
        vu words;
        __builtin_memcpy(&words, w, sizeof words);
        low = (vf)(words << 16);
        high = (vf)(words & 0xffff0000u);
    }
};

static inline void put_columns(float* tile, vf low, vf high) {
    store(tile, low);
    store(tile + LANES, high);
}
static inline void put_columns(uint16_t* tile, vf low, vf high) {
    const vu words = narrow_bits(low) | narrow_bits(high) << 16;
    __builtin_memcpy(tile, &words, sizeof words);
}

// LANES columns of LANES inner indices from `k` on, or as many as there are, each vector one inner index. The rest is 0.
static inline void load_square(const float* weights, int64_t columns, int64_t inner, int64_t row, int64_t k, vf* square) {
    for (int column = 0; column < LANES; ++column) {
        float values[LANES] = {};
        const int64_t count = row + column < columns ? (inner - k < LANES ? inner - k : LANES) : 0;
        if (count == LANES)
            square[column] = load(weights + (row + column) * inner + k);
        else {
            for (int64_t i = 0; i < count; ++i) values[i] = weights[(row + column) * inner + k + i];
            square[column] = load(values);
        }
    }
    transpose(square);
}

template <class Weight>
static void pack_floats(const float* weights, int64_t columns, int64_t inner, Weight* packed) {
    for (int64_t tile = 0; tile < tiles_of(columns); ++tile)
        for (int64_t k = 0; k < inner; k += LANES) {
            vf low[LANES], high[LANES];
            load_square(weights, columns, inner, tile * TILE, k, low);
            load_square(weights, columns, inner, tile * TILE + LANES, k, high);
            for (int i = 0; i < LANES && k + i < inner; ++i)
                put_columns(packed + (tile * inner + k + i) * TILE, low[i], high[i]);
        }
}

// Where a product's outputs go. Columns past the matrix's are none.
struct Output {
    float* out;
    const float* bias;
    int64_t columns;
    bool add;

    inline void write(int64_t row, int64_t column, vf value) const {
        if (column + LANES > columns) return write_last(row, column, value);
        float* to = out + row * columns + column;
        if (bias) value += load(bias + column);
        store(to, add ? load(to) + value : value);
    }

    __attribute__((noinline)) void write_last(int64_t row, int64_t column, vf value) const {
        float lanes[LANES];
        store(lanes, value);
        for (int lane = 0; column + lane < columns; ++lane) {
            float* to = out + row * columns + column + lane;
            const float one = lanes[lane] + (bias ? bias[column + lane] : 0.0f);
            *to = add ? *to + one : one;
        }
    }
};

// ROWS rows by TILES neighbouring tiles, kept in registers over all of `inner`.
template <int ROWS, int TILES, class Format>
BLOCK float_block(
    const float* in, int64_t inner, const typename Format::Weight* weights, int64_t row, int64_t tile, const Output& out) {
    vf sums[ROWS][TILES][2] = {};
    const float* rows = in + row * inner;
    const typename Format::Weight* tiles = weights + tile * inner * TILE;
    for (int64_t k = 0; k < inner; ++k) {
        vf w[TILES][2];
        UNROLLED
        for (int t = 0; t < TILES; ++t) Format::load_tile(tiles + (t * inner + k) * TILE, w[t][0], w[t][1]);
        // Several rows take long enough for the next tile to come meanwhile.
        if (ROWS >= 3) __builtin_prefetch(tiles + (TILES * inner + k) * TILE);
        UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            const vf x = splat(rows[r * inner + k]);
            UNROLLED
            for (int t = 0; t < TILES; ++t) {
                sums[r][t][0] = fma(x, w[t][0], sums[r][t][0]);
                sums[r][t][1] = fma(x, w[t][1], sums[r][t][1]);
            }
        }
    }
    UNROLLED
    for (int r = 0; r < ROWS; ++r) {
        UNROLLED
        for (int t = 0; t < TILES; ++t) {
            out.write(row + r, (tile + t) * TILE, sums[r][t][0]);
            out.write(row + r, (tile + t) * TILE + LANES, sums[r][t][1]);
        }
    }
}

// Tiles that so many rows meet together.
static inline int64_t tiles_at_once(int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

// More accumulators hide more latency; registers bound them.
#if LANES == 16
constexpr int FLOAT_ROWS = 12;
#else
constexpr int FLOAT_ROWS = 6;
#endif

// What this thread gets of a product.
template <class Format>
static void float_linear(
    const float* in, int64_t rows, int64_t inner, const void* packed, const Output& out, std::atomic<int64_t>& next, int threads) {
    const auto* weights = static_cast<const typename Format::Weight*>(packed);
    Claims claims(next, tiles_of(out.columns), threads, tiles_at_once(rows));
    for (int64_t first, last; claims.take(first, last);) {
        // Few rows have too few sums in one tile to wait for each, and memory likes several streams.
        if (rows == 1)
            for (; first + 4 <= last; first += 4) float_block<1, 4, Format>(in, inner, weights, 0, first, out);
        if (rows == 2)
            for (; first + 2 <= last; first += 2) float_block<2, 2, Format>(in, inner, weights, 0, first, out);
        if (rows == 3)
            for (; first + 2 <= last; first += 2) float_block<3, 2, Format>(in, inner, weights, 0, first, out);
        each_block<FLOAT_ROWS>(
            rows, TILE * inner * (int64_t)sizeof *weights, first, last,
            [&]<int ROWS>(int64_t row, int64_t tile) { float_block<ROWS, 1, Format>(in, inner, weights, row, tile, out); });
    }
}
