#include <immintrin.h>

#include <atomic>
#include <utility>

#include "isa_table.h"

#ifndef EMULATED
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#define NAMESPACE avx512
#define LANES 16
#define NAME "AVX-512 VNNI"
#include "isa.h"
