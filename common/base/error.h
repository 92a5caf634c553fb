// The ways a run can end early. main() turns each into one line on stderr and a documented exit status.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace attn {

/// What was asked for cannot be: the message says what is wrong and what is allowed. Exit status 2.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The device, or a library it needs, is not on this machine. Exit status 3.
struct DeviceMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A kernel source did not compile; the message is the compiler's own, with the kernel's line numbers.
struct CompileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The device has no room for an allocation.
struct OutOfMemory : std::runtime_error {
  OutOfMemory(const std::string& what, size_t bytes) : std::runtime_error(what), needed_bytes(bytes) {}
  size_t needed_bytes;
};

/// A kernel went so wrong that this process has no more use of the device; a new process has.
struct DeviceLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A kernel faulted: illegal address, misaligned access, trap.
struct DeviceFault : DeviceLost {
  using DeviceLost::DeviceLost;
};

/// A kernel did not end in time, and nothing can stop it.
struct DeviceTimeout : DeviceLost {
  using DeviceLost::DeviceLost;
};

}  // namespace attn
