// Runs kernels that include a user's text, so that a fault ends the kernel and not the process.
#pragma once

#include <optional>
#include <string>

#include "common/kernel/cpu.h"

namespace attn {

/// The fault that ended a kernel.
struct KernelFault {
  std::string what;      // with a verb: "called abort()"
  bool timeout = false;  // the kernel took guarded_seconds of its thread's time
};

/// Seconds of a thread's time that one call of a guarded kernel may take. A threadgroup usually takes milliseconds.
inline constexpr int guarded_seconds = 10;

/// Calls a kernel on this thread. Returns nothing if the kernel returns. The kernel is ended at an address that is not
/// the process's, at a full stack, a division by zero, a trap or abort(), and if it takes too long. Memory that it
/// wrote before stays written, so after a fault no data of this process can be trusted.
///
/// This function handles the signals of these faults only during such a call. At other times the signals have the
/// effect that they had before the first call.
std::optional<KernelFault> run_guarded(void (*kernel)(const void* parameters, const Threadgroup* group),
                                       const void* parameters, const Threadgroup* group);

}  // namespace attn
