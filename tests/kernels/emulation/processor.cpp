// Stands in for csrc/processor.cpp: everything that is emulated can be run.
//
// EMULATION in the environment when the library is loaded: "narrow" is a processor with AVX2 alone, "spoilt" one whose
// vpdpbusd is off.
#include "processor.h"

#include <cstdlib>
#include <cstring>

static bool asked(const char* for_what) {
    const char* value = std::getenv("EMULATION");
    return value && !std::strcmp(value, for_what);
}

bool emulated::spoilt() {
    static const bool is = asked("spoilt");
    return is;
}

bool has_avx2() { return true; }
bool has_avx512() { return !asked("narrow"); }
bool has_avx512_bf16() { return !asked("narrow"); }
