#include "common/experiment/plan.h"

#include <fmt/format.h>

namespace attn {

std::optional<std::string> skip_reason(const Plan& plan, const DeviceInfo& device) {
  if (!plan.unable.empty()) return plan.unable;
  for (const Launch& launch : plan.launches) {
    if (launch.threadgroup_bytes <= device.threadgroup_memory_bytes) continue;
    return fmt::format("needs {} bytes of threadgroup memory, {} has {}", launch.threadgroup_bytes, device.spec,
                       device.threadgroup_memory_bytes);
  }
  return std::nullopt;
}

}  // namespace attn
