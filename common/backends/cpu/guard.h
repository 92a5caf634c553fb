// Kernels that somebody else's text is part of, run so that what they do wrong ends them and not the process.
#pragma once

#include <optional>
#include <string>

#include "common/kernel/cpu.h"

namespace attn {

/// What ended a kernel that did not return by itself.
struct KernelFault {
  std::string what;      // with a verb: "called abort()"
  bool timeout = false;  // it took guarded_seconds of its thread's time
};

/// Seconds of a thread's time that one call of a guarded kernel may take: a threadgroup takes milliseconds.
inline constexpr int guarded_seconds = 10;

/// Calls a kernel on this thread; nothing where it returns. It is ended at an address that is not the process's, a full
/// stack, a division by zero, a trap, abort(), and where it takes too long. What it wrote before that stays, so nothing
/// in this process is to be trusted behind it.
///
/// The signals that tell of these are this function's in such a call alone: elsewhere they have the effect that they
/// had before the first call.
std::optional<KernelFault> run_guarded(void (*kernel)(const void* parameters, const Threadgroup* group),
                                       const void* parameters, const Threadgroup* group);

}  // namespace attn
