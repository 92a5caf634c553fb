// The mask hook, and its lists. The list of a tile of rows names each block that has a key that some row of the tile
// sees. Most tests run kernels with and without lists on the device under test. Both outputs must agree with the oracle
// and with each other. Other tests check the lists, compile kernels for a GPU, or expect that the comparison with the
// oracle catches kernels that are broken on purpose.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/attention/mask_lists.h"
#include "common/attention/tests/flash_run.h"
#include "common/attention/tests/path_device.h"
#include "common/testing/captured_log.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"

namespace attn {
namespace {

using test::device;
using test::KernelPath;
using test::MutatedSources;
using test::on_cuda;

constexpr const char* mask_file = "common/attention/kernels/mask.h";
constexpr const char* kernel_folder = "common/attention/kernels/";

// ---- masks

/// A mask hook, and a function with the same rule for the oracle.
struct Mask {
  const char* name;
  ListScope scope;
  const char* body;  // the body of visible()
  std::function<bool(const AttentionShape&, int64_t batch, int64_t head, int64_t q, int64_t k)> visible;
};

std::vector<Mask> masks() {
  return {
      // Some pairs of every block are hidden.
      {"stripes", ListScope::all, "return (k / 7 + q / 5) % 3 != 0;",
       [](const AttentionShape&, int64_t, int64_t, int64_t q, int64_t k) { return (k / 7 + q / 5) % 3 != 0; }},
      // A window and global tokens.
      {"tokens", ListScope::all, "const int own = q + c.kv_len - c.q_len;\n  return k >= own - 9 || k < 5 || own < 5;",
       [](const AttentionShape& s, int64_t, int64_t, int64_t q, int64_t k) {
         const int64_t own = q + s.kv_len - s.q_len;
         return k >= own - 9 || k < 5 || own < 5;
       }},
      // Each square of 64 queries x 64 keys is seen as a whole or hidden as a whole. Which squares are seen depends on
      // the sequence and the head too.
      {"blocks", ListScope::head, "return (k / 64 + 2 * (q / 64) + c.head + c.batch) % 3 == 0;",
       [](const AttentionShape&, int64_t batch, int64_t head, int64_t q, int64_t k) {
         return (k / 64 + 2 * (q / 64) + head + batch) % 3 == 0;
       }},
      // Some sequences and some rows see no key.
      {"nothing", ListScope::sequence, "return c.batch != 0 && q / 64 != 1 && (k < 70 || q % 2 != 0);",
       [](const AttentionShape&, int64_t batch, int64_t, int64_t q, int64_t k) {
         return batch != 0 && q / 64 != 1 && (k < 70 || q % 2 != 0);
       }},
      // Some rows see no key in the first blocks, the other rows see no key in the last blocks.
      {"ends", ListScope::all, "return (q % 2 == 0) == (k < 70);",
       [](const AttentionShape&, int64_t, int64_t, int64_t q, int64_t k) { return (q % 2 == 0) == (k < 70); }},
      // A table of all pairs says which pairs are seen.
      {"table", ListScope::all, "return static_cast<const unsigned char*>(c.data)[q * c.kv_len + k] != 0;",
       [](const AttentionShape&, int64_t, int64_t, int64_t q, int64_t k) { return (q * 31 + k * 17) % 97 < 11; }}};
}

const Mask& mask_of(std::string_view name) {
  static const std::vector<Mask> all = masks();
  return *std::find_if(all.begin(), all.end(), [&](const Mask& mask) { return mask.name == name; });
}

AttentionHooks hooks_of(const Mask& mask, const AttentionShape& shape, bool lists) {
  AttentionHooks hooks;
  // On the cpu the hook ends the program if a kernel asks about a pair that does not exist.
  hooks.includes[mask_file] = fmt::format(
      "#pragma once\n#include \"common/attention/kernels/attention.h\"\n#define MASK_IS_NONE 0\n"
      "static inline bool visible(int q, int k, const ScoreContext& c) {{\n"
      "#ifndef __CUDACC__\n"
      "  if (q < 0 || q >= c.q_len || k < 0 || k >= c.kv_len) __builtin_trap();\n#endif\n  {}\n}}\n",
      mask.body);
  hooks.change = ScoreChange::none;
  hooks.lists = lists ? mask.scope : ListScope::none;
  hooks.name = mask.name;
  for (int64_t q = 0; q < shape.q_len; ++q) {
    for (int64_t k = 0; k < shape.kv_len; ++k) hooks.data.push_back(std::byte{mask.visible(shape, 0, 0, q, k)});
  }
  hooks.reference = [visible = mask.visible, shape](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    for (size_t k = 0; k < scores.size(); ++k) {
      if (!visible(shape, batch, head, q, static_cast<int64_t>(k)))
        scores[k] = -std::numeric_limits<double>::infinity();
    }
  };
  return hooks;
}

// ---- kernels

std::vector<KernelPath> paths() {
  std::vector<KernelPath> all = test::kernel_paths(on_cuda);
  const char* naive = on_cuda ? "common/attention/kernels/naive.cuda.cu" : test::naive_file;
  all.push_back({"naive", "naive", naive, DType::f32});
  if (!on_cuda) {
    all.push_back({"tiled_scalar", "tiled_scalar", test::tiled_file, DType::f32});
    all.push_back({"tiled_vector", "tiled_vector", test::tiled_file, DType::f32});
  }
  return all;
}

FlashConfig config_of(const KernelPath& path) {
  FlashConfig config;
  config.variant = path.variant;
  config.dtype = config.out_dtype = path.dtype;
  config.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 75, .kv_len = 141, .head_dim = 40};
  config.block_r = 64;
  config.block_c = 32;
  return config;
}

struct Outcome {
  Check check;
  std::vector<float> o, lse;  // compared as floats: 0 and -0 are equal
};

Outcome run_with(const AttentionHooks& hooks, const FlashConfig& config, Device& on, PipelineCache& cache,
                 const std::shared_ptr<FlashInputs>& inputs) {
  FlashProblem problem(on, cache, inputs, config, attention_plan(config, on.info(), &hooks), hooks);
  problem.poison();
  CommandEncoder encoder;
  problem.encode(encoder);
  problem.encode(encoder);  // the second launch uses the lists that were made for the first launch
  on.submit(encoder);
  const Tensor o = convert(problem.output(), DType::f32, Layout::bhsd);
  const auto* values = reinterpret_cast<const float*>(o.data.data());
  return {problem.check(), {values, values + o.bytes() / sizeof(float)}, problem.lse()};
}

class MaskVariants : public test::OnPath<KernelPath> {
 protected:
  const KernelPath& path() const override { return GetParam(); }

