// Hooks that say which keys a row sees, where keys lie, and how rows are rotated. A hook is a text that replaces a
// header of the kernel. Most tests run kernels with a hook on the device under test, and compare the output with the
// oracle, or with the output of the same kernel without the hook. Other tests expect that kernels with hooks compile
// for a GPU, or that these comparisons catch kernels whose use of a hook is broken on purpose.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/attention/modifiers.h"
#include "common/attention/rope.h"
#include "common/attention/tests/kernel_run.h"
#include "common/base/error.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/messages.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::Attended;
using test::bytes_of_table;
using test::describe;
using test::difference;
using test::Includes;
using test::infinity;
using test::is_here;
using test::kernel_of;
using test::kernels;
using test::keys_difference;
using test::keys_file;
using test::keys_hook;
using test::keys_hooks;
using test::KeysHook;
using test::masked_by;
using test::on_cuda;
using test::OnDevice;
using test::only_within;
using test::pipelines;
using test::random_tensors;
using test::run;
using test::score_file;
using test::Tensors;
using test::Tested;
using test::tested;
using test::wrong_of;

constexpr const char* pages_file = "common/attention/kernels/pages.h";
constexpr const char* rotate_file = "common/attention/kernels/rotate.h";

using HooksTest = test::EachKernel;
INSTANTIATE_TEST_SUITE_P(All, HooksTest, testing::ValuesIn(kernels()), [](const auto& test) { return test.param; });

TEST_P(HooksTest, KeysHooksAgreeWithTheOracle) {
  test::Some some(13);
  for (const KeysHook& hook : keys_hooks()) {
    for (const auto& [q_len, kv_len] : {std::pair{75, 141}, {1, 1}, {50, 20}, {33, 64}, {1, 130}, {130, 129}}) {
      for (const bool causal : {false, true}) {
        if (causal && !hook.takes_causal) continue;
        if (some.skips()) continue;
        const Tested setup = tested(GetParam(), q_len, kv_len, causal);
        EXPECT_EQ(keys_difference(GetParam(), setup, hook), "")
            << hook.name << " " << describe(GetParam(), setup.config);
      }
    }
  }
}

// The tiles have 64 rows or more, so a group of rows of a tile (for example, the rows of one warp of mma_sync) can see
// other blocks of keys than the tile's other rows. There are more queries than rows of a tile.
TEST_P(HooksTest, KeysOfLargerTiles) {
  test::Some some(7);
  for (const char* name : {"window_left", "window_both", "documents", "lengths"}) {
    for (const int64_t rows : {64, 128, 192}) {
      for (const bool causal : {false, true}) {
        if (some.skips()) continue;
        Tested setup = tested(GetParam());
        setup.config.shape = {.batch = 2, .q_heads = 3, .kv_heads = 1, .q_len = 300, .kv_len = 333, .head_dim = 64};
        setup.config.shape.causal = causal;
        setup.config.block_r = rows;
        if (GetParam() == "mma_sync_f32" && rows == 192) continue;  // tiles of f32 have at most 128 rows
        EXPECT_EQ(keys_difference(GetParam(), setup, keys_hook(name)), "")
            << name << " " << describe(GetParam(), setup.config);
      }
    }
  }
}

TEST_P(HooksTest, KeysWithAScoreHook) {
  if (GetParam() == "amx") GTEST_SKIP() << "amx takes no score hook";
  Tested setup = tested(GetParam());
  const AttentionShape& shape = setup.config.shape;
  const KeysHook& hook = keys_hook("window_both");
  Includes includes = hook.includes();
  includes[score_file] =
      "#pragma once\n#include \"common/attention/kernels/attention.h\"\n#define SCORE_IS_IDENTITY 0\n"
      "static inline float score(float s, int q, int k, const ScoreContext& c) {\n"
      "  return s + 0.05f * static_cast<float>(k - q - 9 * c.head);\n}\n";
  const ScoreFunction score = [mask = masked_by(hook, {}, shape)](std::span<double> scores, int64_t batch, int64_t head,
                                                                  int64_t q) {
    for (size_t k = 0; k < scores.size(); ++k)
      scores[k] += 0.05 * static_cast<double>(static_cast<int64_t>(k) - q - 9 * head);
    mask(scores, batch, head, q);
  };
  EXPECT_EQ(wrong_of(GetParam(), setup, random_tensors(setup.config), {.includes = includes, .reference = score}), "");
}

