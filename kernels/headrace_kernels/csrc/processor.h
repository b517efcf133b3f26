// What this processor, and the system on it, can run.
#pragma once

bool has_avx2();
bool has_avx512();       // with what isa_avx512.cpp asks for
bool has_avx512_bf16();  // with what isa_avx512bf16.cpp asks for
