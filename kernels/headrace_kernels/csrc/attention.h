// Attention over pages, for decode and for chunks of a prompt alike. Included within a namespace of its own, after
// attention_tile.h and attention_pieces.h.
//
// A query row looks at splits of SPLIT tokens that begin at multiples of SPLIT. Through each it goes in tiles of KEYS
// with a running softmax (Milakov and Gimelshein, arXiv 1805.02867) that starts anew, and the splits are merged in order
// (Flash-Decoding). What it sees and the order in which it adds depend on its own position alone, so its bits are the
// same whatever rows it is computed with, and whether its splits are one thread's or several threads'.

constexpr int FEW = 8;  // rows that are quicker with pages as they are

// The running softmax of a query row, as floats: the largest score in each lane, the sum of weights by lanes, and the
// weighted sum of values.
constexpr int STATE = 2 * LANES;
static inline int64_t state_size(int64_t dim) { return STATE + dim; }

static void reset(float* states, int64_t rows, int64_t dim) {
    for (; rows; --rows, states += state_size(dim)) {
        store(states, splat(-__builtin_inff()));
        for (int64_t d = LANES; d < state_size(dim); d += LANES) store(states + d, vf{});
    }
}

// What scores are held against: their largest, or 0 where there is none yet, so that e^-inf comes out as 0.
static inline vf basis(vf most) { return select(most == -__builtin_inff(), vf{}, most); }

// into += from. A state that saw nothing changes no number.
static __attribute__((noinline)) void merge(float* into, const float* from, int64_t rows, int64_t dim) {
    for (; rows; --rows, into += state_size(dim), from += state_size(dim)) {
        const vf most = larger(load(into), load(from)), base = basis(most);
        const vf mine = exponential(load(into) - base), other = exponential(load(from) - base);
        store(into, most);
        for (int64_t d = LANES; d < state_size(dim); d += LANES)
            store(into + d, fma(load(into + d), mine, load(from + d) * other));
    }
}

// Room of one thread.
constexpr int MAX_ROWS = QUERY_ROWS > MAX_GROUP ? QUERY_ROWS : MAX_GROUP;
struct Workspace {
    alignas(64) float keys[MAX_DIM * KEYS];
    alignas(64) float values[KEYS * MAX_DIM];
    alignas(64) float weights[MAX_ROWS * KEYS];
    alignas(64) float shrinks[(MAX_ROWS + LANES - 1) / LANES * LANES];
    alignas(64) float queries[MAX_ROWS * MAX_DIM];
    alignas(64) float part[MAX_ROWS * (STATE + MAX_DIM)];   // of the split at hand
    alignas(64) float whole[MAX_ROWS * (STATE + MAX_DIM)];  // of all before it
};

// Where the keys of `count` tokens from `from` on stand, and the last again up to KEYS. Their values stand block_tokens x
// dim further.
template <class Value>
static void find_keys(
    const Attend& op, const Step& step, const Piece& piece, int64_t from, int64_t count, const Value** at) {
    const int64_t head_values = 2 * op.block_tokens * op.dim;
    const auto* pages = static_cast<const Value*>(op.pages) + piece.head * head_values;
    const int32_t* block = step.table + piece.sequence * step.table_stride + from / op.block_tokens;
    int64_t place = from % op.block_tokens, token = 0;
    for (; token < count; ++block, place = 0) {
        const Value* page = pages + *block * op.kv_heads * head_values;
        for (; place < op.block_tokens && token < count; ++place) at[token++] = page + place * op.dim;
    }
    for (; token < KEYS; ++token) at[token] = at[token - 1];
}

static inline vf capped(vf score, float softcap) {
    return softcap != 0.0f ? tangent(score / softcap) * softcap : score;
}

template <int HALF, int... LANE>
static inline vf larger_half(vf value, std::integer_sequence<int, LANE...>) {
    return larger(value, __builtin_shufflevector(value, value, (LANE ^ HALF)...));
}

// The largest lane, in every lane.
static inline vf peak(vf value) {
    constexpr std::make_integer_sequence<int, LANES> lanes;
#if LANES == 16
    value = larger_half<8>(value, lanes);
#endif
    return larger_half<1>(larger_half<2>(larger_half<4>(value, lanes), lanes), lanes);
}

// Caps a row's scores of one tile, and takes out those of tokens outside least .. last. Never inlined, as those below, so
// that all rows go through the same instructions.
static __attribute__((noinline)) void screen(const Attend& op, float* scores, int64_t tile, int64_t least, int64_t last) {
    for (int v = 0; v < KEYS; v += LANES) {
        const vi place = LANE_NUMBERS + (int32_t)(tile + v);
        const vi seen = (place <= (int32_t)last) & (place >= (int32_t)least);
        store(scores + v, select(seen, capped(load(scores + v), op.softcap), splat(-__builtin_inff())));
    }
}

