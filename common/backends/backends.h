// The table of the project's devices. The static functions of Device read the table. A build may lack some devices.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "common/device/device.h"

namespace attn {

struct Backend {
  std::string_view name;          // "cuda"
  std::string_view options = {};  // the part of a spec after "cuda:", for example "N"; empty: no options
  bool needs_options = false;     // whether "cuda" alone names no device
  std::unique_ptr<Device> (*open)(std::string_view spec) = nullptr;  // null if this build lacks the device
  std::string_view missing = {};  // "no CUDA device; it needs ..."; empty if `open` is set
  /// Opens the device for Device::open_for_caller(). Null if the device uses no threads and no stream of the caller;
  /// Device::open_for_caller() then calls `open`.
  std::unique_ptr<Device> (*open_for_caller)(std::string_view spec, const Caller& caller) = nullptr;
};

std::span<const Backend> backends();

}  // namespace attn
