// What attention does with one tile of KEYS tokens: scores of query rows, and sums of values by weights. Included within
// a namespace of its own, after simd.h.
//
// There are two ways to each. Few rows read the pages as they stand; many have the tile laid out as matrices first. Both
// add in the same order, so a row's bits do not tell which way it went:
//
// - a score is LANES sums of products, over a head's vectors in order, and those sums added as `sums_of` does;
// - a sum of values adds tokens in order.
//
// A head's values stand in the order in which `load_pair` yields them, in queries and sums too.

constexpr int KEYS = 64;
constexpr int MAX_DIM = 256;
constexpr int LINE = 64;  // bytes that memory brings at once

// Two vectors that stand beside each other. Of bfloat16 the even and the odd values: no lane has to move.
static inline void load_pair(const float* from, vf& a, vf& b) {
    a = load(from);
    b = load(from + LANES);
}

static inline void load_pair(const uint16_t* from, vf& a, vf& b) {
    vu words;
    __builtin_memcpy(&words, from, sizeof words);
    a = (vf)(words << 16);
    b = (vf)(words & 0xffff0000u);
}

template <int... LANE>
static inline void part(vf& a, vf& b, std::integer_sequence<int, LANE...>) {
    const vf first = a, second = b;
    a = __builtin_shufflevector(first, second, 2 * LANE...);
    b = __builtin_shufflevector(first, second, (2 * LANE + 1)...);
}

template <int... LANE>
static inline void join(vf& a, vf& b, std::integer_sequence<int, LANE...>) {
    const vf even = a, odd = b;
    a = __builtin_shufflevector(even, odd, (LANE / 2 + LANE % 2 * LANES)...);
    b = __builtin_shufflevector(even, odd, (LANE / 2 + LANE % 2 * LANES + LANES / 2)...);
}

// to = from x factor, whose values stand as pages of Value yield them.
template <class Value>
static void arrange(const float* from, int64_t dim, float factor, float* to) {
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) {
        vf a = load(from + d) * factor, b = load(from + d + LANES) * factor;
        if constexpr (sizeof(Value) == 2) part(a, b, std::make_integer_sequence<int, LANES>());
        store(to + d, a);
        store(to + d + LANES, b);
    }
    if (d < dim) store(to + d, load(from + d) * factor);
}

// The way back: to = from / divisor.
template <class Value>
static void restore(const float* from, int64_t dim, float divisor, float* to) {
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) {
        vf a = load(from + d) / divisor, b = load(from + d + LANES) / divisor;
        if constexpr (sizeof(Value) == 2) join(a, b, std::make_integer_sequence<int, LANES>());
        store(to + d, a);
        store(to + d + LANES, b);
    }
    if (d < dim) store(to + d, load(from + d) / divisor);
}

// Asks for what stands `values` behind `from`, of one token.
template <class Value>
static inline void prefetch(const Value* from, int64_t dim) {
    const char* at = reinterpret_cast<const char*>(from);
    for (int64_t byte = 0; byte < dim * (int64_t)sizeof(Value); byte += LINE) __builtin_prefetch(at + byte, 0, 3);
}

// scores[row][key] of ROWS queries and `count` keys, rounded up to LANES. ahead: keys to be asked for meanwhile, or null.
template <int ROWS, class Value>
static void score_pages(
    const float* queries, const Value* const* keys, const Value* const* ahead, int64_t count, int64_t dim, float* scores) {
    constexpr int ACROSS = ROWS == 1 ? 4 : 2;  // keys, few enough that AVX2's registers hold all of it
    for (int64_t key = 0; key < count; key += LANES) {
        vf products[ROWS][LANES];
        for (int some = 0; some < LANES; some += ACROSS) {
            vf sums[ROWS][ACROSS] = {};
            int64_t d = 0;
            for (; d + 2 * LANES <= dim; d += 2 * LANES)
                for (int half = 0; half < 2; ++half)
                    for (int k = 0; k < ACROSS; ++k) {
                        vf pair[2];
                        load_pair(keys[key + some + k] + d, pair[0], pair[1]);
                        for (int r = 0; r < ROWS; ++r)
                            sums[r][k] = fma(load(queries + r * dim + d + half * LANES), pair[half], sums[r][k]);
                    }
            if (d < dim)
                for (int k = 0; k < ACROSS; ++k) {
                    const vf last = load(keys[key + some + k] + d);
                    for (int r = 0; r < ROWS; ++r) sums[r][k] = fma(load(queries + r * dim + d), last, sums[r][k]);
                }
            for (int r = 0; r < ROWS; ++r)
                for (int k = 0; k < ACROSS; ++k) products[r][some + k] = sums[r][k];
            if (ahead)
                for (int k = 0; k < ACROSS; ++k) prefetch(ahead[key + some + k], dim);
        }
        for (int r = 0; r < ROWS; ++r) store(scores + r * KEYS + key, sums_of(products[r]));
    }
}