  void expect_right(const FlashConfig& config, const Mask& mask) {
    const auto inputs = std::make_shared<FlashInputs>(on(), config, 7, "");
    const std::string what = fmt::format("{} {}", mask.name, test::describe(config));
    const Outcome asked = run_with(hooks_of(mask, config.shape, false), config, on(), pipelines(), inputs);
    const Outcome listed = run_with(hooks_of(mask, config.shape, true), config, on(), pipelines(), inputs);
    EXPECT_TRUE(asked.check.ok) << what << ": " << asked.check.worst;
    EXPECT_TRUE(listed.check.ok) << what << " with lists: " << listed.check.worst;
    EXPECT_TRUE(listed.o == asked.o && listed.lse == asked.lse)
        << what << ": the results with and without lists differ";
  }
};
INSTANTIATE_TEST_SUITE_P(All, MaskVariants, testing::ValuesIn(paths()),
                         [](const auto& test) { return test.param.name; });

// If $ATTN_TEST_ALL is set, every kernel runs every mask, with and without causal attention. If not, `tuned` and the
// kernels of 16-bit types run only every second mask, and a mask runs either with or without causal attention.
TEST_P(MaskVariants, OddShapes) {
  const bool every_mask = path().dtype == DType::f32 && std::string_view(path().variant) != "tuned";
  test::Some some(every_mask ? 1 : 2);
  bool with_causal = true;
  for (const Mask& mask : masks()) {
    if (some.skips()) continue;
    with_causal = !with_causal;
    for (const auto& [q_len, kv_len] : {std::pair{75, 141}, {1, 1}, {50, 20}, {33, 64}, {1, 130}, {130, 129}}) {
      for (const bool causal : {false, true}) {
        if (causal != with_causal && !test::Some::all()) continue;
        FlashConfig config = config_of(path());
        config.shape.q_len = q_len;
        config.shape.kv_len = kv_len;
        config.shape.causal = causal;
        config.layout = causal ? Layout::bhsd : Layout::bshd;
        expect_right(config, mask);
      }
    }
  }
}

// The tiles have many rows, so a group of rows of a tile (for example, the rows of one warp of mma_sync) can see other
// blocks of keys than the tile's other rows. There are more queries than rows of a tile.
TEST_P(MaskVariants, LargerTiles) {
  test::Some some(5);
  for (const char* name : {"stripes", "tokens", "blocks"}) {
    for (const int64_t rows : {128, 192}) {
      for (const bool causal : {false, true}) {
        if (some.skips()) continue;
        FlashConfig config = config_of(path());
        config.shape = {.q_heads = 3, .kv_heads = 1, .q_len = 300, .kv_len = 333, .head_dim = 64, .causal = causal};
        config.block_r = rows;
        config.block_c = 64;
        if (test::skip_reason(config, on().info())) continue;
        expect_right(config, mask_of(name));
      }
    }
  }
}

// ---- lists

/// Returns the right list of a tile, by asking the mask about each pair of the tile. An entry is twice the number of a
/// block, plus 1 ("masked") unless all rows of the tile see the whole block.
std::vector<int> expected_list(const FlashConfig& config, const Mask& mask, int64_t batch, int64_t head,
                               int64_t first) {
  const AttentionShape& s = config.shape;
  std::vector<int> list;
  for (int64_t block = 0; block * config.block_c < s.kv_len; ++block) {
    bool some = false, all = (block + 1) * config.block_c <= s.kv_len;
    for (int64_t q = std::max<int64_t>(first, 0); q < std::min(first + config.block_r, s.q_len); ++q) {
      for (int64_t k = block * config.block_c; k < std::min((block + 1) * config.block_c, s.kv_len); ++k) {
        const bool seen = k < s.keys_seen(q) && mask.visible(s, batch, head, q, k);
        some |= seen;
        all &= seen;
      }
    }
    if (some) list.push_back(static_cast<int>(2 * block + !all));
  }
  return list;
}

AttentionParams params_of(const AttentionShape& shape, const Buffer& data) {
  AttentionParams params{};
  params.q_heads = static_cast<int>(shape.q_heads);
  params.q_len = static_cast<int>(shape.q_len);
  params.kv_len = static_cast<int>(shape.kv_len);
  params.score_data = data.data();
  return params;
}

/// Describes the first wrong list. Returns an empty text if all lists are right.
std::string wrong_list(const FlashConfig& config, const Mask& mask, PipelineCache& cache) {
  const DeviceInfo& info = device().info();
  const AttentionShape& s = config.shape;
  const AttentionHooks hooks = hooks_of(mask, s, true);
  const Launch launch = mask_launch(config, info, attention_launch(config, info, &hooks), mask.scope);
  const Buffer data = uploaded(device(), hooks.data);
  const FlashOperation::Lists make = mask_lists(device(), config, launch, *cache.get(launch.source).kernel);
  const MaskLists lists = make(params_of(s, data));
  const int64_t first_query = FlashOperation::of(info).first_query(config, info);
  std::set<std::tuple<int64_t, int64_t, int64_t>> seen;
  for (const RowIndex& row : all_rows(s)) {
    const int64_t first = first_query + (row.q - first_query) / config.block_r * config.block_r;
    if (!seen.emplace(row.batch, row.head, first).second) continue;  // the rows of a tile share a list
    const long long number =
        number_of_list(lists, static_cast<int>(row.batch), static_cast<int>(row.head), static_cast<int>(first));
    int count = 0;
    device().download(&count, lists.counts + number, sizeof count);
    std::vector<int> list(static_cast<size_t>(lists.capacity));
    device().download(list.data(), lists.entries + number * lists.capacity, list.size() * sizeof(int));
    if (count == 0 && list[0] != 1) return "the memory of an empty list does not begin with 1 (block 0, masked)";
    if (count < 0 || count > lists.capacity)
      return fmt::format("a list has {} entries, not 0 to {}", count, lists.capacity);
    list.resize(static_cast<size_t>(count));
    const std::vector<int> expected = expected_list(config, mask, row.batch, row.head, first);
    if (list != expected) {
      return fmt::format("batch {} head {} tile at {}: {}, not {}", row.batch, row.head, first, fmt::join(list, " "),
                         fmt::join(expected, " "));
    }
  }
  return "";
}

FlashConfig list_config(bool causal) {
  FlashConfig config = config_of(test::kernel_paths(on_cuda).front());
  config.shape = {.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 300, .kv_len = 2100, .head_dim = 64};
  config.shape.causal = causal;
  config.block_r = 128;
  return config;
}

class MaskListsVariants : public test::OnDevice<testing::Test> {};

TEST_F(MaskListsVariants, HaveTheBlocksThatSomeRowSees) {
  for (const Mask& mask : masks()) {
    for (const bool causal : {false, true}) {
      FlashConfig config = list_config(causal);
      EXPECT_EQ(wrong_list(config, mask, test::pipelines()), "") << mask.name << " causal " << causal;
      config.shape.q_len = 70;  // more rows than keys
      config.shape.kv_len = 33;
      EXPECT_EQ(wrong_list(config, mask, test::pipelines()), "") << mask.name << " causal " << causal << ", short";
    }
  }
}

TEST_F(MaskListsVariants, AreMadeOnceForAHooksData) {
  const FlashConfig config = list_config(false);
  const DeviceInfo& info = device().info();
  const AttentionHooks hooks = hooks_of(mask_of("table"), config.shape, true);
  const Launch launch = mask_launch(config, info, attention_launch(config, info, &hooks), ListScope::all);
  const FlashOperation::Lists make = mask_lists(device(), config, launch, *test::pipelines().get(launch.source).kernel);
  const std::vector<std::byte> nothing(hooks.data.size());
  Buffer data = uploaded(device(), hooks.data);
  const Buffer other = uploaded(device(), nothing);
  const auto first_count = [&](const Buffer& hook_data) {
    int count = -1;
    device().download(&count, make(params_of(config.shape, hook_data)).counts, sizeof count);
    return count;
  };
  EXPECT_GT(first_count(data), 0);
  data.upload(nothing.data(), nothing.size());
  EXPECT_GT(first_count(data), 0) << "the lists were made anew for the same data";
  EXPECT_EQ(first_count(other), 0) << "the lists were not made anew for other data";
}

// The test makes lists that differ from the mask. A kernel must read only the listed blocks, and must ask the hook only
// about listed blocks whose entry says "masked".
TEST_P(MaskVariants, WalkOnlyTheListedBlocks) {
  if (path().variant == std::string("naive")) GTEST_SKIP() << "naive has no tiles";
  const Mask& stripes = mask_of("stripes");
  FlashConfig config = config_of(path());
  config.shape.kv_len = 320;
  constexpr int listed = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 8, masked = 1 << 3 | 1 << 8;  // bit i: block i of 32 keys
  AttentionHooks hooks = hooks_of(stripes, config.shape, true);
  hooks.name = "other lists";
  hooks.reference = [&](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto k = static_cast<int64_t>(i), block = k / 32;
      const bool seen =
          listed >> block & 1 && (!(masked >> block & 1) || stripes.visible(config.shape, batch, head, q, k));
      if (!seen) scores[i] = -std::numeric_limits<double>::infinity();
    }
  };
  const std::string other = fmt::format("{} >> block & 1 ? 2 * block + ({} >> block & 1)", listed, masked);
  const MutatedSources sources =
      on_cuda ? MutatedSources(std::string(kernel_folder) + "mask_blocks.cuda.cu", "some ? 2 * block + !all", other)
              : MutatedSources(std::string(kernel_folder) + "mask_blocks.cpu.cpp",
                               "if (some) entries[count++] = 2 * block + !all;",
                               "const int entry = " + other + " : -1;\n    if (entry >= 0) entries[count++] = entry;");
  PipelineCache fresh(on(), "");
  const auto inputs = std::make_shared<FlashInputs>(on(), config, 7, "");
  const Check check = run_with(hooks, config, on(), fresh, inputs).check;
  EXPECT_TRUE(check.ok) << check.worst;
}

