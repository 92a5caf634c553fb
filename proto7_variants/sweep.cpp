#include "proto7_variants/sweep.h"

#include <algorithm>
#include <utility>

#include "common/attention/modifiers.h"
#include "common/cases/axes.h"
#include "common/cases/modifier_axes.h"
#include "common/cases/study_cases.h"
#include "common/experiment/sweep_span.h"
#include "proto7_variants/claims.h"
#include "proto7_variants/functions.h"
#include "proto7_variants/problem.h"

namespace attn {

namespace {

// Returns the axes of shapes on which a launch takes some milliseconds. A large device gets 32 query heads, as in the
// published study (docs/study.md).
Block shapes_of(const DeviceInfo& device, int64_t length, const std::vector<int64_t>& dims, int64_t causal) {
  const SweepSpan span = sweep_span(device);
  return {texts("variant", {"tuned"}),  integers("batch", {1}),           integers("q_heads", {span.large() ? 32 : 2}),
          integers("q_len", {length}),  integers("head_dim", dims),       integers("causal", {causal}),
          texts("dtype", {span.dtype}), texts("out_dtype", {span.dtype}), texts("layout", {"bhsd"})};
}

}  // namespace

std::vector<AxisInfo> variants_axes() {
  std::vector<AxisInfo> axes = {
      {"task",
       "what is launched; rope: only RoPE of Q and K; expand: only a copy of key/value heads for each query head",
       {"attention", "rope", "expand"}},
      {"kv_heads_by",
       "how attention finds the key/value head of a query head: by an index, or in a copy that a launch makes first",
       {"index", "copy"}}};
  for (const auto* own : {&modifier_axes(), &rotary_axes()}) {
    for (const auto& [axis, off] : *own) axes.push_back(axis);
  }
  for (AxisInfo& axis : flash_axes()) axes.push_back(std::move(axis));
  return axes;
}

std::vector<std::string> variants_compared_axes() {
  std::vector<std::string> axes = {"kv_heads_by", "block_r", "block_c"};
  for (const auto& [axis, off] : modifier_axes()) axes.push_back(axis.name);
  return axes;
}

std::set<std::string> variants_narrowing_axes() {
  std::set<std::string> axes = {"task", "kv_heads", "kv_heads_by"};
  for (const auto& [axis, off] : modifier_axes()) axes.insert(axis.name);
  for (const auto& [axis, off] : rotary_axes()) axes.insert(axis.name);
  return axes;
}

Sweep variants_sweep(const std::string& profile, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  const bool full = profile == "full", large = span.large();
  const int64_t tokens = span.tokens(2048);
  const bool small_tiles = span.block_c.front() < 64;  // threadgroup memory holds few keys
  Sweep sweep;
  // Adds a block with the axes in `own`, and with each axis of shapes_of() that `own` lacks.
  const auto add = [&](int64_t length, const std::vector<int64_t>& dims, int64_t causal, Block own) {
    for (Axis& axis : shapes_of(device, length, dims, causal)) {
      if (std::ranges::find(own, axis.name, &Axis::name) == own.end()) own.push_back(std::move(axis));
    }
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
    // The tile for block_sparse. Its sizes divide 128, the size of a block of the mask, so that each tile lies in one
    // block of the mask.
    const Axis rows = integers("block_r", {small_tiles ? 64 : 128});
    const Axis keys = integers("block_c", {small_tiles ? 32 : 128});
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
    // `lengths` and `starts` need several sequences, because they differ between sequences and not between heads.
    const Axis sequences = integers("batch", {4}), heads = integers("q_heads", {large ? 8 : 1});
    add(length, dims, 0, {integers("lengths", {0, 1}), sequences, heads});
    add(length, dims, 0, {integers("starts", {1}), sequences, heads});
  };
  modifiers(tokens);
  // Blocks that try tiles. They have every modifier's axis, so that a run whose command line names a modifier leaves
  // them out (variants_narrowing_axes()).
  const auto tiles = [&](const std::vector<int64_t>& own_dims, int64_t causal, const std::vector<int64_t>& rows,
                         const std::vector<int64_t>& keys) {
    for (const Axis& modifier :
         {integers("alibi", {0, 1}), integers("soft_cap", {30}), integers("window_left", {tokens / 8})}) {
      Block block = {modifier, integers("block_r", rows), integers("block_c", keys)};
      for (const auto& [axis, off] : modifier_axes()) {
        if (axis.name != modifier.name) block.push_back({axis.name, {off}});
      }
      add(tokens, own_dims, causal, std::move(block));
    }
  };
  if (small_tiles) {
    tiles({128}, 1, span.block_r, span.block_c);
  } else {
    tiles({128}, 1, large ? std::vector<int64_t>{128, 192} : std::vector<int64_t>{64, 256},
          large ? std::vector<int64_t>{64, 80, 128} : std::vector<int64_t>{64, 128});
  }
  // Blocks that vary the form of the score modifiers. In the first block all score modifiers are off.
  const auto forms = [&](const std::vector<int64_t>& own_dims, int64_t causal,
                         const std::vector<Axis>& score_modifiers) {
    add(tokens, own_dims, causal, {texts("score_by", {"run_time"})});
    for (const Axis& modifier : score_modifiers) {
      add(tokens, own_dims, causal, {modifier, texts("score_by", {"run_time", "noinline"})});
    }
  };
  const Axis alibi = integers("alibi", {1}), soft_cap = integers("soft_cap", {30});
  forms({128}, 0, {alibi, soft_cap});
  // Query heads that share key/value heads by an index.
  if (large) {
    add(tokens, {128}, 1, {integers("kv_heads", {32, 16, 8, 4, 1})});
  }
  const Axis in_kernel =
      texts("rope", large ? std::vector<std::string>{"before", "query"} : std::vector<std::string>{"before", "kernel"});
  const auto rope = [&](int64_t length) {
    add(length, dims, 0, {in_kernel});
    add(length, dims, 0, {texts("task", {"rope"})});
  };
  rope(tokens);
  // Attention with shared heads found by an index and in copies, and the copies alone.
  const auto copies = [&](int64_t q_heads, const std::vector<int64_t>& kv_heads) {
    for (const char* task : {"attention", "expand"}) {
      add(tokens, {128}, 0,
          {texts("task", {task}), texts("kv_heads_by", {"index", "copy"}), integers("q_heads", {q_heads}),
           integers("kv_heads", kv_heads)});
    }
  };
  if (large) {
    copies(24, {24, 12, 8, 6, 3, 1});
    copies(32, {8});
    copies(56, {8});
  } else {
    copies(8, {8, 4, 2, 1});
    copies(6, {2});
    copies(7, {1});
  }
  if (!full) return sweep;
  modifiers(large ? 8192 : 512);
  if (small_tiles) {
    tiles(dims, 1, span.block_r, span.block_c);
  } else {
    tiles(dims, 1, large ? std::vector<int64_t>{128, 192, 256} : std::vector<int64_t>{64, 128, 256},
          large ? std::vector<int64_t>{64, 80, 128} : std::vector<int64_t>{64, 128});
  }
  forms(dims, 0, {alibi, soft_cap, texts("bias", {"hqk"})});
  forms(dims, 1, {alibi, soft_cap});
  for (const int64_t length : large ? std::vector<int64_t>{4096, 8192, 16384} : std::vector<int64_t>{512, 4096}) {
    add(length, dims, 0, {});
    rope(length);
  }
  add(2048, dims, 0, {texts("task", {"rope"}), texts("rope_angles", {"table"})});
  for (const int64_t window : {64, 256, 512, 1024, 2048, 4096}) {
    add(large ? 8192 : 2048, dims, 1, {integers("window_left", {window})});
  }
  add(2048, dims, 0, {integers("soft_cap", {20, 50})});
  add(2048, {128}, 0, {texts("bias", {"k", "qk"})});
  return sweep;
}

Sweep functions_sweep(const std::string& profile, const DeviceInfo& device) {
  Sweep sweep;
  std::vector<int64_t> lengths = {2048};
  if (profile == "full") lengths.push_back(sweep_span(device).large() ? 8192 : 512);
  for (const int64_t length : lengths) {
    for (const int64_t causal : {0, 1}) sweep.blocks.push_back(shapes_of(device, length, {64, 128}, causal));
  }
  return sweep;
}

namespace {

// Groups of heads need more heads: the study copied keys and values for groups of 1, 2, 4 and 8 heads.
Sweep variants_study(const DeviceInfo& device) {
  const Axis one_head = integers("q_heads", {1}), heads = integers("q_heads", {8});
  const Axis groups = integers("kv_heads", {8, 4, 2, 1}), index_and_copy = texts("kv_heads_by", {"index", "copy"});
  const Axis rope = texts("rope", {"before", sweep_span(device).large() ? "query" : "kernel"});
  return study_cases({texts("variant", {"tuned"}), integers("batch", {1}), integers("q_len", study_lengths),
                      integers("head_dim", {64}), integers("causal", {0}), texts("dtype", {"f32"}),
                      texts("out_dtype", {"f32"}), texts("layout", {"bhsd"})},
                     {{one_head, integers("alibi", {0, 1})},
                      {one_head, integers("alibi", {1}), texts("score_by", {"run_time"})},
                      {one_head, rope},
                      {one_head, texts("task", {"rope"})},
                      {heads, groups, index_and_copy},
                      {heads, groups, texts("task", {"expand"})}});
}

// A case of task=expand has only keys and values: no queries, no tile and no modifiers.
void complete_expand(Case& config) {
  if (!config.has("kv_heads")) config.set("kv_heads", config.integer("q_heads"));
  if (!config.has("kv_len")) config.set("kv_len", config.integer("q_len"));
  config.set("kv_heads_by", std::string("copy"));
  config.set("variant", std::string("none"));
  config.set("out_dtype", config.text("dtype"));
  for (const char* axis : {"q_len", "causal", "block_r", "block_c"}) config.set(axis, int64_t{0});
}

}  // namespace

void complete_variants(Case& config, const DeviceInfo& device) {
  if (!config.has("task")) config.set("task", std::string("attention"));
  const std::string task = config.text("task");
  const bool turns_alone = task == "rope", copies_alone = task == "expand";
  for (const auto& [axis, off] : modifier_axes()) {
    if (!config.has(axis.name) || task != "attention") config.set(axis.name, off);
  }
  if (turns_alone) {  // the axes of attention have no meaning
    config.set("rope", std::string("before"));
    config.set("causal", int64_t{0});
    config.set("variant", std::string("tuned"));
  }
  for (const auto& [axis, off] : rotary_axes()) {
    if (!config.has(axis.name) || config.text("rope") == "none") config.set(axis.name, off);
  }
  if (!config.has("kv_heads_by") || turns_alone) config.set("kv_heads_by", std::string("index"));
  if (copies_alone) return complete_expand(config);
  const int64_t left = config.integer("window_left"), right = config.integer("window_right");
  const bool causal = config.integer("causal") != 0;
  TileHints hints;
  if (left >= 0 && (causal || right >= 0)) hints.window = left + 1 + (causal ? 0 : right);
  Case without_rope = config;
  without_rope.set("rope", std::string("none"));
  hints.change = config.text("score_function") != "none" ? ScoreChange::any : modifiers_of(without_rope).score_change();
  hints.reads = config.text("bias") != "none";
  complete_modified(config, device, hints);
}

ExperimentSpec variants_experiment() {
  return {.name = "proto7_variants",
          .summary = "Modifiers of attention: what each costs as a hook of one kernel.",
          .axes = variants_axes(),
          .compared_axes = variants_compared_axes(),
          .default_tile = false,
          .narrowing_axes = variants_narrowing_axes(),
          .claims = [](const DeviceInfo&) { return variants_claims(); },
          .alternatives = {"kv_heads_by", "block_r", "block_c"},
          .sweep = variants_sweep,
          .study_sweep = variants_study,
          .complete = complete_variants,
          .plan = variants_case_plan,
          .make = variants_problems(),
          .input_axes = flash_input_axes,
          .file_options = function_options(),
          .file_sweep = functions_sweep,
          .prepare = require_functions};
}

}  // namespace attn
