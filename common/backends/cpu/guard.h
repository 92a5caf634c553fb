// Runs kernels that include a user's text, so that a fault ends the kernel and not the process.
#pragma once

#include <optional>
#include <string>

#include "common/kernel/cpu.h"

namespace attn {

/// The fault that ended a kernel.
struct KernelFault {
  std::string what;      // what the kernel did: "called abort()"
  bool timeout = false;  // the kernel used guarded_seconds of its thread's CPU time
};

/// Seconds of CPU time that one call of a guarded kernel may take. A call computes one threadgroup, which usually takes
/// milliseconds.
inline constexpr int guarded_seconds = 10;

/// Calls a kernel on this thread. Returns nothing if the kernel returns. At a fault, ends the kernel and returns the
/// fault: an illegal address, a full stack, a division by zero, a trap, an illegal instruction, abort(), or
/// guarded_seconds of the thread's CPU time. Memory that the kernel wrote before the fault stays written, so after a
/// fault no data of this process can be trusted.
///
/// The first call installs handlers for the signals of these faults, and for the timer's signal SIGURG. A signal that
/// comes while its thread runs no guarded kernel has the same effect as before the installation. In particular, the new
/// handlers call the handlers that they replaced. While a guarded kernel runs on the main thread, RLIMIT_STACK is at
/// most 64 MiB.
std::optional<KernelFault> run_guarded(void (*kernel)(const void* parameters, const Threadgroup* group),
                                       const void* parameters, const Threadgroup* group);

}  // namespace attn