// ---- without a GPU

using MaskCudaCompileTest = test::CudaCompilerTest;

// The kernels have the default tiles of the shapes. Only mma_sync without lists may spill registers. The compiler must
// not warn, for example that it serialises wgmma instructions.
TEST_F(MaskCudaCompileTest, OnlyMmaSyncWithoutListsMaySpill) {
  for (const char* variant : {"naive", "mma_sync", "wgmma"}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      for (const bool causal : {false, true}) {
        for (const char* name : {"tokens", "table"}) {
          FlashConfig config = test::hopper_flash(variant, DType::bf16, head_dim, 32);
          config.shape.causal = causal;
          choose_tile(config, test::hopper());
          for (const bool lists : {false, true}) {
            const AttentionHooks hooks = hooks_of(mask_of(name), {}, lists);
            const Launch launch = attention_launch(config, test::hopper(), &hooks);
            const test::CapturedLog log;
            const Binary binary = compiler_->compile(launch.source);
            // Without lists mma_sync keeps the range of keys in registers too. With block_c=128 and head_dim=64 the
            // kernel then spills some words.
            const bool may_spill = !lists && config.variant == "mma_sync";
            EXPECT_TRUE(binary.spill_bytes == 0 || may_spill) << name << " " << launch.source.key();
            EXPECT_EQ(log.text(), "") << name << " " << launch.source.key();
            if (!launch.source.constants.contains("MASK_LISTS") || !lists) continue;
            const Launch blocks = mask_launch(config, test::hopper(), launch, ListScope::all);
            EXPECT_EQ(compiler_->compile(blocks.source).spill_bytes, 0) << name;
            EXPECT_EQ(log.text(), "") << name;
          }
        }
      }
    }
  }
}

