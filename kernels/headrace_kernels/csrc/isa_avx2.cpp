#include <immintrin.h>

#include <atomic>
#include <utility>

#include "isa_table.h"

#pragma GCC target("avx2,fma,f16c")
#define NAMESPACE avx2
#define LANES 8
#define NAME "AVX2"
#include "isa.h"
