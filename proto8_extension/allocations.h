// Counts the allocations of the whole program: its calls of operator new, those in libraries included.
#pragma once

#include <cstdint>

namespace attn {

/// Calls of operator new so far, by all threads.
int64_t allocations();

}  // namespace attn
