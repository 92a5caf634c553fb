// Counts what a program allocates: operator new of the whole program, that of its libraries too.
#pragma once

#include <cstdint>

namespace attn {

/// Calls of operator new so far, by all threads.
int64_t allocations();

}  // namespace attn
