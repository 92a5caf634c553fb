// What a case runs under, as far as a plan may depend on it.
#pragma once

#include <map>
#include <string>

#include "common/device/device.h"

namespace attn {

/// The paths that an experiment's own file options give, by the option's name with its dashes.
using Files = std::map<std::string, std::string>;
/// Empty where the option is not given.
std::string file_of(const Files& files, const std::string& option);

struct Setting {
  DeviceInfo device;
  Files files = {};

  std::string file(const std::string& option) const { return file_of(files, option); }
};

}  // namespace attn
