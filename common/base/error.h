// The kinds of error. run_program() turns an error that nobody else catches into one line on stderr and an exit status.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace attn {

/// The input is not allowed. The message says what is wrong and what is allowed. Exit status 2.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The machine lacks the device, or a library that the device needs. Exit status 3.
struct DeviceMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A kernel did not compile, or its machine code cannot be used.
struct CompileError : std::runtime_error {
  /// The message is "KEY does not compile:\nLOG". `key` is KernelSource::key(), `log` the messages of the compiler.
  CompileError(const std::string& key, const std::string& log)
      : std::runtime_error(key + " does not compile:\n" + log), key_bytes_(key.size()), log_bytes_(log.size()) {}
  /// For machine code that is damaged or does not load. Such an error has no key.
  explicit CompileError(const std::string& log) : std::runtime_error(log), log_bytes_(log.size()) {}

  /// Returns the key of the source; empty for machine code.
  std::string_view key() const { return std::string_view(what()).substr(0, key_bytes_); }
  std::string_view log() const {
    const std::string_view text = what();
    return text.substr(text.size() - log_bytes_);
  }

 private:
  size_t key_bytes_ = 0, log_bytes_;  // lengths in what(), not copies of texts: copying an exception must not throw
};

/// The device has too little memory for an allocation, or too little threadgroup memory for a launch.
struct OutOfMemory : std::runtime_error {
  OutOfMemory(const std::string& what, size_t bytes) : std::runtime_error(what), needed_bytes(bytes) {}
  size_t needed_bytes;
};

/// A kernel faulted or did not end in time. This process must not use the device any more; a new process may use it.
struct DeviceLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A kernel faulted, for example at an illegal address, a misaligned access or a trap.
struct DeviceFault : DeviceLost {
  using DeviceLost::DeviceLost;
};

/// A kernel did not end in time. On a GPU this process cannot stop the kernel.
struct DeviceTimeout : DeviceLost {
  using DeviceLost::DeviceLost;
};

}  // namespace attn
