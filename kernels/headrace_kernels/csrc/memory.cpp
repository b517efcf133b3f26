#include "memory.h"

namespace {

// One thread's loads from a single place in memory wait for each other more than those from several.
constexpr int64_t STREAMS = 8, LINE = 8;

}  // namespace

uint64_t sum_words(const uint64_t* words, int64_t count) {
    const int64_t length = count / STREAMS / LINE * LINE;
    uint64_t sums[STREAMS] = {};
    for (int64_t i = 0; i < length; i += LINE)
        for (int64_t stream = 0; stream < STREAMS; ++stream)
            for (int64_t word = 0; word < LINE; ++word) sums[stream] += words[stream * length + i + word];
    uint64_t total = 0;
    for (const uint64_t sum : sums) total += sum;
    for (int64_t i = STREAMS * length; i < count; ++i) total += words[i];
    return total;
}
