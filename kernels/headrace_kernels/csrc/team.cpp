// The team: who waits for whom, and how.
#include "team.h"

#include <immintrin.h>

namespace {

constexpr int SPINS = 20000;  // some 50 us

// Waits until `value` is no longer `old`.
void wait_change(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int spin = 0; spin < SPINS; ++spin) {
        if (value.load(std::memory_order_acquire) != old) return;
        // A thread that shares its core with the one it waits for has to give way.
        if (spin % 256 == 255) std::this_thread::yield();
        _mm_pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

Team::Team(int size) : size_(size) {
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
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_all();
    work(0);
    barrier();
}

void Team::barrier() {
    if (size_ == 1) return;
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
    for (uint32_t round = 0;; ++round) {
        wait_change(started_, round);
        if (closing_.load()) return;
        (*work_)(rank);
        barrier();
    }
}
