// Attention over pages, for decode and for chunks of a prompt alike. Included within a namespace of its own, after simd.h.
//
// A query row looks at tiles of KEYS tokens that begin at multiples of KEYS, in order, with a running softmax (Milakov
// and Gimelshein, arXiv 1805.02867). What it sees and the order in which it adds depend on its own position alone, so
// its bits are the same whatever rows it is computed with.

constexpr int KEYS = 64;
constexpr int MAX_DIM = 256;
constexpr int QUERY_ROWS = 64;  // query rows (tokens x heads of a group) of one piece of work, if a group is no more
constexpr int MAX_GROUP = 64;   // query heads of a kv head

// The query rows of one piece: tokens first .. first + tokens of sequence `sequence`, all heads of kv head `head`.
struct Piece {
    int64_t sequence, head, first, tokens;
};

static inline int64_t piece_tokens(const Attend& op) {
    const int64_t group = op.heads / op.kv_heads;
    return group < QUERY_ROWS ? QUERY_ROWS / group : 1;
}

static int64_t pieces_of(const Attend& op, const Step& step) {
    int64_t pieces = 0;
    for (int64_t s = 0; s < step.sequences; ++s) pieces += (step.seq_rows[s] + piece_tokens(op) - 1) / piece_tokens(op);
    return pieces * op.kv_heads;
}

// Pieces are numbered sequence by sequence, from the start of each, and head by head.
static Piece piece_at(const Attend& op, const Step& step, int64_t index) {
    const int64_t size = piece_tokens(op), head = index % op.kv_heads;
    index /= op.kv_heads;
    for (int64_t s = 0;; ++s) {
        const int64_t count = (step.seq_rows[s] + size - 1) / size;
        if (index < count) {
            const int64_t first = index * size, left = step.seq_rows[s] - first;
            return {s, head, first, left < size ? left : size};
        }
        index -= count;
    }
}

// The running softmax of one query row, whose weighted sum of values stands beside it: largest score, sum of weights.
struct Running {
    float most, total;
};

// Room of one thread.
constexpr int MAX_ROWS = QUERY_ROWS > MAX_GROUP ? QUERY_ROWS : MAX_GROUP;
struct Workspace {
    alignas(64) float keys[MAX_DIM * KEYS];    // [dim][key]: a vector is one dimension of LANES keys
    alignas(64) float values[KEYS * MAX_DIM];  // [key][dim]
    alignas(64) float weights[MAX_ROWS * KEYS];
    alignas(64) float sums[MAX_ROWS * MAX_DIM];
    const float* queries[MAX_ROWS];
    Running running[MAX_ROWS];
};

// Where the keys of `count` tokens from `from` on stand; their values stand block_tokens x dim further.
template <class Value>
static void find_keys(const Attend& op, const Step& step, const Piece& piece, int64_t from, int64_t count, const Value** at) {
    const int64_t head_values = 2 * op.block_tokens * op.dim;
    const auto* pages = static_cast<const Value*>(op.pages) + piece.head * head_values;
    const int32_t* table = step.table + piece.sequence * step.table_stride;
    int64_t block = from / op.block_tokens, place = from % op.block_tokens;
    for (int64_t token = 0; token < count; ++token) {
        at[token] = pages + table[block] * op.kv_heads * head_values + place * op.dim;
        if (++place == op.block_tokens) {
            place = 0;
            ++block;
        }
    }
}

// As [dim][key] with a stride of KEYS. Keys of the last vector beyond `count` are 0.
template <class Value>
static void gather_keys(const Value* const* at, int64_t count, int64_t dim, float* to) {
    for (int64_t key = 0; key < count; key += LANES)
        for (int64_t d = 0; d < dim; d += LANES) {
            vf square[LANES];
            for (int64_t lane = 0; lane < LANES; ++lane) square[lane] = key + lane < count ? load(at[key + lane] + d) : vf{};
            transpose(square);
            for (int64_t lane = 0; lane < LANES; ++lane) store(to + (d + lane) * KEYS + key, square[lane]);
        }
}

// As [key][dim].
template <class Value>
static void gather_values(const Value* const* at, int64_t offset, int64_t count, int64_t dim, float* to) {
    for (int64_t key = 0; key < count; ++key)
        for (int64_t d = 0; d < dim; d += LANES) store(to + key * dim + d, load(at[key] + offset + d));
}

