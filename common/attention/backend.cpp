#include "common/attention/backend.h"

#include <utility>

namespace attn {

const FlashBackend& FlashBackend::of(const DeviceInfo& device) { return device.is_cuda() ? cuda_flash() : cpu_flash(); }

FlashBackend::Launcher FlashBackend::plain_launcher(const Launch& launch, const Kernel& kernel, Lists lists) {
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
