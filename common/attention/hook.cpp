#include "common/attention/hook.h"

namespace attn {

void add_hooks(KernelSource& source, const AttentionHooks& hooks) {
  source.includes = hooks.includes;
  if (!hooks.text.empty()) source.includes["common/attention/kernels/score.h"] = hooks.text;
  source.fragments = hooks.fragments;
  source.linking = hooks.linking;
  source.constants.merge(hooks.constants);
  source.guarded = hooks.guarded;
}

}  // namespace attn
