// One instruction set's operations. Included by isa_*.cpp, which choose NAMESPACE, LANES and the compiler's target.

namespace NAMESPACE {

#include "simd.h"
static inline float widen_one(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
#include "tiling.h"
#include "linear.h"
#ifdef HALF_DOT
#include "half_dot.h"
#else
#include "half_widened.h"
#endif
#include "integer.h"
#include "byte_groups.h"
#include "wide_nibbles.h"
#include "unpacked.h"
#include "attention_tile.h"
#include "attention_pieces.h"
#include "attention.h"
#include "pointwise.h"

static int64_t packed_bytes(int32_t format, int64_t columns, int64_t inner) {
    const int64_t tiles = tiles_of(columns);
    switch (format) {
        case F32: return tiles * TILE * inner * 4;
        case BF16: return half_packed_bytes(columns, inner);
        case INT8: return inner % GROUP ? 0 : tiles * ByteFormat::tile_bytes(inner);
        case INT8_GROUPS: return inner % GROUP ? 0 : tiles * ByteGroupFormat::tile_bytes(inner);
        default: return inner % GROUP ? 0 : tiles * NibbleFormat::tile_bytes(inner);
    }
}

static void pack(int32_t format, const float* weights, int64_t columns, int64_t inner, void* packed) {
    switch (format) {
        case F32: return pack_floats(weights, columns, inner, static_cast<float*>(packed));
        case BF16: return half_pack(weights, columns, inner, packed);
        case INT8: return pack_bytes(weights, columns, inner, static_cast<uint8_t*>(packed));
        case INT8_GROUPS: return pack_byte_groups(weights, columns, inner, static_cast<uint8_t*>(packed));
        default: return pack_nibbles(weights, columns, inner, static_cast<uint8_t*>(packed));
    }
}

#include "stored.h"

static int64_t scratch_bytes(int32_t format, int64_t rows, int64_t inner) {
    if (format == BF16) return half_scratch_bytes(rows, inner);
    return format == F32 ? 0 : rows * quantised_bytes(inner);
}

// What the threads of one run share. next: what of an operation is to be taken next; an operation and the one after it
// have one each.
struct Shared {
    Team& team;
    struct alignas(64) Counter {
        std::atomic<int64_t> value;
    } next[2];
    float* states;  // of attention's splits
};

static void linear(const Linear& op, int64_t rows, std::atomic<int64_t>& next, int rank, Team& team) {
    const Output out = {op.out, op.bias, op.columns, op.add != 0};
    const int threads = team.size();
    if (op.format == F32) return float_linear<FloatFormat>(op.in, rows, op.inner, op.weights, out, next, threads);
    if (op.format == BF16) return half_linear(op, rows, out, next, rank, team);
    for (int64_t row = rows * rank / threads; row < rows * (rank + 1) / threads; ++row)
        quantise_row(op.in + row * op.inner, op.inner, quantised(op.scratch, row, op.inner));
    team.barrier();
    const Claims claims(next, tiles_of(op.columns), threads, 1);
    if (op.format == INT8) return integer_linear<ByteFormat>(op.scratch, rows, op.inner, op.weights, out, claims);
    if (op.format == INT8_GROUPS)
        return integer_linear<ByteGroupFormat>(op.scratch, rows, op.inner, op.weights, out, claims);
    if (widens(rows, op.inner)) return wide_linear(op.scratch, rows, op.inner, op.weights, out, claims);
    integer_linear<NibbleFormat>(op.scratch, rows, op.inner, op.weights, out, claims);
}

static void head(const Head& op, const Step& step, std::atomic<int64_t>& next, int rank, Team& team) {
    const int64_t count = step.head_count;
    for (int64_t i = count * rank / team.size(); i < count * (rank + 1) / team.size(); ++i)
        norm_row(op.hidden + step.head_rows[i] * op.width, op.norm, op.normed + i * op.width, op.width, op.eps, false);
    team.barrier();
    const Linear product = {op.normed, op.weights, nullptr, step.logits, op.scratch, op.vocabulary, op.width, op.format, 0};
    linear(product, count, next, rank, team);
    if (op.softcap == 0.0f) return;
    team.barrier();
    const int64_t values = count * op.vocabulary;
    for (int64_t i = values * rank / team.size(); i < values * (rank + 1) / team.size(); ++i)
        step.logits[i] = tangent(splat(step.logits[i] / op.softcap))[0] * op.softcap;
}

static void run_op(const Op& op, const Step& step, int rank, Shared& shared, int turn, Workspace& room) {
    Team& team = shared.team;
    std::atomic<int64_t>& next = shared.next[turn].value;
    // The counter of the operation before this one is free by now: a barrier lies between.
    if (rank == 0) shared.next[1 - turn].value.store(0);
    const int64_t first = step.rows * rank / team.size(), last = step.rows * (rank + 1) / team.size();
    switch (op.kind) {
        case EMBED:
            for (int64_t row = first; row < last; ++row) embed_row(op.embed, step, row);
            break;
        case NORM: {
            const Norm& norm = op.norm;
            for (int64_t row = first * norm.width; row < last * norm.width; row += norm.width)
                norm_row(norm.in + row, norm.weight, norm.out + row, norm.width, norm.eps, norm.add != 0);
            break;
        }
        case LINEAR: linear(op.linear, step.rows, next, rank, team); break;
        case ROPE:
            for (int64_t row = first; row < last; ++row) rope_row(op.rope, step, row);
            break;
        case ATTEND:
            attend(op.attend, step, next, shared.states, room, rank, team);
            break;
        case GATE:
            for (int64_t row = first; row < last; ++row) gate_row(op.gate, row);
            break;
        case HEAD: head(op.head, step, next, rank, team); break;
    }
}

static void run(const Op* ops, int64_t count, const Step& step, Team& team) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t floats = ops[i].kind == ATTEND ? split_floats(ops[i].attend, step) : 0;
        if (floats > most) most = floats;
    }
    Shared shared = {team, {}, team.room(most)};
    team.run([&](int rank) {
        static thread_local Workspace room;
        for (int64_t i = 0; i < count; ++i) {
            if (i) team.barrier();
            run_op(ops[i], step, rank, shared, (int)(i % 2), room);
        }
    });
}

extern const Isa ISA = {NAME, LANES, packed_bytes, pack, pack_rows, scratch_bytes, run};

}  // namespace NAMESPACE
