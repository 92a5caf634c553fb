// Counts the allocations of the whole program: the calls of operator new, the calls in libraries included.
#pragma once

#include <cstdint>

namespace attn {

/// Returns the number of calls of operator new so far, by all threads.
int64_t allocations();

}  // namespace attn
