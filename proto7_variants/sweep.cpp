#include "proto7_variants/sweep.h"

#include <utility>

#include "common/attention/axes.h"
#include "proto7_variants/modifiers.h"

namespace attn {

std::vector<AxisInfo> variants_axes() {
  std::vector<AxisInfo> axes = {
      {"alibi", "1: a penalty by distance, of a slope for each head", {}, 0, 1, 1},
      {"soft_cap", "cap * tanh(score / cap); 0: none", {}, 0, 1000, 1},
      {"bias", "the axes of a tensor that is added to the scores", {"none", "k", "bk", "qk", "hqk", "bhqk"}, 0, 0, 1},
      {"sinks", "1: a logit for each head in the denominator", {}, 0, 1, 1},
      {"window_left", "keys before its own that a query sees; -1: all", {}, -1, longest_sequence, 1},
      {"window_right", "keys behind its own that a query sees; -1: all", {}, -1, longest_sequence, 1},
      {"prefix", "keys that every query sees beside the causal ones; 0: none", {}, 0, longest_sequence, 1},
      {"documents",
       "a query sees its own document alone, of so many keys on average; 0: all",
       {},
       0,
       longest_sequence,
       1},
      {"lengths", "1: sequences have lengths of their own, and padding behind", {}, 0, 1, 1},
      {"global_tokens", "with a window: first tokens that see all and that all see; 0: none", {}, 0, 4096, 1},
      {"block_sparse", "per cent of the blocks of 128 x 128 positions that are seen; 0: all", {}, 0, 99, 1},
      {"window_by", "what the window is: a range of keys, or a mask", {"range", "mask"}, 0, 0, 1},
      {"lists", "1: masks have lists of key blocks; 0: each pair is asked for", {}, 0, 1, 1}};
  for (AxisInfo& axis : flash_axes()) axes.push_back(std::move(axis));
  return axes;
}

std::vector<std::string> variants_compared_axes() {
  std::vector<std::string> axes;
  for (const auto& [axis, off] : modifier_axes()) axes.push_back(axis);
  return axes;
}

Sweep variants_sweep(const std::string& profile, const DeviceInfo& device) {
  const bool full = profile == "full", cuda = device.is_cuda();
  const Axis variant = texts("variant", {"tuned"});
  const Axis dtype = texts("dtype", {cuda ? "bf16" : "f32"}), out_dtype = texts("out_dtype", {cuda ? "bf16" : "f32"});
  const Axis layout = texts("layout", {"bhsd"});
  // A launch of some milliseconds on either device; 32 heads as in the published study.
  const Axis heads = integers("q_heads", {cuda ? 32 : 2});
  Sweep sweep;
  const auto add = [&](int64_t length, const std::vector<int64_t>& dims, int64_t causal, Block own) {
    own.insert(own.end(), {variant, integers("batch", {1}), heads, integers("q_len", {length}),
                           integers("head_dim", dims), integers("causal", {causal}), dtype, out_dtype, layout});
    sweep.blocks.push_back(std::move(own));
  };
  const std::vector<int64_t> dims = {64, 128};
  const auto modifiers = [&](int64_t length) {
    const Axis alibi = integers("alibi", {1}), soft_cap = integers("soft_cap", {30}), sinks = integers("sinks", {1});
    const Axis documents = integers("documents", {length / 8}), window = integers("window_left", {length / 8});
    for (const int64_t causal : {0, 1}) {
      add(length, dims, causal, {});
      for (const Axis& modifier : {alibi, soft_cap, sinks, documents, window}) add(length, dims, causal, {modifier});
      add(length, dims, causal, {alibi, soft_cap, sinks, window});
    }
    // Masks. Tiles of the size of the blocks, which they then meet one by one.
    const Axis rows = integers("block_r", {128}), keys = integers("block_c", {128});
    const Axis by_mask = texts("window_by", {"mask"}), no_lists = integers("lists", {0});
    for (const int64_t causal : {0, 1}) {
      add(length, dims, causal, {window, integers("global_tokens", {64})});
      add(length, dims, causal, {integers("block_sparse", {25, 50}), rows, keys});
    }
    add(length, dims, 0, {integers("block_sparse", {25}), no_lists, rows, keys});
    add(length, dims, 1, {window, by_mask});
    add(length, dims, 1, {window, by_mask, no_lists});
    add(length, dims, 1, {integers("prefix", {length / 4})});
    add(length, dims, 0, {texts("bias", {"hqk"})});
    // Lengths differ between sequences only.
    sweep.blocks.push_back({integers("lengths", {0, 1}), variant, integers("batch", {4}),
                            integers("q_heads", {cuda ? 8 : 1}), integers("q_len", {length}),
                            integers("head_dim", dims), integers("causal", {0}), dtype, out_dtype, layout});
  };
  modifiers(2048);
  // Key/value heads that share a head by index: groups of 1, 2, 4, 8.
  if (cuda) {
    add(2048, {128}, 1, {integers("kv_heads", {32, 16, 8, 4, 1})});
  }
  if (!full) return sweep;
  modifiers(cuda ? 8192 : 512);
  for (const int64_t window : {64, 256, 512, 1024, 2048, 4096}) {
    add(cuda ? 8192 : 2048, dims, 1, {integers("window_left", {window})});
  }
  add(2048, dims, 0, {integers("soft_cap", {20, 50})});
  add(2048, {128}, 0, {texts("bias", {"k", "qk"})});
  return sweep;
}

void complete_variants(Case& config, const DeviceInfo& device) {
  for (const auto& [axis, off] : modifier_axes()) {
    if (!config.has(axis)) config.set(axis, off);
  }
  complete_flash(config, device);
}

}  // namespace attn
