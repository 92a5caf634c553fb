// CommandEncoder: a plain value that lists what a device is to do, in order. Device::submit() runs the list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace attn {

class Kernel;

/// Threadgroups along each dimension.
struct Grid {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }

  bool operator==(const Grid&) const = default;
};

class CommandEncoder {
 public:
  struct Dispatch {
    const Kernel* kernel;
    Grid grid;
    uint32_t threads;  // per threadgroup; a cpu threadgroup is one host thread, whatever this says
    size_t threadgroup_bytes;
    std::vector<std::byte> parameters;

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

  /// One launch; `parameters` is copied now and handed to the kernel as its one argument.
  template <typename Parameters>
  void dispatch(const Kernel& kernel, Grid grid, uint32_t threads, size_t threadgroup_bytes,
                const Parameters& parameters) {
    static_assert(std::is_trivially_copyable_v<Parameters>);
    Dispatch command{&kernel, grid, threads, threadgroup_bytes, std::vector<std::byte>(sizeof(Parameters))};
    std::memcpy(command.parameters.data(), static_cast<const void*>(&parameters), sizeof(Parameters));
    commands_.emplace_back(std::move(command));
  }
  void fill(void* target, uint8_t value, size_t bytes) { commands_.emplace_back(Fill{target, value, bytes}); }
  void timestamp() { commands_.emplace_back(Timestamp{}); }
  void add(const Command& command) { commands_.push_back(command); }

  const std::vector<Command>& commands() const { return commands_; }

 private:
  std::vector<Command> commands_;
};

}  // namespace attn
