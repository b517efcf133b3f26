// Stands in for csrc/processor.cpp: everything that is emulated can be run.
#include "processor.h"

bool has_avx2() { return true; }
bool has_avx512() { return true; }
bool has_avx512_bf16() { return true; }
