// Attention over pages, for decode and for chunks of a prompt alike. Included within a namespace of its own, after simd.h.
//
// A query row looks at tiles of KEYS tokens that begin at multiples of KEYS, in order, with a running softmax (Milakov
// and Gimelshein, arXiv 1805.02867). What it sees and the order in which it adds depend on its own position alone, so
// its bits are the same whatever rows it is computed with.

constexpr int KEYS = 64;
constexpr int MAX_DIM = 256;
constexpr int QUERY_ROWS = 32;  // query rows (tokens x heads of a group) of one piece of work, if a group is no more
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

// `side` 0: keys, 1: values of tokens from .. from + count, widened to [token][dim].
template <class Value>
static void gather(
    const Attend& op, const Step& step, const Piece& piece, int side, int64_t from, int64_t count, float* to) {
    const auto* pages = static_cast<const Value*>(op.pages);
    const int32_t* table = step.table + piece.sequence * step.table_stride;
    const int64_t side_values = op.block_tokens * op.dim;
    for (int64_t token = 0; token < count; ++token) {
        const int64_t block = table[(from + token) / op.block_tokens], place = (from + token) % op.block_tokens;
        const Value* at = pages + ((block * op.kv_heads + piece.head) * 2 + side) * side_values + place * op.dim;
        for (int64_t d = 0; d < op.dim; d += LANES) store(to + token * op.dim + d, load(at + d));
    }
}

// Products of one query with LANES keys. Each is summed over dim in LANES strands, and the strands pairwise.
static inline vf scores_of(const float* query, const float* keys, int64_t dim) {
    float strands[LANES][LANES];
    for (int key = 0; key < LANES; ++key) {
        vf sum_of_key = {};
        for (int64_t d = 0; d < dim; d += LANES)
            sum_of_key = fma(load(query + d), load(keys + key * dim + d), sum_of_key);
        store(strands[key], sum_of_key);
    }
    vf columns[LANES];
    for (int lane = 0; lane < LANES; ++lane)
        for (int key = 0; key < LANES; ++key) columns[lane][key] = strands[key][lane];
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; ++lane) columns[lane] += columns[lane + half];
    return columns[0];
}

// The running softmax of one query row: largest score, sum of weights, weighted sum of values.
struct Running {
    float most, total;
    float values[MAX_DIM];
};

// Weights of one tile for one row, in place of its scores. False if the row sees none of it.
static bool weigh(float* scores, int64_t tile, int64_t least, int64_t last, Running& running, int64_t dim) {
    vf most = splat(-__builtin_inff());
    for (int key = 0; key < KEYS; key += LANES) {
        vi place;
        for (int lane = 0; lane < LANES; ++lane) place[lane] = (int32_t)(tile + key + lane);
        const vi seen = (place <= (int32_t)last) & (place >= (int32_t)least);
        const vf score = select(seen, load(scores + key), splat(-__builtin_inff()));
        store(scores + key, score);
        most = select(score != score, score, larger(most, score));
    }
    float lanes[LANES], top = -__builtin_inff();
    store(lanes, most);
    for (float lane : lanes) top = lane > top || lane != lane ? lane : top;
    if (top == -__builtin_inff()) return false;
    const float now = running.most > top ? running.most : top;
    const float shrink = exponential(splat(running.most - now))[0];
    vf total = {};
    for (int key = 0; key < KEYS; key += LANES) {
        const vf weight = exponential(load(scores + key) - now);
        store(scores + key, weight);
        total += weight;
    }
    running.most = now;
    running.total = running.total * shrink + sum(total);
    for (int64_t d = 0; d < dim; d += LANES) store(running.values + d, load(running.values + d) * shrink);
    return true;
}

static void add_values(const float* weights, const float* values, int64_t count, Running& running, int64_t dim) {
    for (int64_t d = 0; d < dim; d += 4 * LANES) {
        const int64_t vectors = (dim - d) / LANES < 4 ? (dim - d) / LANES : 4;
        vf sums[4];
        for (int v = 0; v < vectors; ++v) sums[v] = load(running.values + d + v * LANES);
        if (vectors == 4) {
            for (int64_t key = 0; key < count; ++key)
                for (int v = 0; v < 4; ++v)
                    sums[v] = fma(splat(weights[key]), load(values + key * dim + d + v * LANES), sums[v]);
        } else {
            for (int64_t key = 0; key < count; ++key)
                for (int v = 0; v < vectors; ++v)
                    sums[v] = fma(splat(weights[key]), load(values + key * dim + d + v * LANES), sums[v]);
        }
        for (int v = 0; v < vectors; ++v) store(running.values + d + v * LANES, sums[v]);
    }
}

static inline vf capped(vf score, const Attend& op) {
    score *= op.scale;
    return op.softcap != 0.0f ? tangent(score / op.softcap) * op.softcap : score;
}

// Room of one thread.
struct Workspace {
    alignas(64) float keys[KEYS * MAX_DIM];
    alignas(64) float values[KEYS * MAX_DIM];
    alignas(64) float scores[KEYS];
    Running running[MAX_GROUP];
};

template <class Value>
static void attend_piece(const Attend& op, const Step& step, const Piece& piece, Workspace& room) {
    const int64_t group = op.heads / op.kv_heads, first_row = step.first_row[piece.sequence] + piece.first;
    const int64_t position = step.positions[first_row], end = position + piece.tokens;
    const int64_t rows = piece.tokens * group;
    for (int64_t r = 0; r < rows; ++r) room.running[r] = {-__builtin_inff(), 0.0f, {}};
    const int64_t begin = op.window && position >= op.window ? position - op.window + 1 : 0;
    for (int64_t tile = begin / KEYS * KEYS; tile < end; tile += KEYS) {
        const int64_t count = end - tile < KEYS ? end - tile : KEYS;
        gather<Value>(op, step, piece, 0, tile, count, room.keys);
        gather<Value>(op, step, piece, 1, tile, count, room.values);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t last = position + r / group;
            const int64_t least = op.window && last >= op.window ? last - op.window + 1 : 0;
            if (tile > last || tile + KEYS <= least) continue;
            const float* query = op.queries + ((first_row + r / group) * op.heads + piece.head * group + r % group) * op.dim;
            for (int64_t key = 0; key < count; key += LANES)
                store(room.scores + key, capped(scores_of(query, room.keys + key * op.dim, op.dim), op));
            const int64_t seen = last + 1 - tile < count ? last + 1 - tile : count;
            if (weigh(room.scores, tile, least, last, room.running[r], op.dim))
                add_values(room.scores, room.values, seen, room.running[r], op.dim);
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
        float* out = op.out + ((first_row + r / group) * op.heads + piece.head * group + r % group) * op.dim;
        for (int64_t d = 0; d < op.dim; d += LANES)
            store(out + d, load(room.running[r].values + d) / room.running[r].total);
    }
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
