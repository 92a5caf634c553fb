#include "proto3_paged/sweep.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/attention/modifiers.h"
#include "common/cases/axes.h"
#include "common/cases/modifier_axes.h"
#include "common/cases/study_cases.h"
#include "common/cases/study_layout.h"
#include "common/experiment/sweep_span.h"
#include "proto3_paged/claims.h"
#include "proto3_paged/problem.h"

namespace attn {
namespace {

// Returns the modifiers of proto7_variants that this experiment has too: the options of caches with a number, and
// sinks. The keys of claims name these axes in this order, so a new modifier stands last.
std::vector<std::string> names_of_modifiers() {
  std::vector<std::string> names = {"alibi", "soft_cap", "sinks", "window_left"};
#define ATTN_MODIFIER(type, name, ...) \
  if (std::ranges::find(names, #name) == names.end()) names.emplace_back(#name);
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
  return names;
}
const std::vector<std::string> modifiers = names_of_modifiers();

Sweep paged_study(const DeviceInfo& /*device*/) {
  const Axis sizes = integers("page_size", {0, 8, 16, 32, 64}), pages = integers("page_size", {16});
  const Axis append = texts("append", {"none", "fused", "chain"}), lengths = integers("kv_len", study_lengths);
  std::vector<Block> blocks = {
      {lengths, sizes}, {lengths, pages, texts("reduce", {"last", "launch"})}, {lengths, pages, append}};
  for (const int64_t tokens : study_lengths) {  // whole prompts
    const Block prompt = {texts("task", {"prefill"}), integers("q_len", {tokens}), integers("kv_len", {tokens})};
    blocks.push_back(prompt);
    blocks.back().push_back(sizes);
    blocks.push_back(prompt);
    blocks.back().insert(blocks.back().end(), {pages, append});
  }
  return study_cases({integers("batch", {1}), integers("q_heads", {1}), integers("kv_heads", {1}),
                      integers("head_dim", {64}), texts("dtype", {"f32"})},
                     std::move(blocks));
}

}  // namespace

std::vector<AxisInfo> paged_axes() {
  std::vector<AxisInfo> axes = {
      {"task", "decode: few new queries of each sequence; prefill: many new queries", {"decode", "prefill"}},
      {"page_size", "tokens of a page; 0: the cache is contiguous", {}, 0, 4096, 1},
      {"page_order",
       "where pages lie in the pool: identity: by sequence; reversed: by sequence, from the end; random: anywhere; "
       "shared: by sequence, with one copy of the tokens that all sequences begin with",
       {"identity", "reversed", "random", "shared"}},
      {"shared_pct", "tokens that all sequences begin with, in percent of kv_len", {}, 1, 99, 1},
      {"cascade", "1: with page_order=shared the shared pages are read once for all sequences", {}, 0, 1, 1},
      {"cache_layout", "order in a page: nhd: tokens, heads, dim; hnd: heads, tokens, dim", {"nhd", "hnd"}},
      {"workers", "threadgroups that divide the blocks of keys; 0: as many as run at once", {}, 0, 65535, 1},
      {"reduce",
       "who joins the parts of a tile of queries: last: the tile's last worker, on a GPU all that left parts; "
       "launch: a second launch",
       {"last", "launch"}},
      {"lengths",
       "equal: each sequence has kv_len tokens; ragged: the first sequence has kv_len tokens, one other sequence has "
       "none, the rest have 1 to kv_len; chat: many sequences are short, half are below a quarter of kv_len",
       {"equal", "ragged", "chat"}},
      {"cache_dtype",
       "type of K and V, by default dtype; e4m3 and int8 have a scale for each page and head",
       {"f32", "f16", "bf16", "e4m3", "int8"}},
      {"append",
       "how the new tokens get into the cache: none: the tokens are in the cache before the launch; fused: the launch "
       "of attention turns them (RoPE) and writes them; chain: one launch turns them, another launch writes them",
       {"none", "fused", "chain"}},
      {"rotary_dim", "elements of a row that RoPE turns if tokens are appended; 0: all", {}, 0, 512, 2},
      {"rope_pairing", "which two elements of a row RoPE turns together", {"half_split", "interleaved"}}};
  for (const std::string& name : modifiers) {
    axes.push_back(
        std::ranges::find(modifier_axes(), name, [](const ModifierAxis& one) { return one.axis.name; })->axis);
  }
  for (AxisInfo& axis : flash_axes()) {
    if (axis.name == "variant" || axis.name == "layout" || axis.name == "block_r") continue;
    if (axis.name == "q_len") axis.help = "new queries of a sequence, its last tokens; at most 16 with task decode";
    if (axis.name == "kv_len") axis.help = "tokens of the longest sequence, its new tokens included";
    if (axis.name == "dtype") axis.help = "type of Q";
    if (axis.name == "block_c")
      axis.help = "keys of a block; by default 64 with task decode, the kernel's choice with task prefill";
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<std::string> paged_compared_axes() {
  std::vector<std::string> axes = {"page_size", "page_order",  "cache_layout", "workers", "reduce",
                                   "block_c",   "cache_dtype", "append",       "cascade"};
  axes.insert(axes.end(), modifiers.begin(), modifiers.end());
  return axes;
}

Sweep paged_sweep(const std::string& profile, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  const bool full = profile == "full", large = span.large();
  Sweep sweep;
  // Adds a block of cases. An axis of `own` replaces the default axis of the same name.
  const auto add = [&](Block own) {
    for (Axis& axis : Block{integers("batch", {large ? 8 : 1}), integers("q_heads", {large ? 32 : 8}),
                            integers("kv_heads", {large ? 8 : 2}), integers("kv_len", {8192}),
                            integers("head_dim", {128}), texts("dtype", {span.dtype})}) {
      if (std::ranges::find(own, axis.name, &Axis::name) == own.end()) own.push_back(std::move(axis));
    }
    sweep.blocks.push_back(std::move(own));
  };
  const std::vector<int64_t> all_sizes = {0, 1, 8, 16, 24, 32, 64, 128, 256};
  const Axis pages = integers("page_size", {16}), either = integers("page_size", {0, 16});
  const Axis batch = integers("batch", {large ? 64 : 8}), short_ones = integers("kv_len", {2048});
  const Axis workers = integers("workers", large ? std::vector<int64_t>{0, 33, 66, 132, 264, 528, 1056}
                                                 : std::vector<int64_t>{0, 1, 2, 4, 8, 32});
  const Axis reduce = texts("reduce", {"last", "launch"}), ragged = texts("lengths", {"ragged"});
  const Axis unlike = texts("lengths", {"ragged", "chat"});
  add({integers("page_size", all_sizes)});
  add({integers("kv_len", {1024, 32768}), integers("page_size", full ? all_sizes : std::vector<int64_t>{0, 16, 64})});
  add({batch, short_ones, pages, texts("page_order", {"identity", "reversed", "random", "shared"})});
  add({batch, short_ones, unlike, full ? integers("page_size", all_sizes) : either});
  add({batch, short_ones, ragged, pages, workers});
  add({pages, workers});
  add({integers("kv_len", {1024, 8192}), pages, reduce});
  add({either, texts("cache_layout", {"nhd", "hnd"})});
  add({integers("q_heads", large ? std::vector<int64_t>{8, 32, 64} : std::vector<int64_t>{2, 8, 16}), pages});
  add({pages, integers("block_c", large ? std::vector<int64_t>{64, 128} : std::vector<int64_t>{32, 64, 128, 256})});
  add({integers("kv_len", {32768}), pages, texts("cache_dtype", {"bf16", "e4m3", "int8"})});
  add({integers("page_size", {64}), integers("head_dim", {64})});
  const Axis several = integers("q_len", {1, 4, 16});
  add({pages, several});
  if (large) {
    for (const auto& [sequences, tokens, q_heads, kv_heads] :
         {std::array<int64_t, 4>{1, 131072, 64, 8}, {32, 16384, 16, 2}}) {
      add({integers("batch", {sequences}), integers("kv_len", {tokens}), integers("q_heads", {q_heads}),
           integers("kv_heads", {kv_heads}), pages, several});
    }
    add({integers("batch", {4}), integers("kv_len", {16384}), integers("q_heads", {8}), integers("kv_heads", {1}),
         integers("head_dim", {256}), pages, several});
  }
  const Axis shared = texts("page_order", {"shared"}), cascade = integers("cascade", {0, 1});
  add({batch, short_ones, pages, shared, integers("shared_pct", {25, 75}), cascade});
  // Adds a block with the heads of TinyLlama-1.1B and a block with the heads of Llama-3-8B. Each block decodes one
  // token of each sequence, or prefills whole prompts if `prompts` is true.
  const Axis prefill = texts("task", {"prefill"});
  const auto add_models = [&](int64_t sequences, int64_t tokens, bool prompts = false) {
    for (const auto& [kv_heads, head_dim] : {std::pair{4, 64}, {8, 128}}) {
      Block block = {integers("batch", {sequences}),
                     integers("q_heads", {32}),
                     integers("kv_heads", {kv_heads}),
                     integers("kv_len", {tokens}),
                     integers("head_dim", {head_dim}),
                     pages,
                     texts("append", {"none", "fused", "chain"})};
      if (prompts) block.insert(block.end(), {prefill, integers("q_len", {tokens})});
      add(std::move(block));
    }
  };
  add_models(1, 1024);
  add_models(1, large ? 1024 : 256, true);
  const Axis alibi = integers("alibi", {1}), soft_cap = integers("soft_cap", {30}), sinks = integers("sinks", {1});
  const Axis window = integers("window_left", {4096}), long_one = integers("kv_len", {32768});
  for (const Axis& modifier : {alibi, soft_cap, window}) add({long_one, pages, modifier});
  // Adds a block that prefills a chunk of each prompt, or the whole prompt if `queries` equals `tokens`.
  const auto add_prefill = [&](int64_t sequences, int64_t queries, int64_t tokens, const Axis& page_sizes) {
    add({integers("batch", {sequences}), integers("q_len", {queries}), integers("kv_len", {tokens}), page_sizes,
         prefill});
  };
  if (large) {
    add_prefill(8, 512, 32768, integers("page_size", full ? all_sizes : std::vector<int64_t>{0, 8, 16, 64, 128}));
  } else {
    add_prefill(1, 512, 2048, integers("page_size", full ? all_sizes : std::vector<int64_t>{0, 1, 16, 64}));
  }
  if (!full) return sweep;
  if (large) add_prefill(1, 8192, 8192, either);
  add_prefill(1, 1024, 1024, either);
  add({integers("batch", {2, 8, large ? 128 : 16}), short_ones, pages, shared, integers("shared_pct", {25, 75, 95}),
       cascade});
  add({long_one, pages, sinks});
  add({long_one, pages, alibi, soft_cap, sinks, window});
  add({long_one, integers("page_size", {0}), integers("window_left", {1024, 4096})});
  for (const Axis& modifier : {alibi, soft_cap, integers("window_left", {512})}) {
    add({batch, short_ones, ragged, pages, modifier});
  }
  add_models(1, 4096);
  add_models(1, large ? 8192 : 1024, true);
  add_models(16, 4096);
  add({either, integers("head_dim", {64, 96, 192, 256})});
  add({either,
       texts("cache_dtype", large ? std::vector<std::string>{"bf16"} : std::vector<std::string>{"f16", "bf16"})});
  add({either, integers("q_len", {2, 4, 8, 16})});
  add({integers("kv_len", {2048, 4096, 16384}), integers("page_size", {0, 16, 64, 256})});
  add({batch, short_ones, integers("page_size", {1, 64, 256}), texts("page_order", {"identity", "random"})});
  // Each load is a number of sequences and a number of tokens for each sequence. On the cpu the sequences of a load
  // have at most 65536 tokens together, and their K and V take at most 134 MB.
  const std::vector<std::pair<int64_t, int64_t>> loads =
      large ? std::vector<std::pair<int64_t, int64_t>>{{1, 1024}, {1, 32768}, {1, 131072}, {16, 8192}, {64, 4096}}
            : std::vector<std::pair<int64_t, int64_t>>{{1, 1024}, {1, 32768}, {8, 8192}, {64, 1024}};
  for (const auto& [sequences, tokens] : loads) {
    for (const Axis& shared_out : {workers, reduce}) {
      add({integers("batch", {sequences}), integers("kv_len", {tokens}), pages, shared_out});
    }
    add({integers("batch", {sequences}), integers("kv_len", {tokens}), either});
  }
  return sweep;
}

void complete_paged(Case& config, const DeviceInfo& device) {
  config.set_default("task", std::string("decode"));
  config.set_default("page_size", int64_t{0});
  config.set_default("page_order", std::string("identity"));
  if (config.integer("page_size") == 0) config.set("page_order", std::string("identity"));
  for (const auto& [axis, off] : modifier_axes()) {
    if (std::ranges::find(modifiers, axis.name) != modifiers.end()) config.set_default(axis.name, off);
  }
  config.set_default("append", std::string("none"));
  config.set_default("rotary_dim", int64_t{0});
  config.set_default("rope_pairing", std::string("half_split"));
  if (config.text("append") == "none") {
    config.set("rotary_dim", int64_t{0});
    config.set("rope_pairing", std::string("half_split"));
  }
  config.set_default("shared_pct", int64_t{25});
  config.set_default("cascade", int64_t{0});
  config.set_default("cache_layout", std::string("nhd"));
  config.set_default("workers", int64_t{0});
  config.set_default("reduce", std::string("last"));
  config.set_default("lengths", std::string("equal"));
  config.set_default("q_len", int64_t{1});
  config.set_default("causal", int64_t{1});
  config.set_default("cache_dtype", config.text("dtype"));
  config.set_default("out_dtype", config.text("dtype"));
  config.set_default("kv_heads", config.integer("q_heads"));
  if (config.has("block_c")) return;
  config.set("block_c", int64_t{config.text("task") == "prefill" ? 0 : 64});
  if (config.text("task") == "decode") return;
  const PagedConfig paged = PagedConfig::from(config);
  const std::optional<AttentionHooks> hooks = paged_texts(paged);
  config.set("block_c", prefill_config(paged.decode, device, hooks ? &*hooks : nullptr).block_c);
}

ExperimentSpec paged_experiment() {
  return {.name = "proto3_paged",
          .summary = "Attention over paged and contiguous key/value caches.",
          .axes = paged_axes(),
          .compared_axes = paged_compared_axes(),
          .default_tile = false,
          .claims = paged_claims,
          .alternatives = {"page_size", "page_order", "cache_layout", "workers", "reduce", "block_c", "cascade"},
          .sweep = paged_sweep,
          .study_sweep = paged_study,
          .complete = complete_paged,
          .plan = paged_case_plan,
          .make = paged_problems(),
          .study_bytes = [](const Case& config, const DeviceInfo& device) -> size_t {
            const int64_t page_size = config.integer("page_size");
            return names_study_bytes(device) && page_size > 0 ? study_page_bytes(config.integer("head_dim"), page_size)
                                                              : 0;
          }};
}

}  // namespace attn
