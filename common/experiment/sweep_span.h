// The values that sweeps try on a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/device/device.h"

namespace attn {

struct SweepSpan {
  /// An experiment may have a small load for a few cores and a large load for a GPU. `load` is the one that takes this
  /// device some milliseconds.
  enum class Load { small, large } load = Load::small;
  std::string dtype = "f32";                            // the default type of elements
  std::string other_dtype = "bf16";                     // the type that is compared with `dtype`
  int64_t heads = 8;                                    // query heads of a launch that has all heads of a layer
  std::vector<std::string> ladder = {};                 // attention variants that are compared
  std::vector<int64_t> block_r = {64}, block_c = {64};  // rows and columns of the attention tiles that are compared

  /// The most tokens of a sequence. A device that takes no times has short sequences, which check as much and end
  /// sooner.
  int64_t most_tokens = std::numeric_limits<int64_t>::max();

  bool large() const { return load == Load::large; }
  /// Returns how many tokens a sequence has that has `usual` tokens on a device that takes times.
  int64_t tokens(int64_t usual) const { return std::min(usual, most_tokens); }
};

/// The span follows from the variants of attention that the device has. A device with other variants, or without
/// attention, has the defaults.
SweepSpan sweep_span(const DeviceInfo& device);

}  // namespace attn
