#include "proto1_flash/sweep.h"

#include <algorithm>
#include <utility>

#include "common/cases/axes.h"
#include "common/cases/problem.h"
#include "common/cases/study_cases.h"
#include "common/cases/study_layout.h"
#include "common/experiment/sweep_span.h"
#include "proto1_flash/claims.h"

namespace attn {

namespace {

/// add(own) makes a block from the axes of `own` and from each common axis that `own` does not name.
class Blocks {
 public:
  explicit Blocks(Block common) : common_(std::move(common)) {}
  void add(const Block& own) {
    Block axes = own;
    for (const Axis& axis : common_) {
      const bool named =
          std::any_of(own.begin(), own.end(), [&](const Axis& other) { return other.name == axis.name; });
      if (!named) axes.push_back(axis);
    }
    sweep_.blocks.push_back(std::move(axes));
  }
  Sweep take() { return std::move(sweep_); }

 private:
  Block common_;
  Sweep sweep_;
};

const Axis dims = integers("head_dim", {64, 128, 256});
const Axis masks = integers("causal", {0, 1});
const Axis dtypes = texts("dtype", {"f32", "f16", "bf16"});
const Axis layouts = texts("layout", {"bhsd", "bshd"});

Sweep small_sweep(const SweepSpan& span, bool full) {
  const Axis tiles_r = integers("block_r", span.block_r), tiles_c = integers("block_c", span.block_c);
  const Axis ladder = texts("variant", span.ladder);
  const Axis small_r = integers("block_r", {64}), small_c = integers("block_c", {64});
  Blocks blocks({texts("variant", {"tuned"}), integers("batch", {1}), integers("q_heads", {8}),
                 integers("q_len", {1024}), integers("head_dim", {128}), integers("causal", {0}),
                 texts("dtype", {span.dtype}), texts("out_dtype", {span.dtype}), texts("layout", {"bhsd"})});
  blocks.add({dims, tiles_r, tiles_c});
  blocks.add({ladder, integers("q_len", {512}), integers("head_dim", {64}), small_r, small_c});
  // These cases show the rate at each length, with the default tile.
  const std::vector<int64_t> lengths = {256, 512, 1024, 2048, 4096};
  blocks.add({dims, masks, integers("q_len", full ? lengths : std::vector(lengths.begin(), lengths.end() - 1))});
  blocks.add({dtypes, integers("head_dim", {64, 128})});
  blocks.add({layouts, integers("head_dim", {64, 128})});
  blocks.add({integers("head_dim", {80, 96, 192})});
  blocks.add({integers("q_len", {1000, 1537})});
  if (!full) return blocks.take();

  blocks.add({dims, tiles_r, tiles_c, masks, dtypes, integers("q_len", {1024, 2048})});
  blocks.add({ladder, dims, masks, integers("q_len", {256, 512, 1024}), small_r, small_c});
  // These cases have one head, to keep the launches on long sequences short.
  blocks.add({integers("q_heads", {1}), dims, masks, dtypes, integers("q_len", {4096, 8192, 16384})});
  blocks.add({integers("q_heads", {12}), integers("kv_heads", {1, 4, 12}), masks});
  blocks.add({integers("q_len", {1, 17, 100}), integers("kv_len", {4096}), masks});
  blocks.add({dtypes, texts("out_dtype", {"f32", "f16", "bf16"})});
  blocks.add({integers("batch", {3}), layouts, masks, dtypes});
  return blocks.take();
}

// Most blocks have the shapes of the tables in Shah et al. 2024 (FlashAttention-3): 16384 tokens in all sequences
// together, 2048 / head_dim heads, 16-bit elements.
Sweep large_sweep(const SweepSpan& span, bool full) {
  constexpr int64_t tokens = 16384, width = 2048;
  const Axis tiles_r = integers("block_r", span.block_r), tiles_c = integers("block_c", span.block_c);
  Blocks blocks({texts("variant", {"tuned"}), integers("batch", {4}), integers("q_heads", {16}),
                 integers("q_len", {4096}), integers("head_dim", {128}), integers("causal", {0}),
                 texts("dtype", {span.dtype}), texts("out_dtype", {span.dtype}), texts("layout", {"bhsd"})});
  const auto of_length = [](int64_t length) {
    return std::pair(integers("batch", {std::max<int64_t>(1, tokens / length)}), integers("q_len", {length}));
  };
  for (const int64_t dim : {64, 128, 256}) {
    const Axis head_dim = integers("head_dim", {dim}), heads = integers("q_heads", {width / dim});
    blocks.add({head_dim, heads, tiles_r, tiles_c, full ? masks : integers("causal", {0})});
    // These cases show the rate at each length, with the default tile.
    for (const int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) {
      if (!full && length > 4096) continue;
      const auto [batch, q_len] = of_length(length);
      blocks.add({head_dim, heads, batch, q_len, masks});
    }
  }
  blocks.add({texts("variant", span.ladder), integers("batch", {1}), integers("q_len", {1024}),
              integers("head_dim", {64, 128})});
  blocks.add({dtypes, integers("head_dim", {64, 128}), integers("batch", {1})});
  blocks.add({layouts, integers("head_dim", {64, 128})});
  blocks.add({integers("head_dim", {80, 96, 192})});
  blocks.add({integers("q_len", {1000, 1537})});
  // As in large models: 8 query heads for each key/value head.
  for (const int64_t length : {2048, 4096, 8192, 16384, 32768}) {
    if (!full && length > 2048) continue;
    blocks.add({integers("batch", {1}), integers("q_heads", {64}), integers("kv_heads", {8}),
                integers("q_len", {length}), masks});
  }
  if (!full) return blocks.take();

  blocks.add({integers("q_heads", {12}), integers("kv_heads", {1, 4, 12}), masks});
  blocks.add({integers("q_len", {1, 17, 100}), integers("kv_len", {4096}), masks});
  blocks.add({texts("dtype", {"f16", "bf16"}), texts("out_dtype", {"f32", "f16", "bf16"})});
  blocks.add({integers("batch", {3}), layouts, masks, dtypes, integers("q_len", {1024})});
  return blocks.take();
}

// Tries the device's tiles and the study's best one, 16x64. The default tile has no axes.
Sweep flash_study(const DeviceInfo& device) {
  SweepSpan span = sweep_span(device);
  span.block_r.push_back(16);
  span.block_c.push_back(64);
  const Axis tuned = texts("variant", {"tuned"}), ladder = texts("variant", span.ladder);
  const Axis small_r = integers("block_r", {64}), small_c = integers("block_c", {64});
  return study_cases(
      {integers("batch", {1}), integers("q_heads", {1}), integers("q_len", study_lengths), integers("head_dim", {64}),
       integers("causal", {0}), texts("dtype", {"f32"}), texts("out_dtype", {"f32"}), texts("layout", {"bhsd"})},
      {{tuned},
       {tuned, integers("block_r", span.block_r), integers("block_c", span.block_c)},
       {ladder, small_r, small_c}});
}

}  // namespace

std::vector<std::string> flash_tile_axes() { return {"block_r", "block_c"}; }

Sweep flash_sweep(const std::string& profile, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  return (span.large() ? large_sweep : small_sweep)(span, profile == "full");
}

ExperimentSpec flash_experiment() {
  std::vector<std::string> compared = flash_tile_axes();
  compared.insert(compared.begin(), "variant");
  return {.name = "proto1_flash",
          .summary = "Flash attention forward: tile sizes, and what each step of tuning saves.",
          .axes = flash_axes(),
          .compared_axes = compared,
          .claims = flash_claims,
          .sweep = flash_sweep,
          .study_sweep = flash_study,
          .complete = complete_flash,
          .plan = flash_plan,
          .make = flash_problems(),
          .input_axes = flash_input_axes,
          .study_bytes = [](const Case& config, const DeviceInfo& device) -> size_t {
            if (!names_study_bytes(device) || config.text("variant") != "tuned") return 0;
            return study_flash_bytes(config.integer("head_dim"), config.integer("block_r"), config.integer("block_c"));
          }};
}

}  // namespace attn
