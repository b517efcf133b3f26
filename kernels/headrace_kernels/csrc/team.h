// The team: threads that run one function together and meet at barriers.
//
// Its threads spin for a moment and then sleep, so that an idle team costs nothing. One that waits for long looks once
// where the others run, and gives way now and then.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

class Team {
public:
    explicit Team(int size);
    ~Team();
    int size() const { return size_; }
    // Calls work(rank) on every thread, rank 0 on the caller's, and returns when all are done.
    void run(const std::function<void(int)>& work);
    // Within `work`: waits for every other thread of the team.
    void barrier();
    // `count` floats that outlive a run, of what values whatever; the same until more are asked for. Not within `work`.
    float* room(int64_t count);

private:
    void serve(int rank);
    void wait_change(const std::atomic<uint32_t>& value, uint32_t old);
    // Leaves a processor that another thread of the team is on, if this one may run where none is: two that share one
    // take turns there, and schedulers were seen to leave them so.
    void part();
    // Notes where this thread is.
    void stand();

    const int size_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<uint32_t> started_{0};
    std::atomic<int> arrived_{0};
    std::atomic<uint32_t> passed_{0};
    std::atomic<bool> closing_{false};
    // Of each thread, the processor it was on when it last began or came to a barrier, or -1.
    std::vector<std::atomic<int>> at_;
    std::vector<std::thread> threads_;
    std::vector<float> room_;
};
