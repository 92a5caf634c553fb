// Counts the calls of operator new in the whole program, libraries included.
#pragma once

#include <cstdint>

namespace attn {

/// Returns the number of calls of operator new so far, by all threads.
int64_t allocations();

}  // namespace attn