// NaN fills K and V in each block of block_c keys that no row of the sequence sees. The output keeps its bits, because
// no kernel reads these blocks.
TEST_P(HooksTest, BlocksThatNoRowSeesAreNotRead) {
  for (const char* name : {"lengths", "window_left"}) {
    Tested setup = tested(GetParam());
    const AttentionShape& shape = setup.config.shape;
    const KeysHook& hook = keys_hook(name);
    const std::vector<int> table = hook.table(shape);
    Tensors tensors = random_tensors(setup.config);
    const Attended before = run(GetParam(), setup, tensors, hook.includes(), bytes_of_table(table));
    int64_t poisoned = 0;
    for (int64_t batch = 0; batch < shape.batch; ++batch) {
      const int64_t begin = std::max<int64_t>(hook.range(table, shape, batch, 0).first, 0);
      const int64_t end = std::max<int64_t>(hook.range(table, shape, batch, shape.q_len - 1).second, 1);
      for (int64_t key = 0; key < shape.kv_len; ++key) {
        const int64_t block = key / setup.config.block_c;
        if (block >= begin / setup.config.block_c && block <= (end - 1) / setup.config.block_c) continue;
        ++poisoned;
        for (int64_t head = 0; head < shape.kv_heads; ++head) {
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            tensors.k.set(batch, head, key, d, std::nan(""));
            tensors.v.set(batch, head, key, d, std::nan(""));
          }
        }
      }
    }
    ASSERT_GT(poisoned, 0);
    EXPECT_TRUE(run(GetParam(), setup, tensors, hook.includes(), bytes_of_table(table)) == before) << name;
  }
}

// ---- where keys lie

// On the cpu the strides of rows, heads and batch entries may be any number of elements, also an odd number. On a GPU
// mma_sync and wgmma take only multiples of 16 bytes, so on a GPU all strides of this test are multiples of 8 elements.
TEST_P(HooksTest, RowsAnyDistanceApart) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool causal : {false, true}) {
      for (const int64_t apart : {on_cuda ? 8 : 1, on_cuda ? 24 : 3, 8}) {
        Tested setup = tested(GetParam());
        if (GetParam() == "naive" || GetParam().starts_with("tiled") || GetParam() == "tuned") {
          setup.config.dtype = setup.config.out_dtype = dtype;
        } else if (dtype != setup.config.dtype) {
          continue;
        } else {
          setup.config.out_dtype = dtype;
        }
        setup.config.shape.causal = causal;
        setup.config.layout = causal ? Layout::bhsd : Layout::bshd;
        setup.apart = apart;
        EXPECT_EQ(wrong_of(GetParam(), setup, random_tensors(setup.config), {}), "")
            << apart << " " << name(dtype) << " " << describe(GetParam(), setup.config);
      }
    }
  }
}

// Returns a table of pages. For each sequence, and for each run of page_keys keys of the sequence, the table has the
// number of the page in K and V. Along the table the numbers descend; after 0 follows the largest number.
std::vector<int> shuffled_pages(const AttentionShape& shape, int64_t page_keys) {
  const int64_t pages = shape.batch * ((shape.kv_len + page_keys - 1) / page_keys);
  std::vector<int> table;
  for (int64_t page = 0; page < pages; ++page)
    table.push_back(static_cast<int>((pages - 1 - page + pages / 3) % pages));
  return table;
}

Includes pages_hook(int64_t page_keys) {
  return {{pages_file,
           fmt::format("#pragma once\n#include \"common/attention/kernels/attention.h\"\n"
                       "#define PAGES_ARE_DEFAULT 0\n#define PAGE_KEYS {}\n"
                       "static inline KeyPlace place_of_key(int key, int kv_head, const ScoreContext& c) {{\n"
                       "{}"
                       "  const int pages = (c.kv_len + PAGE_KEYS - 1) / PAGE_KEYS;\n"
                       "  const int page = static_cast<const int*>(c.data)[c.batch * pages + key / PAGE_KEYS];\n"
                       "  return {{page, kv_head, key % PAGE_KEYS}};\n}}\n",
                       page_keys, only_within("key", "c.kv_len"))}};
}

