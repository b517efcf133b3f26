// What tests ask of the emulation and of the comparison at load, one thing at a time.
#include "agreement.h"

namespace avx2 {
extern const Isa ISA;
}

namespace {

Kind spoilt_kind;
int32_t spoilt_format;
int64_t spoilt_rows;

// The last value of an operation's output.
float* last_of(const Op& op, int64_t rows) {
    switch (op.kind) {
        case NORM: return op.norm.out + rows * op.norm.width - 1;
        case LINEAR: return op.linear.format == spoilt_format ? op.linear.out + rows * op.linear.columns - 1 : nullptr;
        case ROPE: return op.rope.queries + rows * op.rope.heads * op.rope.dim - 1;
        case ATTEND:
            return op.attend.format == spoilt_format ? op.attend.out + rows * op.attend.heads * op.attend.dim - 1 : nullptr;
        case GATE: return op.gate.out + rows * op.gate.inner - 1;
        default: return nullptr;
    }
}

// AVX2's, but for one value of the spoilt operation's output where it has so many rows.
void spoilt_run(const Op* ops, int64_t count, const Step& step, Team& team) {
    for (int64_t i = 0; i < count; ++i) {
        avx2::ISA.run(ops + i, 1, step, team);
        float* out = ops[i].kind == spoilt_kind && step.rows == spoilt_rows ? last_of(ops[i], step.rows) : nullptr;
        if (out) *out += 0.1f;
    }
}

}  // namespace

extern "C" {

// vdpbf16ps in the first lane. a, b: two bfloat16 each.
float probe_dot(float sum, uint32_t a, uint32_t b) {
    using namespace emulated;
    return as<Floats>(_mm512_dpbf16_ps(as<__m512>(Floats{sum}), as<__m512bh>(Words{a}), as<__m512bh>(Words{b})))[0];
}

// vcvtne2ps2bf16 in the first lane.
uint16_t probe_narrow(float value) {
    using namespace emulated;
    return as<Halves>(_mm512_cvtne2ps_pbh(as<__m512>(Floats{}), as<__m512>(Floats{value})))[0];
}

// Whether AVX2 agrees with itself where an output of one kind of operation, of one format and so many rows, is off.
int32_t probe_agreement(int32_t kind, int32_t format, int64_t rows) {
    spoilt_kind = (Kind)kind;
    spoilt_rows = rows;
    spoilt_format = format;
    Isa spoilt = avx2::ISA;
    spoilt.run = spoilt_run;
    return agree(spoilt, avx2::ISA);
}
}
