#include <fmt/format.h>

#include "common/attention/launch.h"
#include "proto5_codegen/generators.h"

namespace attn {

Plan cuda_codegen_plan(const CodegenCase& config, const DeviceInfo& device) {
  if (is_flash(config)) {
    const ModifiedAttention attention(config.modifiers(), config.flash(device));
    const AttentionHooks texts = attention.texts();
    return attention_plan(config.flash(device), device, config.work == WORK_MODIFIED ? &texts : nullptr);
  }
  return {.unable = fmt::format("generator {}: it has no kernel of {}", config.generator, work_names()[config.work])};
}

}  // namespace attn