/// Returns K or V cut into pages. The table says where each page of keys lies in the result. Elements beyond the last
/// key of a sequence are random numbers.
Tensor in_pages(const Tensor& tensor, const std::vector<int>& table, int64_t page_keys) {
  const int64_t pages = (tensor.seq + page_keys - 1) / page_keys;
  Tensor paged =
      random_tensor(tensor.batch * pages, tensor.heads, page_keys, tensor.dim, tensor.dtype, tensor.layout, 8, 0);
  for (int64_t b = 0; b < tensor.batch; ++b) {
    for (int64_t h = 0; h < tensor.heads; ++h) {
      for (int64_t key = 0; key < tensor.seq; ++key) {
        const int64_t page = table[static_cast<size_t>(b * pages + key / page_keys)];
        for (int64_t d = 0; d < tensor.dim; ++d) paged.set(page, h, key % page_keys, d, tensor.at(b, h, key, d));
      }
    }
  }
  return paged;
}
/// Returns the configuration with pages of `page_keys` keys. K and V have as many pages as the table names.
Tested on_pages(Tested setup, const std::vector<int>& table, int64_t page_keys) {
  setup.config.page_size = page_keys;
  setup.config.pool_pages = static_cast<int64_t>(table.size());
  return setup;
}

std::string pages_difference(const std::string& name, Tested setup, int64_t page_keys,
                             PipelineCache& cache = pipelines()) {
  setup.copies = true;
  const Tensors tensors = random_tensors(setup.config);
  const std::vector<int> table = shuffled_pages(setup.config.shape, page_keys);
  const Tensors paged = {tensors.q, in_pages(tensors.k, table, page_keys), in_pages(tensors.v, table, page_keys)};
  const Attended want = run(name, setup, tensors, {}, bytes_of_table({0}));
  const Attended got =
      run(name, on_pages(setup, table, page_keys), paged, pages_hook(page_keys), bytes_of_table(table), cache);
  return got == want ? "" : "the bits differ with pages: " + difference(setup.config, got, want.o, want.lse);
}

TEST_P(HooksTest, PagesInAnyOrderGiveTheSameBits) {
  test::Some some(17);
  for (const int64_t page_keys : {1, 8, 16, 24, 32, 64}) {
    for (const auto& [q_len, kv_len] : {std::pair{75, 141}, {1, 1}, {50, 20}, {33, 64}, {1, 130}}) {
      for (const bool causal : {false, true}) {
        const Tested setup = tested(GetParam(), q_len, kv_len, causal);
        // For wgmma page_keys must be a multiple of 8, and a divisor or a multiple of block_c, which is 32 here.
        if (GetParam() == "wgmma" && (page_keys % 8 != 0 || page_keys == 24)) continue;
        if (some.skips()) continue;
        EXPECT_EQ(pages_difference(GetParam(), setup, page_keys), "")
            << page_keys << " " << describe(GetParam(), setup.config);
      }
    }
  }
}

// Rows of several panels of 64 columns. With unused elements between the pages, pages lie no whole number of groups of
// eight rows apart (common/backends/cuda/tensor_map.h).
TEST_P(HooksTest, PagesOfLongRowsGiveTheSameBits) {
  if (GetParam() != "wgmma") GTEST_SKIP() << "other kernels read row by row";
  for (const int64_t head_dim : {128, 192}) {
    for (const int64_t apart : {0, 8}) {
      for (const int64_t page_keys : {8, 16}) {
        Tested setup = tested(GetParam(), 75, 141, apart == 0);
        setup.config.shape.head_dim = head_dim;
        setup.apart = apart;
        EXPECT_EQ(pages_difference(GetParam(), setup, page_keys), "")
            << page_keys << " " << apart << " " << describe(GetParam(), setup.config);
      }
    }
  }
}

