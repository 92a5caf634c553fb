#include "common/attention/flash.h"

#include <stdexcept>
#include <utility>

namespace attn {

const FlashOperation& FlashOperation::of(const DeviceInfo& device) {
  if (!device.operations->flash) throw std::logic_error(device.backend + ": " + no_kernel_for("attention"));
  return *device.operations->flash;
}

void choose_tile(FlashConfig& config, const DeviceInfo& device, const TileHints& hints) {
  if (device.operations->flash) device.operations->flash->choose_tile(config, device, hints);
}

FlashOperation::Launcher FlashOperation::plain_launcher(const Launch& launch, const Kernel& kernel, Lists lists) {
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
