// In which order rows and tiles of a product meet. Included within a namespace of its own, after simd.h.
//
// A matrix is packed in tiles of TILE columns, and each tile along `inner`, so that a tile is one stream of memory.

constexpr int TILE = 2 * LANES;

static inline int64_t tiles_of(int64_t columns) { return (columns + TILE - 1) / TILE; }

// Before every loop over a block's accumulators: where one is not unrolled, all of them live in memory, not in registers.
#define UNROLLED _Pragma("GCC unroll 16")
// Before a loop over integer sums: unrolled, they are added up in an order that keeps too many of them waiting.
#define ROLLED _Pragma("GCC unroll 1")
// A block is a function by itself: within a larger one the compiler has no registers left for its accumulators.
#define BLOCK __attribute__((noinline)) static void

// Weights that stay in the second-level cache while rows go by.
constexpr int64_t CACHED_BYTES = 160 << 10;

// The tiles of a product, which threads take off `next` a few at a time: one whose core also does something else takes fewer.
class Claims {
public:
    // unit: tiles that are quicker together, as long as there are enough for all threads.
    Claims(std::atomic<int64_t>& next, int64_t tiles, int threads, int64_t unit) : next_(next), tiles_(tiles) {
        while (unit > 1 && tiles < unit * threads) unit /= 2;
        size_ = tiles / (CLAIMS * threads) / unit * unit;
        if (size_ < unit) size_ = unit;
    }

    // False if there are no more.
    bool take(int64_t& first, int64_t& last) {
        first = next_.fetch_add(size_, std::memory_order_relaxed);
        last = first + size_ < tiles_ ? first + size_ : tiles_;
        return first < tiles_;
    }

private:
    static constexpr int64_t CLAIMS = 8;  // of a thread, about
    std::atomic<int64_t>& next_;
    const int64_t tiles_;
    int64_t size_;
};

// Calls block.operator()<count>(row, tile) for the tiles from `first` to `last`; count: 1 to MOST.
template <int MOST, class Block>
static inline void row_of_blocks(int64_t row, int64_t count, int64_t first, int64_t last, const Block& block) {
    if (count == MOST)
        for (int64_t tile = first; tile < last; ++tile) block.template operator()<MOST>(row, tile);
    else if constexpr (MOST > 1)
        row_of_blocks<MOST - 1>(row, count, first, last, block);
}

// Rows of each block but the last: blocks of about one size, since one of a row or two would wait for its own additions.
static inline int64_t rows_of_block(int64_t rows, int most) {
    const int64_t blocks = (rows + most - 1) / most;
    return blocks ? (rows + blocks - 1) / blocks : 1;
}

// Calls block.operator()<count>(row, tile) so that `rows` rows meet every tile from `first` to `last`. Weights come from
// memory once: a run of tiles meets all rows; a block's rows stay in the first-level cache while the run goes by.
template <int MOST, class Block>
static void each_block(int64_t rows, int64_t tile_bytes, int64_t first, int64_t last, const Block& block) {
    const int64_t run = CACHED_BYTES / tile_bytes + 1, size = rows_of_block(rows, MOST);
    for (int64_t tile = first; tile < last; tile += run)
        for (int64_t row = 0; row < rows; row += size)
            row_of_blocks<MOST>(
                row, rows - row < size ? rows - row : size, tile, tile + run < last ? tile + run : last, block);
}
