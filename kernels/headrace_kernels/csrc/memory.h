// Reading memory as fast as it goes, to know how fast that is.
#pragma once
#include <cstdint>

// The sum of `count` words, read on the caller's thread.
uint64_t sum_words(const uint64_t* words, int64_t count);
