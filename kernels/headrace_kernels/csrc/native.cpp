// The C interface: picks the best instruction set that this processor has, and keeps the team of threads.
#include <memory>
#include <mutex>

#include "agreement.h"

namespace avx2 {
extern const Isa ISA;
}
namespace avx512 {
extern const Isa ISA;
}

namespace {

const Isa* pick() {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
        return nullptr;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    // The wide one was written where it could not be run: it has to prove itself against the other.
    return wide && agree(avx512::ISA, avx2::ISA) ? &avx512::ISA : &avx2::ISA;
}

const Isa* const isa = pick();
// The team runs one function at a time: engines of one process take turns.
std::mutex turns;
std::unique_ptr<Team> team;

}  // namespace

const char* headrace_isa() { return isa ? isa->name : nullptr; }

int32_t headrace_lanes() { return isa->lanes; }

int64_t headrace_packed_bytes(int32_t format, int64_t columns, int64_t inner) {
    return isa->packed_bytes(format, columns, inner);
}

void headrace_pack(int32_t format, const float* weights, int64_t columns, int64_t inner, void* packed) {
    isa->pack(format, weights, columns, inner, packed);
}

void headrace_pack_codes(
    const uint8_t* codes, const float* scales, const float* minima, int64_t columns, int64_t inner, void* packed) {
    isa->pack_codes(codes, scales, minima, columns, inner, packed);
}

int64_t headrace_scratch(int32_t format, int64_t rows, int64_t inner) { return isa->scratch_bytes(format, rows, inner); }

void headrace_run(const Op* ops, int64_t count, const Step* step, int32_t threads) {
    const std::lock_guard<std::mutex> turn(turns);
    if (!team || team->size() != threads) team = std::make_unique<Team>(threads);
    isa->run(ops, count, *step, *team);
}
