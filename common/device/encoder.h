// A list of commands for a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/launch/plan.h"

namespace attn {

class Kernel;

/// Copies of the arguments of a kernel that takes a list of arguments, for example a generated kernel. Kernels written
/// by hand take one struct of parameters instead. On cuda each argument is a parameter of the kernel. On the cpu the
/// kernel is a function extern "C" void NAME(const void* const* arguments, const Threadgroup*), and finds the i-th
/// argument at arguments[i].
class Arguments {
 public:
  using Value = std::vector<std::byte>;

  template <typename... Values>
  explicit Arguments(const Values&... values) : values_{bytes_of(values)...} {}
  template <typename T>
  void add(const T& value) {
    values_.push_back(bytes_of(value));
  }

  const std::vector<Value>& values() const { return values_; }
  bool operator==(const Arguments&) const = default;

 private:
  friend class CommandEncoder;
  template <typename T>
  static Value bytes_of(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    Value bytes(sizeof(T));
    std::memcpy(bytes.data(), static_cast<const void*>(&value), sizeof(T));
    return bytes;
  }

  std::vector<Value> values_;
};

class CommandEncoder {
 public:
  struct Dispatch {
    const Kernel* kernel;
    Grid grid;
    uint32_t threads;  // per threadgroup; the cpu ignores it and runs a threadgroup on one host thread
    size_t threadgroup_bytes;
    std::vector<std::byte> parameters;   // the bytes of the kernel's one argument, a struct
    std::optional<Arguments> arguments;  // if set, the kernel gets these instead of `parameters`

    bool operator==(const Dispatch&) const = default;
  };
  struct Fill {
    void* target;
    uint8_t value;
    size_t bytes;

    bool operator==(const Fill&) const = default;
  };
  struct Timestamp {
    bool operator==(const Timestamp&) const = default;
  };
  using Command = std::variant<Dispatch, Fill, Timestamp>;

  /// Copies `parameters`, which become the kernel's one argument.
  template <typename Parameters>
  void dispatch(const Kernel& kernel, Grid grid, uint32_t threads, size_t threadgroup_bytes,
                const Parameters& parameters) {
    commands_.emplace_back(
        Dispatch{&kernel, grid, threads, threadgroup_bytes, Arguments::bytes_of(parameters), std::nullopt});
  }
  /// For a kernel that takes a list of arguments.
  void dispatch(const Kernel& kernel, Grid grid, uint32_t threads, size_t threadgroup_bytes, Arguments arguments) {
    commands_.emplace_back(Dispatch{&kernel, grid, threads, threadgroup_bytes, {}, std::move(arguments)});
  }
  void fill(void* target, uint8_t value, size_t bytes) { commands_.emplace_back(Fill{target, value, bytes}); }
  void timestamp() { add(Timestamp{}); }
  void add(Command command) {
    timestamps_ += std::holds_alternative<Timestamp>(command);
    commands_.push_back(std::move(command));
  }

  /// Keeps the list's memory.
  void clear() {
    commands_.clear();
    timestamps_ = 0;
  }

  const std::vector<Command>& commands() const { return commands_; }
  size_t timestamps() const { return timestamps_; }

 private:
  size_t timestamps_ = 0;
  std::vector<Command> commands_;
};

}  // namespace attn
