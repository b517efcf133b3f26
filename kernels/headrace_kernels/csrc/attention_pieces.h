// How a step's attention is cut into pieces of work for threads. Included within a namespace of its own.

constexpr int SPLIT = 256;
constexpr int QUERY_ROWS = 96;  // query rows (tokens x heads of a group) of one piece of work, if a group is no more
constexpr int MAX_GROUP = 64;   // query heads of a kv head

// The query rows of one piece: tokens first .. first + tokens of sequence `sequence`, all heads of kv head `head`; and
// what of the context it looks at, from `from` to before `to`.
struct Piece {
    int64_t sequence, head, first, tokens, from, to;
};

// First position that a query at `position` sees.
static inline int64_t first_seen(const Attend& op, int64_t position) {
    return op.window && position >= op.window ? position - op.window + 1 : 0;
}

// How a sequence's work is cut. A single row of a long context, decode, has its splits as pieces; more rows are pieces
// of some tokens each.
struct Cut {
    int64_t size, groups, first_split, splits, pieces;

    Cut(const Attend& op, const Step& step, int64_t sequence) {
        const int64_t group = op.heads / op.kv_heads, rows = step.seq_rows[sequence];
        const int64_t position = rows ? step.positions[step.first_row[sequence]] : 0;
        const int64_t most = group < QUERY_ROWS ? QUERY_ROWS / group : 1;
        groups = (rows + most - 1) / most;
        size = groups ? (rows + groups - 1) / groups : 1;
        first_split = first_seen(op, position) / SPLIT;
        splits = rows == 1 ? position / SPLIT + 1 - first_split : 1;
        pieces = groups * splits * op.kv_heads;
    }
};

// The pieces of a step by their number, which must not fall from call to call. A sequence's later pieces are the larger
// ones, so they come first.
class Pieces {
public:
    Pieces(const Attend& op, const Step& step) : op_(op), step_(step) {}

    // False if there are no more.
    bool find(int64_t index, Piece& piece) {
        while (sequence_ < step_.sequences) {
            const Cut cut(op_, step_, sequence_);
            if (index - before_ < cut.pieces) {
                piece = at(cut, index - before_);
                return true;
            }
            before_ += cut.pieces;
            ++sequence_;
        }
        return false;
    }

private:
    Piece at(const Cut& cut, int64_t index) const {
        const int64_t head = index % op_.kv_heads;
        index /= op_.kv_heads;
        const int64_t start = step_.positions[step_.first_row[sequence_]], rows = step_.seq_rows[sequence_];
        if (cut.splits > 1) {
            const int64_t split = (cut.first_split + index) * SPLIT, next = split + SPLIT, seen = first_seen(op_, start);
            return {sequence_, head, 0, 1, split > seen ? split : seen, next <= start ? next : start + 1};
        }
        const int64_t first = (cut.groups - 1 - index) * cut.size;
        const int64_t tokens = rows - first < cut.size ? rows - first : cut.size;
        return {sequence_, head, first, tokens, first_seen(op_, start + first), start + first + tokens};
    }

    const Attend& op_;
    const Step& step_;
    int64_t sequence_ = 0, before_ = 0;
};