// ---- broken kernels that the checks catch

struct MaskMutation {
  const char *path, *what, *file, *from, *to;
  const char* mask = "tokens";
};

std::vector<MaskMutation> mask_mutations(bool of_cuda) {
  if (of_cuda) {
    return {{"naive", "mask_forgotten", "naive.cuda.cu", "!MASK_IS_NONE && !::visible(query, key, context)", "false"},
            {"mma_sync_bf16", "partial_flag_ignored", "mma_sync.cuda.cu",
             "!MASK_LISTS || lists_of(p).entries[list + block] & 1", "false"},
            {"mma_sync_bf16", "keys_of_another_block", "mma_sync.cuda.cu",
             "if constexpr (MASK_LISTS) find_keys(number);", ""},
            {"mma_sync_bf16", "first_entry_left_out", "mma_sync.cuda.cu", "KEYS_BEGIN_AT_ZERO || MASK_LISTS ? 0",
             "MASK_LISTS ? 1"},
            {"mma_sync_bf16", "list_of_another_tile", "mma_sync.cuda.cu", "lists_of(p), batch, head, first_query",
             "lists_of(p), batch, head, 0"},
            {"mma_sync_bf16", "pair_of_another_row", "mma_sync.cuda.cu", "find(row + i * 8,", "find(row,"},
            {"wgmma_bf16", "mask_forgotten", "wgmma.cuda.cu", "if (!seen[i / 2 % 2][i / 4 * 2 + i % 2])", "if (false)"},
            {"wgmma_bf16", "partial_flag_ignored", "wgmma.cuda.cu", "if ((entry & 1) == 0) return;", "return;"},
            {"wgmma_bf16", "keys_of_another_block", "wgmma.cuda.cu", "(list[key / BLOCK_C] >> 1) * BLOCK_C", "key"},
            {"wgmma_bf16", "mask_of_another_block", "wgmma.cuda.cu", "(entry >> 1) * BLOCK_C + column,", "column,"},
            {"wgmma_bf16", "list_of_another_head", "wgmma.cuda.cu", "bars.tile.head, bars.tile.first_query",
             "0, bars.tile.first_query", "blocks"},
            {"wgmma_bf16", "pair_of_another_column", "seen_pairs.h", "1u << (i % 32 + j)", "1u << (i % 32 + (j ^ 1))"},
            {"wgmma_bf16", "blocks_out_of_order", "mask_blocks.cuda.cu", "listed & ((1u << lane) - 1)",
             "listed & (1u << lane)"},
            {"wgmma_bf16", "list_without_its_flag", "mask_blocks.cuda.cu", "2 * block + !all", "2 * block"},
            {"wgmma_bf16", "blocks_in_part_left_out", "mask_blocks.cuda.cu", "some ? 2 * block", "all ? 2 * block"},
            {"wgmma_bf16", "whole_by_its_first_row", "mask_blocks.cuda.cu", "!__all_sync(~0u, all)) break",
             "true) break", "ends"}};
  }
  return {
      {"naive", "mask_forgotten", "naive.cpu.cpp", "!MASK_IS_NONE && !::visible(query, key, context)", "false"},
      {"tiled_vector", "mask_forgotten", "tiled.cpu.cpp", "!MASK_IS_NONE && blocks.masked && !::visible",
       "false && !::visible"},
      {"tiled_scalar", "mask_of_another_row", "tiled.cpu.cpp", "::visible(first_query + row", "::visible(first_query"},
      {"tuned_f32", "mask_forgotten", "tuned.cpu.cpp", "if (masked && key + r < keys)", "if (false)"},
      {"tuned_f32", "mask_of_another_key", "tuned.cpu.cpp", "VECTOR_WIDTH, first_key + key + r)",
       "VECTOR_WIDTH, first_key + key)"},
      {"bf16_dot", "rows_as_they_are", "tuned.cpu.cpp", "key >= hidden_from_some) && !masked",
       "key >= hidden_from_some)"},
      {"bf16_amx", "mask_forgotten", "amx.cpu.cpp", "if (masked) mask(", "if (false) mask("},
      {"bf16_amx", "mask_of_another_row", "amx.cpu.cpp", "::visible(min(first_query + row,",
       "::visible(min(first_query,"},
      {"tuned_f32", "partial_flag_ignored", "listed_blocks.h", "masked = entry & 1;", "masked = false;"},
      {"tuned_f32", "another_block", "listed_blocks.h", "(entry >> 1) * BLOCK_C", "taken * BLOCK_C - BLOCK_C"},
      {"tuned_f32", "list_without_its_flag", "mask_blocks.cpu.cpp", "2 * block + !all", "2 * block"},
      {"tuned_f32", "blocks_in_part_left_out", "mask_blocks.cpu.cpp", "if (some) entries", "if (all) entries"},
      {"tuned_f32", "list_of_another_head", "mask_lists.h", "static_cast<INT64>(head) * lists.of_head", "0", "blocks"},
      {"tuned_f32", "list_of_the_next_tile", "mask_lists.h", "(first_query - lists.first_query) / lists.rows", "0"}};
}

