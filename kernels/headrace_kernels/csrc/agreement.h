// Whether two instruction sets compute the same.
#pragma once
#include "isa_table.h"

// Runs every kind of product, the write to pages and attention with both, on numbers of its own. Takes a millisecond.
bool agree(const Isa& one, const Isa& other);
