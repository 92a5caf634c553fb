#include "common/experiment/plan.h"

namespace attn {

std::string file_of(const Files& files, const std::string& option) {
  const auto given = files.find(option);
  return given == files.end() ? std::string() : given->second;
}

std::optional<std::string> skip_reason(const Plan& plan, const DeviceInfo& device) {
  if (!plan.unable.empty()) return plan.unable;
  for (const Launch& launch : plan.launches) {
    if (auto reason = device.lacks_threadgroup_memory(launch.threadgroup_bytes)) return reason;
  }
  return std::nullopt;
}

}  // namespace attn
