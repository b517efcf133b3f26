#include <immintrin.h>

#include <atomic>
#include <utility>

#include "isa_table.h"

#ifndef EMULATED
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")
#endif
#define NAMESPACE avx512bf16
#define LANES 16
#define HALF_DOT
#define NAME "AVX-512 BF16 VNNI"
#include "isa.h"
