// Counts the calls of operator new in the whole program and in its libraries. Calls with an alignment are not counted.
#pragma once

#include <cstdint>

namespace attn {

/// Returns the number of calls by all threads since the program's start.
int64_t allocations();

}  // namespace attn
