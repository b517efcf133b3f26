// Which instruction set computes.
#pragma once
#include <string>

#include "isa_table.h"

// The best one that this processor has, or the one called `key` ("avx2", "avx512", "avx512bf16"); null if there is none.
// The wide ones were written where they could not be run, so each has to agree with AVX2; `refused` names those that
// did not.
const Isa* pick(const char* key, std::string& refused);