// sums[row] += weights[row][key] x value of the key, for PAIRS pairs of vectors of ROWS rows.
template <int ROWS, int PAIRS, class Value>
static inline void add_pairs(
    const float* weights, const Value* const* keys, int64_t offset, int64_t count, float* sums, int64_t stride) {
    vf totals[ROWS][2 * PAIRS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < 2 * PAIRS; ++v) totals[r][v] = load(sums + r * stride + v * LANES);
    for (int64_t key = 0; key < count; ++key) {
        vf weight[ROWS];
        for (int r = 0; r < ROWS; ++r) weight[r] = splat(weights[r * KEYS + key]);
        for (int p = 0; p < PAIRS; ++p) {
            vf a, b;
            load_pair(keys[key] + offset + p * 2 * LANES, a, b);
            for (int r = 0; r < ROWS; ++r) totals[r][2 * p] = fma(weight[r], a, totals[r][2 * p]);
            for (int r = 0; r < ROWS; ++r) totals[r][2 * p + 1] = fma(weight[r], b, totals[r][2 * p + 1]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < 2 * PAIRS; ++v) store(sums + r * stride + v * LANES, totals[r][v]);
}

// offset: from a token's key to its value. ahead: keys whose values are to be asked for meanwhile, or null.
template <int ROWS, class Value>
static void add_pages(
    const float* weights, const Value* const* keys, const Value* const* ahead, int64_t offset, int64_t count, int64_t dim,
    float* sums, int64_t stride) {
    constexpr int SOME = 16;
    for (int64_t key = 0; key < count; key += SOME) {
        const int64_t some = count - key < SOME ? count - key : SOME;
        int64_t d = 0;
        // Of three rows a pair at a time is what AVX2's registers hold.
        for (; ROWS < 3 && d + 4 * LANES <= dim; d += 4 * LANES)
            add_pairs<ROWS, 2>(weights + key, keys + key, offset + d, some, sums + d, stride);
        for (; d + 2 * LANES <= dim; d += 2 * LANES)
            add_pairs<ROWS, 1>(weights + key, keys + key, offset + d, some, sums + d, stride);
        if (d < dim)
            for (int r = 0; r < ROWS; ++r) {
                vf total = load(sums + r * stride + d);
                for (int64_t k = key; k < key + some; ++k)
                    total = fma(splat(weights[r * KEYS + k]), load(keys[k] + offset + d), total);
                store(sums + r * stride + d, total);
            }
        if (ahead)
            for (int64_t k = key; k < key + some; ++k) prefetch(ahead[k] + offset, dim);
    }
}

// The keys as a matrix [place][key] of stride KEYS. The places of a lane follow one another, and the lanes as
// `score_matrix` adds them up: by their number with its bits reversed.
constexpr int lane_at(int index) {
    int lane = 0;
    for (int bit = 1; bit < LANES; bit *= 2) lane = lane * 2 + (index & bit ? 1 : 0);
    return lane;
}

// Writes one vector of LANES keys, turned: a vector for each lane.
template <int... INDEX>
static inline void put_lanes(const vf* square, int64_t vectors, float* to, std::integer_sequence<int, INDEX...>) {
    (store(to + INDEX * vectors * KEYS, square[lane_at(INDEX)]), ...);
}

// Two vectors of each of LANES keys. Of bfloat16 their words are turned, two values at once.
static inline void turn_pairs(const float* const* keys, int64_t d, vf* a, vf* b) {
    UNROLLED
    for (int lane = 0; lane < LANES; ++lane) load_pair(keys[lane] + d, a[lane], b[lane]);
    transpose(a);
    transpose(b);
}

static inline void turn_pairs(const uint16_t* const* keys, int64_t d, vf* a, vf* b) {
    UNROLLED
    for (int lane = 0; lane < LANES; ++lane) __builtin_memcpy(a + lane, keys[lane] + d, sizeof *a);
    transpose(a);
    UNROLLED
    for (int lane = 0; lane < LANES; ++lane) {
        const vu words = (vu)a[lane];
        a[lane] = (vf)(words << 16);
        b[lane] = (vf)(words & 0xffff0000u);
    }
}

template <class Value>
BLOCK gather_keys(const Value* const* keys, int64_t count, int64_t dim, float* to) {
    constexpr std::make_integer_sequence<int, LANES> lanes;
    const int64_t vectors = dim / LANES;
    for (int64_t key = 0; key < count; key += LANES) {
        int64_t d = 0;
        vf a[LANES], b[LANES];
        for (; d + 2 * LANES <= dim; d += 2 * LANES) {
            turn_pairs(keys + key, d, a, b);
            put_lanes(a, vectors, to + d / LANES * KEYS + key, lanes);
            put_lanes(b, vectors, to + (d / LANES + 1) * KEYS + key, lanes);
        }
        if (d < dim) {
            UNROLLED
            for (int lane = 0; lane < LANES; ++lane) a[lane] = load(keys[key + lane] + d);
            transpose(a);
            put_lanes(a, vectors, to + d / LANES * KEYS + key, lanes);
        }
    }
}

// A query as `gather_keys` orders the places.
template <int... INDEX>
static inline void put_query(const float* query, int64_t vectors, float* to, std::integer_sequence<int, INDEX...>) {
    ((to[INDEX * vectors] = query[lane_at(INDEX)]), ...);
}

static void gather_query(const float* query, int64_t dim, float* to) {
    constexpr std::make_integer_sequence<int, LANES> lanes;
    for (int64_t d = 0; d < dim; d += LANES) put_query(query + d, dim / LANES, to++, lanes);
}

// As [key][dim].
template <class Value>
BLOCK gather_values(const Value* const* keys, int64_t offset, int64_t count, int64_t dim, float* to) {
    for (int64_t key = 0; key < count; ++key, to += dim) {
        int64_t d = 0;
        for (; d + 2 * LANES <= dim; d += 2 * LANES) {
            vf a, b;
            load_pair(keys[key] + offset + d, a, b);
            store(to + d, a);
            store(to + d + LANES, b);
        }
        if (d < dim) store(to + d, load(keys[key] + offset + d));
    }
}

// sums[r][v] += rows[r][i] x matrix[i][v], for i in order.
template <int ROWS, int VECTORS>
static inline void multiply_add(
    const float* rows, int64_t row_stride, int64_t inner, const float* matrix, int64_t stride, vf (&sums)[ROWS][VECTORS]) {
    ROLLED
    for (int64_t i = 0; i < inner; ++i) {
        vf column[VECTORS];
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) column[v] = load(matrix + i * stride + v * LANES);
        UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            const vf x = splat(rows[r * row_stride + i]);
            UNROLLED
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(x, column[v], sums[r][v]);
        }
    }
}

