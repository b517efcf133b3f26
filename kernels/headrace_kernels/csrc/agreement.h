// Whether two instruction sets compute the same.
#pragma once
#include "isa_table.h"

// Runs products of every format, norms, gates, the write to pages and attention with both, on numbers of its own. Takes a
// millisecond.
bool agree(const Isa& one, const Isa& other);