struct MaskMutationCase {
  KernelPath path;
  MaskMutation mutation;
};
void PrintTo(const MaskMutationCase& test, std::ostream* out) { *out << test.path.name << " " << test.mutation.what; }

std::vector<MaskMutationCase> mask_mutation_cases() {
  std::vector<MaskMutationCase> cases;
  for (const MaskMutation& mutation : mask_mutations(on_cuda)) {
    for (const KernelPath& path : paths()) {
      if (path.name == std::string_view(mutation.path)) cases.push_back({path, mutation});
    }
  }
  return cases;
}

class MaskMutations : public test::OnPath<MaskMutationCase> {
 protected:
  const KernelPath& path() const override { return GetParam().path; }

  bool passes(PipelineCache& cache) {
    const Mask& mask = mask_of(GetParam().mutation.mask);
    FlashConfig config = config_of(path());
    config.shape = {
        .batch = 1, .q_heads = 3, .kv_heads = 1, .q_len = 300, .kv_len = 333, .head_dim = 64, .causal = true};
    config.shape.scale = 2;
    const auto inputs = std::make_shared<FlashInputs>(on(), config, 7, "");
    return run_with(hooks_of(mask, config.shape, true), config, on(), cache, inputs).check.ok;
  }
};
INSTANTIATE_TEST_SUITE_P(All, MaskMutations, testing::ValuesIn(mask_mutation_cases()), [](const auto& test) {
  return std::string(test.param.path.name) + "_" + test.param.mutation.what;
});