// The largest score so far, into the row's state. Returns how far it was below: what weights so far shrink by is its
// exponential.
static __attribute__((noinline)) float raise(const float* scores, float* state) {
    vf most = splat(-__builtin_inff());
    UNROLLED
    for (int v = 0; v < KEYS; v += LANES) most = larger(load(scores + v), most);
    const vf before = load(state), now = larger(peak(most), before);
    store(state, now);
    return (before - basis(now))[0];
}

// Weights of one tile for one row, in place of its scores.
static __attribute__((noinline)) void weigh(float* scores, float shrink, float* state) {
    const vf base = basis(load(state));
    vf total = {};
    UNROLLED
    for (int v = 0; v < KEYS; v += LANES) {
        const vf weight = exponential(load(scores + v) - base);
        store(scores + v, weight);
        total += weight;
    }
    store(state + LANES, load(state + LANES) * shrink + total);
}

// Calls with(MOST, row) for MOST rows from each `row` on while there are as many, and then for what is left.
template <int MOST, class With>
static inline void by_rows(int64_t row, int64_t rows, const With& with) {
    for (; row + MOST <= rows; row += MOST) with(std::integral_constant<int, MOST>(), row);
    if constexpr (MOST > 1) by_rows<MOST / 2>(row, rows, with);
}

// Values of queries, or of what is computed from them, that stand before those of a piece's row.
static inline int64_t values_before(const Attend& op, const Step& step, const Piece& piece, int64_t row) {
    const int64_t group = op.heads / op.kv_heads, token = step.first_row[piece.sequence] + piece.first + row / group;
    return (token * op.heads + piece.head * group + row % group) * op.dim;
}

template <class Value>
static void finish(const Attend& op, const Step& step, const Piece& piece, const float* states) {
    for (int64_t r = 0; r < piece.tokens * (op.heads / op.kv_heads); ++r, states += state_size(op.dim))
        restore<Value>(states + STATE, op.dim, sum(load(states + LANES)), op.out + values_before(op, step, piece, r));
}

// One piece, as it goes through its tiles.
template <class Value>
class Passage {
public:
    Passage(const Attend& op, const Step& step, const Piece& piece, Workspace& room)
        : op_(op), step_(step), piece_(piece), room_(room), group_(op.heads / op.kv_heads), rows_(piece.tokens * group_),
          position_(step.positions[step.first_row[piece.sequence] + piece.first]), few_(rows_ <= FEW) {
        for (int64_t r = 0; r < rows_; ++r) {
            float* query = few_ ? room.queries + r * op.dim : room.values;
            arrange<Value>(op.queries + values_before(op, step, piece, r), op.dim, op.scale, query);
            if (!few_) gather_query(query, op.dim, room.queries + r * op.dim);
        }
    }

    // The piece's tokens from `split` on, up to the next.
    void attend(int64_t split, float* states) {
        const int64_t end = split + SPLIT < piece_.to ? split + SPLIT : piece_.to;
        const int64_t begin = (split > piece_.from ? split : piece_.from) / KEYS * KEYS;
        reset(states, rows_, op_.dim);
        const Value* at[2][KEYS];
        int turn = 0;
        find_keys(op_, step_, piece_, begin, least(end - begin), at[turn]);
        for (int64_t token = 0; few_ && token < least(end - begin); ++token) {
            prefetch(at[turn][token], op_.dim);
            prefetch(at[turn][token] + op_.block_tokens * op_.dim, op_.dim);
        }
        for (int64_t tile = begin; tile < end; tile += KEYS, turn = 1 - turn) {
            const bool more = tile + KEYS < end;
            if (more) find_keys(op_, step_, piece_, tile + KEYS, least(end - tile - KEYS), at[1 - turn]);
            pass(tile, least(end - tile), at[turn], more ? at[1 - turn] : nullptr, states);
        }
    }

    void all() {
        reset(room_.whole, rows_, op_.dim);
        for (int64_t split = piece_.from / SPLIT * SPLIT; split < piece_.to; split += SPLIT) {
            attend(split, room_.part);
            merge(room_.whole, room_.part, rows_, op_.dim);
        }
        finish<Value>(op_, step_, piece_, room_.whole);
    }

private:
    static int64_t least(int64_t count) { return count < KEYS ? count : KEYS; }

