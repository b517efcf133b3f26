// Products of activations with packed matrices. Included within a namespace of its own, after simd.h.
//
// A matrix is packed in tiles of TILE columns, and each tile along `inner`, so that a tile is one stream of memory.
// An output is always summed in the order of `inner`, whatever else is in the batch: its bits depend on its row alone.

constexpr int TILE = 2 * LANES;
constexpr int GROUP = 32;  // inner values that share a scale in INT8's activations and in INT4

static inline int64_t tiles_of(int64_t columns) { return (columns + TILE - 1) / TILE; }

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

static inline void put_column(float* tile, int column, float value) { tile[column] = value; }
static inline void put_column(uint16_t* tile, int column, float value) {
    tile[2 * (column % LANES) + column / LANES] = narrow(value);
}

template <class Weight>
static void pack_floats(const float* weights, int64_t columns, int64_t inner, Weight* packed) {
    for (int64_t tile = 0; tile < tiles_of(columns); ++tile)
        for (int64_t k = 0; k < inner; ++k)
            for (int column = 0; column < TILE; ++column) {
                const int64_t row = tile * TILE + column;
                put_column(packed + (tile * inner + k) * TILE, column, row < columns ? weights[row * inner + k] : 0.0f);
            }
}

// Where a product's outputs go.
struct Output {
    float* out;
    const float* bias;
    int64_t columns;
    bool add;

    inline void write(int64_t row, int64_t column, vf value) const {
        float* to = out + row * columns + column;
        if (column + LANES <= columns) {
            if (bias) value += load(bias + column);
            store(to, add ? load(to) + value : value);
            return;
        }
        float lanes[LANES];
        store(lanes, value);
        for (int lane = 0; column + lane < columns; ++lane) {
            const float one = lanes[lane] + (bias ? bias[column + lane] : 0.0f);
            to[lane] = add ? to[lane] + one : one;
        }
    }
};

// ROWS rows by TILES neighbouring tiles, kept in registers over all of `inner`.
template <int ROWS, int TILES, class Format>
static void float_block(
    const float* in, int64_t inner, const typename Format::Weight* weights, int64_t row, int64_t tile, const Output& out) {
    vf sums[ROWS][TILES][2] = {};
    const float* rows = in + row * inner;
    const typename Format::Weight* tiles = weights + tile * inner * TILE;
    for (int64_t k = 0; k < inner; ++k) {
        vf w[TILES][2];
        for (int t = 0; t < TILES; ++t) Format::load_tile(tiles + (t * inner + k) * TILE, w[t][0], w[t][1]);
        // Several rows take long enough for the next tile to come meanwhile.
        if (ROWS >= 3) __builtin_prefetch(tiles + (TILES * inner + k) * TILE);
        for (int r = 0; r < ROWS; ++r) {
            const vf x = splat(rows[r * inner + k]);
            for (int t = 0; t < TILES; ++t) {
                sums[r][t][0] = fma(x, w[t][0], sums[r][t][0]);
                sums[r][t][1] = fma(x, w[t][1], sums[r][t][1]);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int t = 0; t < TILES; ++t)
            for (int half = 0; half < 2; ++half) {
                const int64_t column = (tile + t) * TILE + half * LANES;
                if (column < out.columns) out.write(row + r, column, sums[r][t][half]);
            }
}

// `count` rows of one tile, BLOCK at a time. More accumulators hide more latency; registers bound them.
#if LANES == 16
constexpr int BLOCK = 12;
#else
constexpr int BLOCK = 6;
#endif

template <class Format, int ROWS = BLOCK>
static inline void float_rows(
    const float* in, int64_t inner, const typename Format::Weight* weights, int64_t row, int64_t count, int64_t tile,
    const Output& out) {
    if (count == ROWS) return float_block<ROWS, 1, Format>(in, inner, weights, row, tile, out);
    if constexpr (ROWS > 1) float_rows<Format, ROWS - 1>(in, inner, weights, row, count, tile, out);
}

// `count` rows of one tile, in blocks of about one size: a last one of a row or two would wait for its own additions.
template <class Format>
static void float_tile(
    const float* in, int64_t inner, const typename Format::Weight* weights, int64_t row, int64_t count, int64_t tile,
    const Output& out) {
    for (int64_t blocks = (count + BLOCK - 1) / BLOCK; blocks; --blocks) {
        const int64_t rows = (count + blocks - 1) / blocks;
        float_rows<Format>(in, inner, weights, row, rows, tile, out);
        row += rows;
        count -= rows;
    }
}

constexpr int64_t CHUNK_ROWS = 96;  // whose activations stay in the second-level cache while tiles go by

// `count` rows of the tiles from `tile` to `last`.
template <class Format>
static void float_tiles(
    const float* in, int64_t inner, const typename Format::Weight* weights, int64_t row, int64_t count, int64_t tile,
    int64_t last, const Output& out) {
    if (count == 1)
        for (; tile + 4 <= last; tile += 4) float_block<1, 4, Format>(in, inner, weights, row, tile, out);
    if (count == 2)
        for (; tile + 2 <= last; tile += 2) float_block<2, 2, Format>(in, inner, weights, row, tile, out);
    if (count == 3)
        for (; tile + 2 <= last; tile += 2) float_block<3, 2, Format>(in, inner, weights, row, tile, out);
    for (; tile < last; ++tile) float_tile<Format>(in, inner, weights, row, count, tile, out);
}

// Of weights, and of rows, what stays in the second-level cache while the other goes by.
constexpr int64_t CACHED_BYTES = 160 << 10;

// This thread's part of a product. Weights come from memory once: a run of tiles meets all rows, chunk by chunk.
template <class Format>
static void float_linear(
    const float* in, int64_t rows, int64_t inner, const void* packed, const Output& out, int rank, int threads) {
    const auto* weights = static_cast<const typename Format::Weight*>(packed);
    const int64_t tiles = tiles_of(out.columns), last = tiles * (rank + 1) / threads;
    const int64_t run = CACHED_BYTES / (TILE * inner * (int64_t)sizeof *weights) + 1;
    const int64_t chunk = (CACHED_BYTES / (inner * 4) / BLOCK + 1) * BLOCK;
    for (int64_t tile = tiles * rank / threads; tile < last; tile += run) {
        const int64_t end = tile + run < last ? tile + run : last;
        for (int64_t row = 0; row < rows; row += chunk)
            float_tiles<Format>(in, inner, weights, row, rows - row < chunk ? rows - row : chunk, tile, end, out);
    }
}