TEST_P(MaskMutations, AreCaught) {
  const MaskMutation& mutation = GetParam().mutation;
  ASSERT_TRUE(passes(pipelines()));
  const MutatedSources sources(std::string(kernel_folder) + mutation.file, mutation.from, mutation.to);
  PipelineCache fresh(on(), "");
  EXPECT_FALSE(passes(fresh));
}

TEST_F(MaskCudaCompileTest, MutationsCompileToOtherCode) {
  for (const MaskMutation& mutation : mask_mutations(true)) {
    FlashConfig config;
    config.variant = std::string(mutation.path).substr(0, std::string(mutation.path).find("_bf16"));
    config.dtype = config.out_dtype = config.variant == "naive" ? DType::f32 : DType::bf16;
    config.shape = {.q_heads = 3, .kv_heads = 1, .q_len = 300, .kv_len = 333, .head_dim = 64, .causal = true};
    config.block_r = 64;
    config.block_c = 32;
    const auto code = [&] {
      const AttentionHooks hooks = hooks_of(mask_of(mutation.mask), {}, true);
      const Launch launch = attention_launch(config, test::hopper(), &hooks);
      std::string sha = compiler_->compile(launch.source).code_sha256;
      if (config.variant == "naive") return sha;
      return sha + compiler_->compile(mask_launch(config, test::hopper(), launch, ListScope::all).source).code_sha256;
    };
    const std::string unbroken = code();
    const MutatedSources sources(std::string(kernel_folder) + mutation.file, mutation.from, mutation.to);
    EXPECT_NE(code(), unbroken) << mutation.path << " " << mutation.what;
  }
}

TEST(MaskMutationsTest, TextsAreInTheSources) {
  for (const bool of_cuda : {false, true}) {
    test::expect_texts_in_sources(mask_mutations(of_cuda), [](const MaskMutation& mutation) {
      return std::string(kernel_folder) + mutation.file;
    });
  }
}

}  // namespace
}  // namespace attn
