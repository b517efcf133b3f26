// What one instruction set offers.
#pragma once
#include "program.h"
#include "team.h"

struct Isa {
    const char* name;
    int32_t lanes;
    int64_t (*packed_bytes)(int32_t, int64_t, int64_t);
    void (*pack)(int32_t, const float*, int64_t, int64_t, void*);
    void (*pack_rows)(int32_t, const uint8_t* const*, const int32_t*, int64_t, int64_t, void*, float*, int, int);
    int64_t (*scratch_bytes)(int32_t, int64_t, int64_t);
    void (*run)(const Op*, int64_t, const Step&, Team&);
};
