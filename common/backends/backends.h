// The devices of this build, for the static functions of Device.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "common/device/device.h"

namespace attn {

struct Backend {
  std::string_view name;                                             // "cuda"
  std::string_view options = {};                                     // after "cuda:" in a spec: "N"; empty: none
  std::unique_ptr<Device> (*open)(std::string_view spec) = nullptr;  // null: this build lacks the device
  std::string_view missing = {};                                     // without the device: what this build lacks
  /// Device::open_for_caller(). Null if the device has no streams: open() is then used.
  std::unique_ptr<Device> (*open_for_caller)(std::string_view spec, std::optional<void*> stream) = nullptr;
};

std::span<const Backend> backends();

}  // namespace attn
