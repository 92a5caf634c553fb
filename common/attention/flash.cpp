#include "common/attention/flash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace attn {

const FlashOperation& FlashOperation::of(const DeviceInfo& device) {
  if (!device.operations->flash) throw std::logic_error(device.backend + ": " + no_kernel_for("attention"));
  return *device.operations->flash;
}

std::string variant_unable(const std::string& variant, const DeviceInfo& device) {
  if (!device.operations->flash) return no_kernel_for("attention");
  const std::vector<std::string> variants = device.operations->flash->variants();
  if (std::ranges::find(variants, variant) != variants.end()) return {};
  return fmt::format("{}; it has {}", no_kernel_for("variant " + variant), fmt::join(variants, ", "));
}

void choose_tile(FlashConfig& config, const DeviceInfo& device, const TileHints& hints) {
  if (device.operations->flash) device.operations->flash->choose_tile(config, device, hints);
}

FlashOperation::EncodeFunction FlashOperation::plain_encode_function(const Launch& launch, const Kernel& kernel,
                                                                     Lists lists) {
  return [launch, &kernel, lists = std::move(lists)](CommandEncoder& encoder, const AttentionParams& params) {
    const auto dispatch = [&](const auto& all) {
      encoder.dispatch(kernel, launch.grid, launch.threads, launch.threadgroup_bytes, all);
    };
    if (lists) {
      dispatch(WithLists<AttentionParams>{params, lists(params)});
    } else {
      dispatch(params);
    }
  };
}

}  // namespace attn
