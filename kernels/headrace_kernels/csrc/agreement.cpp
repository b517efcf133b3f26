#include "agreement.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace {

// Blocks of each number of rows are functions of their own, and so are several tiles at once: columns are
// five tiles of 32 and nine of 16, the last one in part.
constexpr int ROWS = 19, FEW_ROWS[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, ROWS}, COLUMNS = 144 - 7, INNER = 64;
// A head is a pair of vectors and a single one on 16 lanes; a context is two of attention's splits.
constexpr int HEADS = 2, DIM = 48, BLOCK = 16, BLOCKS = 19, CONTEXT = BLOCKS * BLOCK - 3, STATES = (HEADS + 2) * DIM;

using Floats = std::vector<float>;

// The same numbers at every call, between -2 and 2.
Floats numbers(size_t count, uint32_t seed) {
    Floats values(count);
    for (float& value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = (float)(seed >> 8) / 4194304.0f - 2.0f;
    }
    return values;
}

// The same without the lower half of their bits: bfloat16 holds them.
Floats halved(Floats values) {
    for (float& value : values) {
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        bits &= 0xffff0000u;
        std::memcpy(&value, &bits, 4);
    }
    return values;
}

// Products with BF16 round activations to it or do not, so these are rounded beforehand.
Floats product(const Isa& isa, Team& team, Format format, int count) {
    const Floats given = numbers(ROWS * INNER, 1), rows = format == BF16 ? halved(given) : given;
    const Floats weights = numbers(COLUMNS * INNER, 2), bias = numbers(COLUMNS, 3);
    std::vector<char> memory(isa.packed_bytes(format, COLUMNS, INNER) + 64), room(isa.scratch_bytes(format, ROWS, INNER));
    void* packed = (void*)(((uintptr_t)memory.data() + 63) / 64 * 64);
    isa.pack(format, weights.data(), COLUMNS, INNER, packed);
    Floats out(count * COLUMNS);
    Op op = {LINEAR, {}};
    op.linear = {rows.data(), packed, bias.data(), out.data(), room.data(), COLUMNS, INNER, format, 0};
    Step step = {};
    step.rows = count;
    isa.run(&op, 1, step, team);
    return out;
}

Floats pointwise(const Isa& isa, Team& team) {
    const Floats in = numbers(ROWS * 2 * INNER, 6), weight = numbers(INNER, 7);
    Floats out(2 * ROWS * INNER);
    Op ops[2] = {{NORM, {}}, {GATE, {}}};
    ops[0].norm = {in.data(), weight.data(), out.data(), INNER, 1e-5f, 0};
    ops[1].gate = {in.data(), out.data() + ROWS * INNER, INNER, GELU_TANH};
    Step step = {};
    step.rows = ROWS;
    isa.run(ops, 2, step, team);
    return out;
}

// A prompt of CONTEXT tokens within a window, then one row at its end that sees them all.
Floats attention(const Isa& isa, Team& team, Format format) {
    const Floats states = numbers(CONTEXT * STATES, 4), turns = numbers(CONTEXT * DIM, 5);
    std::vector<int32_t> positions(CONTEXT), table(BLOCKS);
    std::vector<int64_t> slots(CONTEXT);
    for (int block = 0; block < BLOCKS; ++block) table[block] = BLOCKS - 1 - block;
    for (int row = 0; row < CONTEXT; ++row) {
        positions[row] = row;
        slots[row] = table[row / BLOCK] * BLOCK + row % BLOCK;
    }
    const int32_t first = 0, all = CONTEXT, one = 1;
    Floats queries(CONTEXT * HEADS * DIM), out((CONTEXT + 1) * HEADS * DIM), pages(BLOCKS * 2 * BLOCK * DIM);
    Op ops[2] = {{ROPE, {}}, {ATTEND, {}}};
    ops[0].rope = {states.data(), nullptr, turns.data(), turns.data(), queries.data(), pages.data(), HEADS, 1, DIM, DIM,
                   BLOCK, 0.0f, format};
    ops[1].attend = {queries.data(), pages.data(), out.data(), HEADS, 1, DIM, BLOCK, 7, 0.3f, 5.0f, format};
    Step step = {nullptr, positions.data(), slots.data(), &first, &all, table.data(), nullptr, nullptr, CONTEXT, 1, BLOCKS, 0};
    isa.run(ops, 2, step, team);
    ops[1].attend.queries += (CONTEXT - 1) * HEADS * DIM;
    ops[1].attend.out += CONTEXT * HEADS * DIM;
    ops[1].attend.window = 0;
    step.positions += CONTEXT - 1;
    step.seq_rows = &one;
    step.rows = 1;
    isa.run(ops + 1, 1, step, team);
    return out;
}

bool near(const Floats& one, const Floats& other, float most) {
    for (size_t i = 0; i < one.size(); ++i)
        if (!(std::fabs(one[i] - other[i]) <= most)) return false;
    return true;
}

}  // namespace

bool agree(const Isa& one, const Isa& other) {
    Team team(1);
    for (Format format : {F32, BF16, INT8, INT4, INT8_GROUPS})
        for (int rows : FEW_ROWS)
            if (!near(product(one, team, format, rows), product(other, team, format, rows), 1e-3f)) return false;
    if (!near(pointwise(one, team), pointwise(other, team), 1e-4f)) return false;
    // A last bit may tip the rounding of a key to bfloat16.
    return near(attention(one, team, F32), attention(other, team, F32), 1e-4f)
        && near(attention(one, team, BF16), attention(other, team, BF16), 2e-2f);
}
