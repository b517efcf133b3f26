// The C interface: hands everything to the instruction set that was picked, and keeps the team of threads.
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.h"
#include "pick.h"

namespace {

std::string refused;
const Isa* isa = pick(nullptr, refused);
bool packed_any = false;
// The team runs one function at a time: engines of one process take turns.
std::mutex turns;
std::unique_ptr<Team> team;

// Called by whose turn it is.
Team& team_of(int32_t threads) {
    if (!team || team->size() != threads) team = std::make_unique<Team>(threads);
    return *team;
}

}  // namespace

const char* headrace_isa() { return isa ? isa->name : nullptr; }

const char* headrace_refused() {
    static thread_local std::string said;
    const std::lock_guard<std::mutex> turn(turns);
    said = refused;
    return said.c_str();
}

int32_t headrace_choose(const char* key) {
    const std::lock_guard<std::mutex> turn(turns);
    std::string passed_over;
    const Isa* chosen = pick(key, passed_over);
    if (!chosen) return passed_over.empty() ? 1 : 2;
    if (packed_any && chosen != isa) return 3;
    isa = chosen;
    refused = passed_over;
    return 0;
}

int32_t headrace_lanes() { return isa->lanes; }

int64_t headrace_packed_bytes(int32_t format, int64_t columns, int64_t inner) {
    return isa->packed_bytes(format, columns, inner);
}

void headrace_pack(
    int32_t format, const uint8_t* const* rows, const int32_t* stored, int64_t columns, int64_t inner, void* packed,
    int32_t threads) {
    const std::lock_guard<std::mutex> turn(turns);
    packed_any = true;
    team_of(threads).run([&](int rank) {
        std::vector<float> tile(isa->packed_bytes(F32, 1, inner) / sizeof(float));
        isa->pack_rows(format, rows, stored, columns, inner, packed, tile.data(), rank, threads);
    });
}

int64_t headrace_scratch(int32_t format, int64_t rows, int64_t inner) { return isa->scratch_bytes(format, rows, inner); }

void headrace_run(const Op* ops, int64_t count, const Step* step, int32_t threads) {
    const std::lock_guard<std::mutex> turn(turns);
    isa->run(ops, count, *step, team_of(threads));
}

void headrace_run_timed(const Op* ops, int64_t count, const Step* step, int32_t threads, int64_t* nanoseconds) {
    const std::lock_guard<std::mutex> turn(turns);
    Team& workers = team_of(threads);
    for (int64_t i = 0; i < count; ++i) {
        const auto began = std::chrono::steady_clock::now();
        isa->run(ops + i, 1, *step, workers);
        const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
        nanoseconds[ops[i].kind] += took.count();
    }
}

uint64_t headrace_read(const void* from, int64_t bytes, int32_t threads) {
    const std::lock_guard<std::mutex> turn(turns);
    const auto* words = static_cast<const uint64_t*>(from);
    const int64_t count = bytes / 8;
    std::atomic<uint64_t> total{0};
    team_of(threads).run([&](int rank) {
        const int64_t first = count * rank / threads;
        total += sum_words(words + first, count * (rank + 1) / threads - first);
    });
    return total;
}
