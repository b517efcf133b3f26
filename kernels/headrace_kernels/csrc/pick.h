// Which instruction set computes.
#pragma once
#include <string>

#include "isa_table.h"

// The best one that this processor has, or the one called `key` ("avx2", "avx512", "avx512bf16"); null if there is none.
// Each wider than AVX2 has to agree with it on numbers of its own, since no test here runs the instructions of a processor
// that is not this one; `refused` names those that did not.
const Isa* pick(const char* key, std::string& refused);