/// Returns a keys hook that ends each sequence's keys at the sequence's length. The lengths follow the table of pages,
/// which has table_size numbers. For a length below 0 or above kv_len the hook returns -1 as the end.
Includes lengths_hook(size_t table_size) {
  return {{keys_file, fmt::format("#pragma once\n#include \"common/attention/kernels/attention.h\"\n"
                                  "#define KEYS_ARE_DEFAULT 0\n#define KEYS_BEGIN_AT_ZERO 1\n#define KEYS_END_EARLY 1\n"
                                  "static inline int end_of_keys(const ScoreContext& c) {{\n"
                                  "  const int length = static_cast<const int*>(c.data)[{} + c.batch];\n"
                                  "  return 0 <= length && length <= c.kv_len ? length : -1;\n}}\n"
                                  "static inline KeyRange visible_keys(int, const ScoreContext& c) {{\n"
                                  "  return {{0, end_of_keys(c)}};\n}}\n",
                                  table_size)}};
}

// The host does not check tables before a launch on a GPU.
TEST_P(HooksTest, AWrongPageOrLengthMakesRowsNan) {
  if (!on_cuda) GTEST_SKIP() << "the host checks the tables of kernels on the cpu";
  constexpr int64_t page_keys = 32;
  Tested setup = tested(GetParam());
  const AttentionShape& shape = setup.config.shape;
  const std::vector<int> pages = shuffled_pages(shape, page_keys);
  const Tensors tensors = random_tensors(setup.config);
  const Tensors paged = {tensors.q, in_pages(tensors.k, pages, page_keys), in_pages(tensors.v, pages, page_keys)};
  setup = on_pages(setup, pages, page_keys);
  Includes includes = pages_hook(page_keys);
  includes.merge(lengths_hook(pages.size()));
  std::vector<int> table = pages;
  table.insert(table.end(), {141, 100, 77});
  const Attended right = run(GetParam(), setup, paged, includes, bytes_of_table(table));
  const size_t page_of_second = pages.size() / 3, length_of_second = pages.size() + 1;
  for (const auto& [index, number] : {std::pair{page_of_second, -1},
                                      {page_of_second, static_cast<int>(pages.size())},
                                      {page_of_second, 1'000'000'000},
                                      {length_of_second, -1},
                                      {length_of_second, 142}}) {
    std::vector<int> wrong = table;
    wrong[index] = number;
    const Attended got = run(GetParam(), setup, paged, includes, bytes_of_table(wrong));
    EXPECT_TRUE(got.guards_intact);
    const auto expect_nan_of_second = [&](const std::vector<double>& is, const std::vector<double>& was) {
      const size_t of_sequence = is.size() / 3;
      for (size_t i = 0; i < is.size(); ++i) {
        const bool second = i / of_sequence == 1;
        ASSERT_TRUE(second ? std::isnan(is[i]) : is[i] == was[i])
            << "element " << i << " is " << is[i] << " with " << number << " in the table";
      }
    };
    expect_nan_of_second(got.o, right.o);
    expect_nan_of_second(got.lse, right.lse);
  }
}

// ---- how rows are rotated

RopeConfig rope_of(int64_t dim) { return {.head_dim = dim, .rotary_dim = dim, .theta = 100}; }

Tensor turned(const Tensor& tensor, int64_t first_position) {
  Tensor rows = convert(tensor, tensor.dtype, Layout::bhsd);
  const std::vector<int> first(static_cast<size_t>(tensor.batch), static_cast<int>(first_position));
  rows.store(0, reference_rope(rope_of(tensor.dim), tensor, first));
  return convert(rows, tensor.dtype, tensor.layout);
}

// Cosines and sines of every position: [position][2][half].
std::vector<std::byte> angles(const AttentionShape& shape) {
  const RopeTable of = rope_table(rope_of(shape.head_dim), shape.kv_len);
  std::vector<float> table;
  const int64_t half = shape.head_dim / 2;
  for (int64_t at = 0; at < shape.kv_len * half; at += half) {
    for (const auto* values : {&of.cosines, &of.sines}) {
      table.insert(table.end(), values->begin() + at, values->begin() + at + half);
    }
  }
  return bytes_of_table(table);
}

Includes rotate_hook() {
  return {{rotate_file,
           "#pragma once\n#include \"common/attention/kernels/attention.h\"\n#define ROTATE_IS_IDENTITY 0\n"
           "template <typename Numbers>\n"
           "static inline Numbers numbers_at(const float* from) {\n"
           "#ifdef __CUDACC__\n  return *from;\n#else\n  return ::load<Numbers>(from);\n#endif\n}\n"
           "template <typename Load>\n"
           "static inline auto turned(Load load, int position, int d, const ScoreContext& c) {\n"
           "  const int half = HEAD_DIM / 2;\n"
           "  const float* angles = static_cast<const float*>(c.data) + position * 2 * half + d % half;\n"
           "  auto x = load(d);\n"
           "  auto y = load(d < half ? d + half : d - half);\n"
           "  auto cosine = numbers_at<decltype(x)>(angles);\n"
           "  auto sine = numbers_at<decltype(x)>(angles + half);\n"
           "  return d < half ? x * cosine - y * sine : x * cosine + y * sine;\n}\n"
           "template <typename Load>\n"
           "static inline auto rotate_query(Load load, int q, int d, const ScoreContext& c) {\n" +
               only_within("q", "c.q_len") +
               "  return turned(load, q + c.kv_len - c.q_len, d, c);\n}\n"
               "template <typename Load>\n"
               "static inline auto rotate_key(Load load, int key, int d, const ScoreContext& c) {\n" +
               only_within("key", "c.kv_len") + "  return turned(load, key, d, c);\n}\n"}};
}

std::string rotate_difference(const std::string& name, Tested setup, PipelineCache& cache = pipelines()) {
  setup.copies = true;
  const AttentionShape& shape = setup.config.shape;
  const Tensors tensors = random_tensors(setup.config);
  const Tensors before = {turned(tensors.q, shape.kv_len - shape.q_len), turned(tensors.k, 0), tensors.v};
  const Attended want = run(name, setup, before, {}, bytes_of_table({0}));
  return difference(setup.config, run(name, setup, tensors, rotate_hook(), angles(shape), cache), want.o, want.lse);
}

// Whether the kernel takes a hook that rotates queries and keys, as rotate_hook() does. wgmma takes only hooks that
// rotate queries and leave keys as they are.
bool takes_rotate_hook(const std::string& name) {
  const std::set<std::string> without = {"amx", "wgmma", "tuned_pairs", "neon_f16", "neon_bf16"};
  return !without.contains(name);
}

TEST_P(HooksTest, RotatingRowsInTheKernelEqualsRotatingThemBeforeTheLaunch) {
  if (!takes_rotate_hook(GetParam())) GTEST_SKIP() << "this kernel takes no hook that rotates keys";
  test::Some some(13);
  for (const int64_t head_dim : {8, 40, 64, 128}) {
    for (const auto& [q_len, kv_len] : {std::pair{75, 141}, {1, 1}, {20, 50}, {1, 130}}) {
      for (const bool causal : {false, true}) {
        if (some.skips()) continue;
        Tested setup = tested(GetParam(), q_len, kv_len, causal);
        setup.config.shape.head_dim = head_dim;
        EXPECT_EQ(rotate_difference(GetParam(), setup), "") << describe(GetParam(), setup.config);
      }
    }
  }
}

// A kernel must not ignore a rotate hook.
TEST_P(HooksTest, KernelsThatCannotRotateKeysDoNotCompileWithAHookThatRotatesKeys) {
  if (takes_rotate_hook(GetParam())) GTEST_SKIP() << "this kernel takes a hook that rotates keys";
  const Tested setup = tested(GetParam());
  EXPECT_THROW(pipelines().get(kernel_of(GetParam(), setup, rotate_hook()).source), CompileError);
}

// Keys lie on pages, a window hides keys, and rotate_hook() rotates rows if the kernel takes this hook.
TEST_P(HooksTest, HooksTogether) {
  Tested setup = tested(GetParam());
  setup.copies = true;
  const AttentionShape& shape = setup.config.shape;
  const bool turns = takes_rotate_hook(GetParam());
  const Tensors tensors = random_tensors(setup.config);
  const KeysHook& hook = keys_hook("window_both");
  Includes includes = hook.includes();
  const Attended want =
      run(GetParam(), setup,
          turns ? Tensors{turned(tensors.q, shape.kv_len - shape.q_len), turned(tensors.k, 0), tensors.v} : tensors,
          includes, bytes_of_table({0}));
  // One table for all hooks: first the pages, then the angles.
  const std::vector<int> table = shuffled_pages(shape, 32);
  std::vector<std::byte> data = bytes_of_table(table);
  const std::vector<std::byte> after = angles(shape);
  data.insert(data.end(), after.begin(), after.end());
  includes.merge(pages_hook(32));
  if (turns) {
    Includes rotate = rotate_hook();
    std::string& text = rotate.begin()->second;
    const std::string from = "static_cast<const float*>(c.data)";
    text.replace(text.find(from), from.size(), fmt::format("(static_cast<const float*>(c.data) + {})", table.size()));
    includes.merge(rotate);
  }
  const Tensors paged = {tensors.q, in_pages(tensors.k, table, 32), in_pages(tensors.v, table, 32)};
  EXPECT_EQ(
      difference(setup.config, run(GetParam(), on_pages(setup, table, 32), paged, includes, data), want.o, want.lse),
      "");
}

// Kernels for a GPU compile with the hooks that they take, and do not spill registers. The tests need no GPU.
using HooksCudaCompileTest = test::CudaCompilerTest;

TEST_F(HooksCudaCompileTest, KeysPagesAndRotatedRows) {
  const auto compiles = [&](const char* variant, DType dtype, int64_t head_dim, const Includes& includes) {
    FlashConfig config = test::hopper_flash(variant, dtype, head_dim);
    config.shape.causal = true;
    config.block_r = 128;
    config.block_c = 64;
    KernelSource source = FlashOperation::of(test::hopper()).kernel(config, test::hopper()).source;
    source.includes = includes;
    expect_clean(source);
  };
  for (const int64_t head_dim : {40, 64, 128}) {
    for (const auto& [variant, dtype] :
         {std::pair{"naive", DType::f32}, {"mma_sync", DType::bf16}, {"wgmma", DType::bf16}}) {
      for (const int64_t page_keys : {16, 64, 256}) compiles(variant, dtype, head_dim, pages_hook(page_keys));
      for (const KeysHook& hook : keys_hooks()) {
        if (hook.takes_causal && head_dim > 40) compiles(variant, dtype, head_dim, hook.includes());
      }
    }
    Includes pages_and_lengths = pages_hook(16);
    pages_and_lengths.merge(lengths_hook(100));
    compiles("naive", DType::f32, head_dim, pages_and_lengths);
    compiles("naive", DType::f16, head_dim, rotate_hook());
    compiles("mma_sync", DType::bf16, head_dim, rotate_hook());
    EXPECT_THROW(compiles("wgmma", DType::bf16, head_dim, rotate_hook()), CompileError);
  }
}

// ---- broken kernels that the checks catch

struct HookMutation {
  const char *kernel, *what, *hook, *file, *from, *to;
};
void PrintTo(const HookMutation& mutation, std::ostream* out) { *out << mutation.what; }

constexpr const char* naive_cpu = "common/attention/kernels/naive.cpu.cpp";
constexpr const char* tiled = "common/attention/kernels/tiled.cpu.cpp";
constexpr const char* tuned = "common/attention/kernels/tuned.cpu.cpp";
constexpr const char* amx = "common/attention/kernels/amx.cpu.cpp";
constexpr const char* neon_f16 = "common/attention/kernels/neon_f16.cpu.cpp";
constexpr const char* neon_bf16 = "common/attention/kernels/neon_bf16.cpu.cpp";
constexpr const char* naive_cuda = "common/attention/kernels/naive.cuda.cu";
constexpr const char* mma_sync = "common/attention/kernels/mma_sync.cuda.cu";
constexpr const char* wgmma = "common/attention/kernels/wgmma.cuda.cu";

std::vector<HookMutation> mutations(bool of_cuda) {
  if (of_cuda) {
    return {
        {"naive", "begin_ignored", "window_left", naive_cuda, "KEYS_BEGIN_AT_ZERO ? 0 : max(0, visible.begin)", "0"},
        {"mma_sync", "begin_ignored", "window_left", mma_sync, "column < begin[r]))) value", "false))) value"},
        {"mma_sync", "begin_one_late", "window_left", mma_sync, "seen.begin - key;", "seen.begin - key + 1;"},
        {"mma_sync", "end_one_late", "window_left", mma_sync, "seen.end - key);", "seen.end - key + 1);"},
        {"mma_sync", "first_block_left_out", "window_both", mma_sync, "(first_query) / BLOCK_C;",
         "(first_query) / BLOCK_C + 1;"},
        {"mma_sync", "block_unmasked", "window_both", mma_sync, "number * BLOCK_C < all_begin", "block < 0"},
        {"wgmma", "begin_ignored", "window_left", wgmma,
         "if (block < hidden) mask_s_before<BLOCK_C / 2>(begin, -infinity());", ""},
        {"wgmma", "begin_one_late", "window_left", wgmma, "seen.begin - key;", "seen.begin - key + 1;"},
        {"wgmma", "begin_of_another_column", "window_left", wgmma, "setp.gt.s32 p, %0, %12", "setp.gt.s32 p, %0, %11"},
        {"wgmma", "end_one_late", "window_left", wgmma, "seen.end - key);", "seen.end - key + 1);"},
        {"wgmma", "mask_of_another_row", "window_left", wgmma, "keys_of(a, tile, query + r * 8)",
         "keys_of(a, tile, query)"},
        {"naive", "values_of_another_page", "pages", naive_cuda, "row_of(p.v_strides, v, key)",
         "row_of(p.v_strides, v, 0)"},
        {"mma_sync", "page_of_another_head", "pages", mma_sync, "keys_there() - 1)), kv_head, sequence()",
         "keys_there() - 1)), 0, sequence()"},
        {"mma_sync", "rows_of_another_page", "pages", mma_sync, "const int key = first_key + row;",
         "const int key = row;"},
        {"naive", "queries_not_turned", "rotate", naive_cuda, "rotate_query(load_q, query, d, context)", "load_q(d)"},
        {"mma_sync", "queries_not_turned", "rotate", mma_sync, "if (first) turn_queries();", ""},
        {"mma_sync", "keys_of_another_position", "rotate", mma_sync, "min(number_of(block) * int{BLOCK_C} + row",
         "min(row"}};
  }
  return {
      {"naive", "begin_ignored", "window_left", naive_cpu, "KEYS_BEGIN_AT_ZERO || visible.begin < 0", "true"},
      {"tiled_vector", "begin_ignored", "window_left", tiled, "KEYS_BEGIN_AT_ZERO || before < 0", "true"},
      {"tiled_scalar", "begin_of_another_row", "window_both", tiled, "begin_of(row) - first_key",
       "begin_of(0) - first_key"},
      {"tuned", "begin_ignored", "window_left", tuned, "s = hidden[v] <= key + r ? s : Floats{} + hidden_score;", ""},
      {"tuned", "begin_one_late", "window_left", tuned, "seen.begin - first_key;", "seen.begin - first_key + 1;"},
      {"tuned", "end_one_late", "window_left", tuned, "min(seen.end - first_key, keys)",
       "min(seen.end - first_key + 1, keys)"},
      {"tuned", "first_key_left_out", "window_both", tuned, "tile.keys_before(tile.first_query, 0, end)",
       "tile.keys_before(tile.first_query, 0, end) + 1"},
      {"tuned", "rows_unmasked", "window_both", tuned, "key >= hidden_from_some", "key >= 0"},
      {"tuned", "values_of_other_keys", "window_both", tuned, "v_block + first * ROW_WORDS + column",
       "v_block + column"},
      {"tuned_pairs", "pairs_are_split", "window_both", tuned, "(BF16_DOT ? hidden % 2 : 0)", "0"},
      {"neon_f16", "weights_of_hidden_keys", "documents", neon_f16, "first + i >= begin &&", ""},
      {"neon_f16", "values_of_other_keys", "window_both", neon_f16, "begin * ROW_HALVES + column", "column"},
      {"neon_bf16", "weights_beyond_the_keys", "window_both", neon_bf16, "&& first + i < keys", ""},
      {"neon_bf16", "values_of_other_keys", "window_both", neon_bf16, "first * 2 * ROW_WORDS + column", "column"},
      {"amx", "begin_ignored", "window_left", amx, "lanes + key >= hidden ? load", "lanes + key >= 0 ? load"},
      {"amx", "weights_of_other_keys", "window_both", amx, "weights + begin, W_STEP", "weights, W_STEP"},
      {"naive", "values_of_another_page", "pages", naive_cpu, "row_of(p.v_strides, v, key)",
       "row_of(p.v_strides, v, 0)"},
      {"tiled_vector", "page_of_the_first_key", "pages", tiled, "place_of_key(first_key + key,",
       "place_of_key(first_key,"},
      {"tuned", "page_of_another_head", "pages", tuned, "place_of_key(key, kv_head, context())",
       "place_of_key(key, 0, context())"},
      {"tuned_pairs", "keys_of_another_page", "pages", tuned, "tile.k_rows(first_key + key)", "tile.k_rows(first_key)"},
      {"tuned_pairs", "first_value_of_a_pair_twice", "pages", tuned, "row_of(p.v_strides, first_key + key + 1)",
       "row_of(p.v_strides, first_key + key)"},
      {"neon_f16", "values_of_another_page", "pages", neon_f16, "row_of(p.v_strides, first_key + key)",
       "row_of(p.v_strides, first_key)"},
      {"neon_bf16", "values_of_another_page", "pages", neon_bf16, "first_key + there", "first_key + key"},
      {"amx", "first_value_of_a_pair_twice", "pages", amx, "row_of(p.v, p.v_strides, first_key + key + 1)",
       "row_of(p.v, p.v_strides, first_key + key)"},
      {"naive", "queries_not_turned", "rotate", naive_cpu, "rotate_query(load_q, query, d, context)", "load_q(d)"},
      {"tiled_scalar", "keys_of_another_position", "rotate", tiled, "rotate_key(load, first_key + key + row,",
       "rotate_key(load, row,"},
      {"tuned", "queries_of_another_position", "rotate", tuned, "rotate_query(load_q, first_query + query,",
       "rotate_query(load_q, query,"},
      {"tuned", "keys_not_turned", "rotate", tuned, "TURN && !ROTATE_IS_IDENTITY", "false"}};
}

class HookMutations : public OnDevice<testing::TestWithParam<HookMutation>> {};
INSTANTIATE_TEST_SUITE_P(All, HookMutations, testing::ValuesIn(mutations(on_cuda)),
                         [](const auto& test) { return std::string(test.param.kernel) + "_" + test.param.what; });

TEST_P(HookMutations, AreCaught) {
  const HookMutation& mutation = GetParam();
  if (!is_here(mutation.kernel)) GTEST_SKIP() << "not on this device";
  Tested setup = tested(mutation.kernel);
  setup.config.shape.q_len = 200;
  setup.config.shape.kv_len = 211;
  setup.config.block_r = 192;  // many rows, so that groups of rows of one tile see different keys of a block
  setup.config.block_c = 64;
  // With a large scale a few keys of a row have most of the weight. If the mask is wrong for one of these keys, the row
  // changes by more than the tolerance of bf16.
  if (on_cuda) setup.config.shape.scale = 2;
  const std::string hook = mutation.hook;
  const auto found = [&](PipelineCache& cache) {
    if (hook == "pages") return pages_difference(mutation.kernel, setup, 32, cache);
    if (hook == "rotate") return rotate_difference(mutation.kernel, setup, cache);
    return keys_difference(mutation.kernel, setup, keys_hook(hook), cache);
  };
  test::expect_mutation_found(mutation.file, mutation.from, mutation.to, found);
}

TEST(ModifierHooksTest, ScoresAtRunTimeCompileEveryRule) {
  const Modifiers at_run_time{.window_left = 3, .score_by = "run_time"};
  EXPECT_TRUE(at_run_time.window());
  const auto constants = modifier_hooks(at_run_time, DType::f32).constants;
  EXPECT_EQ(constants.at("ALIBI"), 1);
  EXPECT_EQ(constants.at("SOFT_CAP"), 1);
  EXPECT_NE(constants.at("BIAS"), modifier_hooks({}, DType::f32).constants.at("BIAS"));
}

TEST(ModifierHooksTest, TablesOfMoreThan2GibAreRefused) {
  const ModifierLayout::Table table{&ModifierData::blocks, int64_t{1} << 29, nullptr};
  test::expect_error<BadInput>([&] { ModifierLayout({}, {&table, 1}); }, {"2147", "2 GiB"});
}

TEST(HookMutationsTest, TextsAreInTheSources) {
  for (const bool of_cuda : {false, true}) {
    test::expect_texts_in_sources(mutations(of_cuda), [](const HookMutation& mutation) { return mutation.file; });
  }
}

}  // namespace
}  // namespace attn
