// Products with BF16 matrices, two inner indices an instruction (vdpbf16ps). Included within a namespace of its own,
// after linear.h, by instruction sets that have it.
//
// Activations are rounded to bfloat16 once a product. A 32-bit word holds inner indices 2k and 2k + 1, of one column in
// a matrix and of one row in the activations; where `inner` is odd, the last upper half is zero. The same instruction
// adds the same words in the same order for one row as for many, so here, too, a row's bits depend on it alone.

// Rows of a block, by the two vectors of a tile. Zen 4 starts one 512-bit vdpbf16ps a cycle, whose sum is ready after
// six, and loads one 512-bit vector a cycle; Sapphire Rapids starts one and loads two. 12 x 2 sums take 24 cycles a word
// of `inner` for 2 loads and 12 broadcasts, so the products bound it on both, and with 2 weights and an activation they
// fill 27 of 32 registers. 6 x 4 loads less, which is not what bounds it, but a batch of 7 rows would be two blocks.
constexpr int DOT_ROWS = 12;

static inline int64_t words_of(int64_t inner) { return (inner + 1) / 2; }

static int64_t half_packed_bytes(int64_t columns, int64_t inner) { return tiles_of(columns) * TILE * words_of(inner) * 4; }

static inline uint32_t word_of(const float* in, int64_t k, int64_t inner) {
    return narrow(in[k]) | (uint32_t)(k + 1 < inner ? narrow(in[k + 1]) : 0) << 16;
}

// [tile][word of inner][column of the tile].
static void half_pack(const float* weights, int64_t columns, int64_t inner, void* packed) {
    auto* to = static_cast<uint32_t*>(packed);
    for (int64_t tile = 0; tile < tiles_of(columns); ++tile)
        for (int64_t k = 0; k < inner; k += 2)
            for (int64_t row = tile * TILE; row < (tile + 1) * TILE; ++row)
                *to++ = row < columns ? word_of(weights + row * inner, k, inner) : 0;
}

static inline float half_at(const void* packed, int64_t inner, int64_t row, int64_t k) {
    const auto* tile = static_cast<const uint32_t*>(packed) + row / TILE * TILE * words_of(inner);
    return widen_one((uint16_t)(tile[k / 2 * TILE + row % TILE] >> k % 2 * 16));
}

static int64_t half_scratch_bytes(int64_t rows, int64_t inner) {
    return (rows < DOT_ROWS ? rows : (rows + DOT_ROWS - 1) / DOT_ROWS * DOT_ROWS) * words_of(inner) * 4;
}

// Rounded activations: [block of rows][word of inner][row of the block], so that a block reads one stream of memory,
// whatever power of two a row's length is.
struct Rounded {
    uint32_t* words;
    int64_t stride;  // rows of a block

    Rounded(void* scratch, int64_t rows)
        : words(static_cast<uint32_t*>(scratch)), stride(rows_of_block(rows, DOT_ROWS)) {}

    uint32_t* row(int64_t row, int64_t inner) const {
        return words + row / stride * stride * words_of(inner) + row % stride;
    }

    void round(const float* in, int64_t index, int64_t inner) const {
        uint32_t* to = row(index, inner);
        int64_t k = 0;
        for (; k + TILE <= inner; k += TILE) {
            const auto both = _mm512_cvtne2ps_pbh((__m512)load(in + k + LANES), (__m512)load(in + k));
            uint32_t some[LANES];
            __builtin_memcpy(some, &both, sizeof some);
            for (int i = 0; i < LANES; ++i, to += stride) *to = some[i];
        }
        for (; k < inner; k += 2, to += stride) *to = word_of(in, k, inner);
    }
};

static inline vu load_words(const uint32_t* from) {
    vu words;
    __builtin_memcpy(&words, from, sizeof words);
    return words;
}

static inline vf dot_pairs(vf sum, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }

// ROWS rows by TILES neighbouring tiles, kept in registers over all of `inner`.
template <int ROWS, int TILES>
BLOCK dot_block(
    const Rounded& in, int64_t inner, const uint32_t* weights, int64_t row, int64_t tile, const Output& out) {
    vf sums[ROWS][TILES][2] = {};
    const int64_t words = words_of(inner), stride = in.stride;
    const uint32_t* x = in.row(row, inner);
    const uint32_t* tiles = weights + tile * words * TILE;
    for (int64_t k = 0; k < words; ++k, x += stride) {
        vu w[TILES][2];
        UNROLLED
        for (int t = 0; t < TILES; ++t) {
            w[t][0] = load_words(tiles + (t * words + k) * TILE);
            w[t][1] = load_words(tiles + (t * words + k) * TILE + LANES);
        }
        UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            const vu pair = vu{} + x[r];
            UNROLLED
            for (int t = 0; t < TILES; ++t) {
                sums[r][t][0] = dot_pairs(sums[r][t][0], w[t][0], pair);
                sums[r][t][1] = dot_pairs(sums[r][t][1], w[t][1], pair);
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

static void half_linear(
    const Linear& op, int64_t rows, const Output& out, std::atomic<int64_t>& next, int rank, Team& team) {
    const int threads = team.size();
    const Rounded in(op.scratch, rows);
    for (int64_t row = rows * rank / threads; row < rows * (rank + 1) / threads; ++row)
        in.round(op.in + row * op.inner, row, op.inner);
    team.barrier();
    const auto* weights = static_cast<const uint32_t*>(op.weights);
    Claims claims(next, tiles_of(out.columns), threads, tiles_at_once(rows));
    for (int64_t first, last; claims.take(first, last);) {
        // Few rows have too few sums in one tile to wait for each, and memory likes several streams.
        if (rows == 1)
            for (; first + 4 <= last; first += 4) dot_block<1, 4>(in, op.inner, weights, 0, first, out);
        if (rows == 2)
            for (; first + 2 <= last; first += 2) dot_block<2, 2>(in, op.inner, weights, 0, first, out);
        each_block<DOT_ROWS>(
            rows, TILE * words_of(op.inner) * (int64_t)sizeof *weights, first, last,
            [&]<int ROWS>(int64_t row, int64_t tile) { dot_block<ROWS, 1>(in, op.inner, weights, row, tile, out); });
    }
}