// out[r][column] += sum over `inner` of rows[r][i] x matrix[i][column], for ROWS rows and VECTORS vectors of columns.
// Always in the order of `inner`, from what `out` holds.
template <int ROWS, int VECTORS>
static inline void multiply_block(
    const float* const* rows, int64_t inner, const float* matrix, int64_t stride, float* out, int64_t out_stride) {
    vf sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = load(out + r * out_stride + v * LANES);
    for (int64_t i = 0; i < inner; ++i) {
        vf column[VECTORS];
        for (int v = 0; v < VECTORS; ++v) column[v] = load(matrix + i * stride + v * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const vf x = splat(rows[r][i]);
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(x, column[v], sums[r][v]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) store(out + r * out_stride + v * LANES, sums[r][v]);
}

template <int ROWS>
static void multiply_rows(
    const float* const* rows, int64_t inner, const float* matrix, int64_t columns, int64_t stride, float* out,
    int64_t out_stride) {
    int64_t c = 0;
    for (; c + 4 * LANES <= columns; c += 4 * LANES)
        multiply_block<ROWS, 4>(rows, inner, matrix + c, stride, out + c, out_stride);
    for (; c < columns; c += LANES) multiply_block<ROWS, 1>(rows, inner, matrix + c, stride, out + c, out_stride);
}

static void multiply(
    const float* const* rows, int64_t count, int64_t inner, const float* matrix, int64_t columns, int64_t stride,
    float* out, int64_t out_stride) {
    for (; count >= 3; count -= 3, rows += 3, out += 3 * out_stride)
        multiply_rows<3>(rows, inner, matrix, columns, stride, out, out_stride);
    if (count == 2) multiply_rows<2>(rows, inner, matrix, columns, stride, out, out_stride);
    if (count == 1) multiply_rows<1>(rows, inner, matrix, columns, stride, out, out_stride);
}

static inline vf capped(vf score, const Attend& op) {
    score *= op.scale;
    return op.softcap != 0.0f ? tangent(score / op.softcap) * op.softcap : score;
}

// Weights of one tile for one row, in place of its products; 0 for what it does not see. `values`: its sum so far.
static void weigh(
    const Attend& op, float* scores, int64_t tile, int64_t least, int64_t last, Running& running, float* values) {
    vf most = splat(-__builtin_inff());
    for (int key = 0; key < KEYS; key += LANES) {
        const vi place = LANE_NUMBERS + (int32_t)(tile + key);
        const vi seen = (place <= (int32_t)last) & (place >= (int32_t)least);
        const vf score = select(seen, capped(load(scores + key), op), splat(-__builtin_inff()));
        store(scores + key, score);
        most = select(score != score, score, larger(most, score));
    }
    float lanes[LANES], top = -__builtin_inff();
    store(lanes, most);
    for (float lane : lanes) top = lane > top || lane != lane ? lane : top;
    if (top == -__builtin_inff()) {
        for (int key = 0; key < KEYS; key += LANES) store(scores + key, vf{});
        return;
    }
    const float now = running.most > top ? running.most : top;
    vf total = {};
    for (int key = 0; key < KEYS; key += LANES) {
        const vf weight = exponential(load(scores + key) - now);
        store(scores + key, weight);
        total += weight;
    }
    if (now != running.most) {
        const float shrink = exponential(splat(running.most - now))[0];
        running.total *= shrink;
        for (int64_t d = 0; d < op.dim; d += LANES) store(values + d, load(values + d) * shrink);
    }
    running.most = now;
    running.total += sum(total);
}

template <class Value>
static void attend_piece(const Attend& op, const Step& step, const Piece& piece, Workspace& room) {
    const int64_t group = op.heads / op.kv_heads, first_row = step.first_row[piece.sequence] + piece.first;
    const int64_t position = step.positions[first_row], end = position + piece.tokens, rows = piece.tokens * group;
    const auto place = [&](int64_t r) { return ((first_row + r / group) * op.heads + piece.head * group + r % group) * op.dim; };
    const float* weights[MAX_ROWS];
    for (int64_t r = 0; r < rows; ++r) {
        room.running[r] = {-__builtin_inff(), 0.0f};
        room.queries[r] = op.queries + place(r);
        weights[r] = room.weights + r * KEYS;
    }
    __builtin_memset(room.sums, 0, rows * op.dim * 4);
    const int64_t begin = op.window && position >= op.window ? position - op.window + 1 : 0;
    for (int64_t tile = begin / KEYS * KEYS; tile < end; tile += KEYS) {
        const int64_t count = end - tile < KEYS ? end - tile : KEYS, columns = (count + LANES - 1) / LANES * LANES;
        const Value* at[KEYS];
        find_keys(op, step, piece, tile, count, at);
        gather_keys(at, count, op.dim, room.keys);
        gather_values(at, op.block_tokens * op.dim, count, op.dim, room.values);
        // Rows before `skip` stand before this tile and see none of it.
        const int64_t skip = tile > position ? (tile - position) * group : 0;
        __builtin_memset(room.weights + skip * KEYS, 0, (rows - skip) * KEYS * 4);
        multiply(room.queries + skip, rows - skip, op.dim, room.keys, columns, KEYS, room.weights + skip * KEYS, KEYS);
        for (int64_t r = skip; r < rows; ++r) {
            const int64_t last = position + r / group;
            const int64_t least = op.window && last >= op.window ? last - op.window + 1 : 0;
            weigh(op, room.weights + r * KEYS, tile, least, last, room.running[r], room.sums + r * op.dim);
        }
        multiply(weights + skip, rows - skip, count, room.values, op.dim, op.dim, room.sums + skip * op.dim, op.dim);
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < op.dim; d += LANES)
            store(op.out + place(r) + d, load(room.sums + r * op.dim + d) / room.running[r].total);
}

// Takes pieces off `next` until there are none. A sequence's later pieces are the larger ones, so they go first.
static void attend(const Attend& op, const Step& step, std::atomic<int64_t>& next, Workspace& room) {
    const int64_t pieces = pieces_of(op, step);
    for (int64_t index; (index = next.fetch_add(1)) < pieces;) {
        const Piece piece = piece_at(op, step, pieces - 1 - index);
        if (op.format == BF16)
            attend_piece<uint16_t>(op, step, piece, room);
        else
            attend_piece<float>(op, step, piece, room);
    }
}
