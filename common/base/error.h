// The ways a run can end early. main() turns each into one line on stderr and a documented exit status.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace attn {

/// What was asked for cannot be: the message says what is wrong and what is allowed. Exit status 2.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The device, or a library it needs, is not on this machine. Exit status 3.
struct DeviceMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A kernel did not compile: "KEY does not compile:\nLOG".
struct CompileError : std::runtime_error {
  /// `key` is KernelSource::key(), `log` all that the compiler says, with the lines of the kernel's files.
  CompileError(const std::string& key, const std::string& log)
      : std::runtime_error(key + " does not compile:\n" + log), key_bytes_(key.size()), log_bytes_(log.size()) {}
  /// Of machine code, which has no source: it is damaged, or does not load.
  explicit CompileError(const std::string& log) : std::runtime_error(log), log_bytes_(log.size()) {}

  /// Empty where there is no source.
  std::string_view key() const { return std::string_view(what()).substr(0, key_bytes_); }
  std::string_view log() const {
    const std::string_view text = what();
    return text.substr(text.size() - log_bytes_);
  }

 private:
  size_t key_bytes_ = 0, log_bytes_;  // parts of what(): copying an exception must not throw
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
