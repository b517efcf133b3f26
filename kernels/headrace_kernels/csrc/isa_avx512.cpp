#include <immintrin.h>

#include <atomic>

#include "isa_table.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#define NAMESPACE avx512
#define LANES 16
#define NAME "AVX-512 VNNI"
#include "isa.h"