    void pass(int64_t tile, int64_t count, const Value* const* at, const Value* const* ahead, float* states) {
        const int64_t dim = op_.dim, offset = op_.block_tokens * dim, size = state_size(dim);
        // Rows before `skip` stand before this tile and see none of it.
        const int64_t skip = tile > position_ ? (tile - position_) * group_ : 0;
        float *queries = room_.queries, *weights = room_.weights;
        if (few_)
            by_rows<3>(skip, rows_, [&](auto rows, int64_t r) {
                score_pages<rows()>(queries + r * dim, at, r ? nullptr : ahead, count, dim, weights + r * KEYS);
            });
        else {
            gather_keys(at, count, dim, room_.keys);
            gather_values(at, offset, count, dim, room_.values);
            by_rows<6>(skip, rows_, [&](auto rows, int64_t r) {
                score_matrix<rows()>(queries + r * dim, room_.keys, count, dim, weights + r * KEYS);
            });
        }
        weigh_rows(tile, skip, states);
        float* sums = states + STATE;
        if (few_)
            by_rows<3>(skip, rows_, [&](auto rows, int64_t r) {
                add_pages<rows()>(weights + r * KEYS, at, r ? nullptr : ahead, offset, count, dim, sums + r * size, size);
            });
        else
            by_rows<6>(skip, rows_, [&](auto rows, int64_t r) {
                add_matrix<rows()>(weights + r * KEYS, room_.shrinks + r, room_.values, count, dim, sums + r * size, size);
            });
    }

    void weigh_rows(int64_t tile, int64_t skip, float* states) {
        float *weights = room_.weights, *shrinks = room_.shrinks;
        const int64_t size = state_size(op_.dim);
        for (int64_t r = skip; r < rows_; ++r) {
            const int64_t last = position_ + r / group_, least = first_seen(op_, last);
            const bool all = least <= tile && tile + KEYS - 1 <= last;
            if (!all || op_.softcap != 0.0f) screen(op_, weights + r * KEYS, tile, least, last);
            shrinks[r] = raise(weights + r * KEYS, states + r * size);
        }
        for (int64_t r = skip / LANES * LANES; r < rows_; r += LANES) store(shrinks + r, exponential(load(shrinks + r)));
        for (int64_t r = skip; r < rows_; ++r) {
            weigh(weights + r * KEYS, shrinks[r], states + r * size);
            if (few_ && shrinks[r] != 1.0f)
                for (int64_t d = STATE; d < size; d += LANES)
                    store(states + r * size + d, load(states + r * size + d) * shrinks[r]);
        }
    }

    const Attend& op_;
    const Step& step_;
    const Piece& piece_;
    Workspace& room_;
    const int64_t group_, rows_, position_;
    const bool few_;
};

// Floats that `attend` wants for the states of splits.
static int64_t split_floats(const Attend& op, const Step& step) {
    int64_t pieces = 0;
    bool any = false;
    for (int64_t s = 0; s < step.sequences; ++s) {
        const Cut cut(op, step, s);
        pieces += cut.pieces;
        any |= cut.splits > 1;
    }
    return any ? pieces * op.heads / op.kv_heads * state_size(op.dim) : 0;
}

// Merges the splits of sequences whose turn is `rank`.
template <class Value>
static void merge_splits(const Attend& op, const Step& step, const float* states, int rank, int threads, Workspace& room) {
    const int64_t group = op.heads / op.kv_heads, size = group * state_size(op.dim);
    for (int64_t s = 0, turn = 0; s < step.sequences; ++s) {
        const Cut cut(op, step, s);
        for (int64_t head = 0; cut.splits > 1 && head < op.kv_heads; ++head, ++turn) {
            if (turn % threads != rank) continue;
            reset(room.whole, group, op.dim);
            for (int64_t split = 0; split < cut.splits; ++split)
                merge(room.whole, states + (split * op.kv_heads + head) * size, group, op.dim);
            finish<Value>(op, step, {s, head, 0, 1, 0, 0}, room.whole);
        }
        states += cut.pieces * size;
    }
}

// Takes pieces off `next` until there are none.
template <class Value>
static void attend_pieces(const Attend& op, const Step& step, std::atomic<int64_t>& next, float* states, Workspace& room) {
    Pieces pieces(op, step);
    Piece piece;
    for (int64_t index; pieces.find(index = next.fetch_add(1), piece);) {
        Passage<Value> passage(op, step, piece, room);
        if (Cut(op, step, piece.sequence).splits > 1)
            passage.attend(piece.from / SPLIT * SPLIT, states + index * (op.heads / op.kv_heads) * state_size(op.dim));
        else
            passage.all();
    }
}

// states: split_floats of them.
template <class Value>
static void attend_as(
    const Attend& op, const Step& step, std::atomic<int64_t>& next, float* states, Workspace& room, int rank, Team& team) {
    attend_pieces<Value>(op, step, next, states, room);
    if (!split_floats(op, step)) return;
    team.barrier();
    merge_splits<Value>(op, step, states, rank, team.size(), room);
}

static void attend(
    const Attend& op, const Step& step, std::atomic<int64_t>& next, float* states, Workspace& room, int rank, Team& team) {
    if (op.format == BF16)
        attend_as<uint16_t>(op, step, next, states, room, rank, team);
    else
        attend_as<float>(op, step, next, states, room, rank, team);
}