// Each lane's sum is added to the one before it once as many lanes have gone into both.
template <int ROWS, int VECTORS>
BLOCK score_block(const float* queries, int64_t dim, const float* keys, float* scores) {
    constexpr int LEVELS = LANES == 16 ? 5 : 4;
    vf pending[LEVELS][ROWS][VECTORS];
    const int64_t vectors = dim / LANES;
    ROLLED
    for (int index = 0; index < LANES; ++index) {
        vf sums[ROWS][VECTORS] = {};
        multiply_add(queries + index * vectors, dim, vectors, keys + index * vectors * KEYS, KEYS, sums);
        int level = 0;
        ROLLED
        for (; index >> level & 1; ++level) {
            UNROLLED
            for (int r = 0; r < ROWS; ++r) {
                UNROLLED
                for (int v = 0; v < VECTORS; ++v) sums[r][v] += pending[level][r][v];
            }
        }
        UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            UNROLLED
            for (int v = 0; v < VECTORS; ++v) pending[level][r][v] = sums[r][v];
        }
    }
    UNROLLED
    for (int r = 0; r < ROWS; ++r) {
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) store(scores + r * KEYS + v * LANES, pending[LEVELS - 1][r][v]);
    }
}

template <int ROWS>
static void score_matrix(const float* queries, const float* keys, int64_t count, int64_t dim, float* scores) {
    int64_t key = 0;
    for (; key + 2 * LANES <= count; key += 2 * LANES) score_block<ROWS, 2>(queries, dim, keys + key, scores + key);
    for (; key < count; key += LANES) score_block<ROWS, 1>(queries, dim, keys + key, scores + key);
}

template <int ROWS, int VECTORS>
BLOCK add_block(const float* weights, const float* shrinks, const float* values, int64_t count, int64_t dim, float* sums, int64_t stride) {
    vf totals[ROWS][VECTORS];
    UNROLLED
    for (int r = 0; r < ROWS; ++r) {
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) totals[r][v] = load(sums + r * stride + v * LANES) * shrinks[r];
    }
    multiply_add(weights, KEYS, count, values, dim, totals);
    UNROLLED
    for (int r = 0; r < ROWS; ++r) {
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) store(sums + r * stride + v * LANES, totals[r][v]);
    }
}

template <int ROWS>
static void add_matrix(const float* weights, const float* shrinks, const float* values, int64_t count, int64_t dim, float* sums, int64_t stride) {
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) add_block<ROWS, 2>(weights, shrinks, values + d, count, dim, sums + d, stride);
    for (; d < dim; d += LANES) add_block<ROWS, 1>(weights, shrinks, values + d, count, dim, sums + d, stride);
}
