#include "page_copy.h"

#include <algorithm>
#include <cstring>
#if defined(__x86_64__) && defined(__GNUC__)
#define HEADRACE_AVX2 1
#include <immintrin.h>
#endif

namespace {

// Loads from one place in memory wait for each other more than those from several.
constexpr int64_t PLACES = 4, LINE = 64;

// Page `number` of the buffer's order, in the pool.
int64_t place(int64_t number, int64_t layer_bytes, int64_t page_bytes, const int64_t* blocks, int64_t count) {
    return number / count * layer_bytes + blocks[number % count] * page_bytes;
}

#ifdef HEADRACE_AVX2
bool wide() { return __builtin_cpu_supports("avx2"); }

// PLACES pages at once, a line of each in turn. Returns how many bytes of each it copied: whole lines.
__attribute__((target("avx2"))) int64_t gather_lines(const uint8_t* const* from, int64_t bytes, uint8_t* to) {
    const int64_t lines = bytes / LINE * LINE;
    for (int64_t at = 0; at < lines; at += LINE)
        for (int64_t page = 0; page < PLACES; ++page) {
            const auto* source = reinterpret_cast<const __m256i*>(from[page] + at);
            auto* target = reinterpret_cast<__m256i*>(to + page * bytes + at);
            const __m256i low = _mm256_loadu_si256(source), high = _mm256_loadu_si256(source + 1);
            _mm256_storeu_si256(target, low);
            _mm256_storeu_si256(target + 1, high);
        }
    return lines;
}

// Past the caches: who reads these pages next does so much later, and what stood in them need not be fetched. Returns
// how many bytes it wrote: whole lines, from a place that it can begin at.
__attribute__((target("avx2"))) int64_t stream_lines(uint8_t* to, const uint8_t* from, int64_t bytes) {
    const int64_t lines = reinterpret_cast<uintptr_t>(to) % sizeof(__m256i) ? 0 : bytes / LINE * LINE;
    for (int64_t at = 0; at < lines; at += LINE) {
        const auto* source = reinterpret_cast<const __m256i*>(from + at);
        auto* target = reinterpret_cast<__m256i*>(to + at);
        const __m256i low = _mm256_loadu_si256(source), high = _mm256_loadu_si256(source + 1);
        _mm256_stream_si256(target, low);
        _mm256_stream_si256(target + 1, high);
    }
    return lines;
}

// Other threads see what was streamed before they are told that it was.
void streamed() { _mm_sfence(); }
#else
bool wide() { return false; }
int64_t gather_lines(const uint8_t* const*, int64_t, uint8_t*) { return 0; }
int64_t stream_lines(uint8_t*, const uint8_t*, int64_t) { return 0; }
void streamed() {}
#endif

}  // namespace

void headrace_gather_pages(const uint8_t* pool, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
                           const int64_t* blocks, int64_t count, uint8_t* buffer) {
    const bool lines = wide();
    for (int64_t number = 0; number < layers * count; number += PLACES) {
        const int64_t pages = std::min(PLACES, layers * count - number);
        const uint8_t* from[PLACES];
        for (int64_t page = 0; page < pages; ++page)
            from[page] = pool + place(number + page, layer_bytes, page_bytes, blocks, count);
        uint8_t* to = buffer + number * page_bytes;
        const int64_t done = lines && pages == PLACES ? gather_lines(from, page_bytes, to) : 0;
        for (int64_t page = 0; page < pages; ++page)
            std::memcpy(to + page * page_bytes + done, from[page] + done, page_bytes - done);
    }
}

void headrace_scatter_pages(uint8_t* pool, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
                            const int64_t* blocks, int64_t count, const uint8_t* buffer) {
    const bool lines = wide();
    for (int64_t number = 0; number < layers * count; ++number) {
        uint8_t* to = pool + place(number, layer_bytes, page_bytes, blocks, count);
        const uint8_t* from = buffer + number * page_bytes;
        const int64_t done = lines ? stream_lines(to, from, page_bytes) : 0;
        std::memcpy(to + done, from + done, page_bytes - done);
    }
    if (lines) streamed();
}
