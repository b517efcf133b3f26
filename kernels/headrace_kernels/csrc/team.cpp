// The team: who waits for whom, and how.
#include "team.h"

#include <immintrin.h>

#include <cstring>
#ifdef __linux__
#include <sched.h>
#endif

namespace {

constexpr int SPINS = 20000;  // some 0.6 ms: 30 ns each on Zen 3
constexpr int SHORT = 256;

// In the team that this thread serves; who calls run is 0.
thread_local int own_rank = 0;
// Where a thread cannot be moved, or is not told where it is, it does not try again.
thread_local bool stays = false;

// On which processor this thread is, or -1.
int processor() {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

}  // namespace

// Waits until `value` is no longer `old`.
void Team::wait_change(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int spin = 0; spin < SPINS; ++spin) {
        if (value.load(std::memory_order_acquire) != old) return;
        if (spin == SHORT) part();
        // A thread that shares its core with the one it waits for has to give way.
        if (spin % SHORT == SHORT - 1) std::this_thread::yield();
        _mm_pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void Team::part() {
#ifdef __linux__
    const int here = processor();
    bool shared = false;
    for (int other = 0; other < size_; ++other) shared |= other != own_rank && at_[other] == here;
    if (!shared || stays) return;
    cpu_set_t allowed, free, all, now;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    free = allowed;
    for (int other = 0; other < size_; ++other)
        if (other != own_rank && at_[other] >= 0) CPU_CLR(at_[other], &free);
    if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free)) return;
    stand();
    stays = processor() == here;
    // By way of "all", which the kernel cuts to what the process may have: a mask that names processors would be kept when
    // that changes. Where the thread had a mask of its own, it gets that again.
    std::memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(0, sizeof all, &all) || sched_getaffinity(0, sizeof now, &now) || !CPU_EQUAL(&now, &allowed))
        sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

void Team::stand() {
    const int here = processor();
    if (at_[own_rank].load(std::memory_order_relaxed) != here) at_[own_rank].store(here, std::memory_order_relaxed);
}

Team::Team(int size) : size_(size), at_(size) {
    for (auto& at : at_) at = -1;
    for (int rank = 1; rank < size; ++rank) threads_.emplace_back([this, rank] { serve(rank); });
}

Team::~Team() {
    closing_.store(true);
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    work_ = &work;
    stand();
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_all();
    work(0);
    barrier();
}

void Team::barrier() {
    if (size_ == 1) return;
    stand();
    const uint32_t round = passed_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        arrived_.store(0, std::memory_order_relaxed);
        passed_.fetch_add(1, std::memory_order_release);
        passed_.notify_all();
    } else {
        wait_change(passed_, round);
    }
}

float* Team::room(int64_t count) {
    if (count > (int64_t)room_.size()) room_ = std::vector<float>(count);
    return room_.data();
}

void Team::serve(int rank) {
    own_rank = rank;
    for (uint32_t round = 0;; ++round) {
        wait_change(started_, round);
        if (closing_.load()) return;
        stand();
        (*work_)(rank);
        barrier();
    }
}
