// Whole KV blocks between their pages, far apart in a large pool, and one contiguous buffer.
#pragma once
#include <cstdint>

extern "C" {

// A pool is [layers][blocks][page_bytes], `layer_bytes` from one layer to the next. The buffer is [layers][count]
// [page_bytes]: the pages of blocks[0..count). Both are on the caller's thread; the buffer fits and ids are in range.
void headrace_gather_pages(const uint8_t* pool, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
                           const int64_t* blocks, int64_t count, uint8_t* buffer);
void headrace_scatter_pages(uint8_t* pool, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
                            const int64_t* blocks, int64_t count, const uint8_t* buffer);
}
