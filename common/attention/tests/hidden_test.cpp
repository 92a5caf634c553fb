// A causal mask or a hook (a text that replaces a header of the kernel) hides pairs of a query and a key. The comments
// of common/attention/kernels/attention.h say what follows for the outputs. Most tests compare kernels with the oracle,
// on the device under test, in one of these cases:
//   - rows see no key in the first or last blocks
//   - scores or values are almost too large for f32
//   - Q, K, V, scores or sinks have NaN or infinity: a NaN or an infinity may reach only the rows that see it
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/tests/kernel_run.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"

namespace attn {
namespace {

using test::bytes_of_table;
using test::Hooks;
using test::Includes;
using test::infinity;
using test::Tensors;
using test::Tested;

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double largest_float = std::numeric_limits<float>::max();

std::string header(const std::string& macros, const std::string& function) {
  return fmt::format(
      "#pragma once\n#include \"common/attention/kernels/attention.h\"\n{}\n[[maybe_unused]] static inline {}\n",
      macros, function);
}

// The keys before `cut` are the first document, the other keys are the second document. A query sees only keys of its
// own document. The cut is within a block of keys and within a tile of rows. So rows of the second document see no key
// in the first blocks, and rows of the first document see no key in the last blocks. Row q has the position
// q + kv_len - q_len; a row with a negative position sees no key.
constexpr int64_t cut = 43;
bool same_document(const AttentionShape& shape, int64_t q, int64_t k) {
  const int64_t own = q + shape.kv_len - shape.q_len;
  return own >= 0 && (own < cut) == (k < cut);
}

/// Returns ways to hide pairs: a causal mask that leaves rows without keys, and a keys hook, a mask hook and, if
/// the kernel takes it, a score hook. Each of these hooks hides from a query the keys of the other document.
std::vector<Hooks> ways_to_hide(const AttentionShape& shape, bool takes_score_hooks) {
  const ScoreFunction reference = [shape](std::span<double> scores, int64_t, int64_t, int64_t q) {
    for (size_t k = 0; k < scores.size(); ++k) {
      if (!same_document(shape, q, static_cast<int64_t>(k))) scores[k] = -infinity;
    }
  };
  const std::string own = "  (void)CAUSAL;\n  const int own = q + c.kv_len - c.q_len;\n";
  const std::string rule = fmt::format("own >= 0 && (own < {0}) == (k < {0})", cut);
  std::vector<Hooks> ways;
  ways.push_back({"causal", {}, bytes_of_table({0}), {}, {}, true});
  ways.push_back({"keys",
                  {{test::keys_file,
                    header("#define KEYS_ARE_DEFAULT 0\n#define KEYS_BEGIN_AT_ZERO 0",
                           "KeyRange visible_keys(int q, const ScoreContext& c) {\n" + own +
                               fmt::format("  return own < 0 ? KeyRange{{0, 0}} : own < {0} ? KeyRange{{0, {0}}} : "
                                           "KeyRange{{{0}, c.kv_len}};\n}}",
                                           cut))}},
                  bytes_of_table({0}),
                  reference});
  ways.push_back({"mask",
                  {{test::mask_file, header("#define MASK_IS_NONE 0",
                                            "bool visible(int q, int k, const ScoreContext& c) "
                                            "{\n" +
                                                own + "  return " + rule + ";\n}")}},
                  bytes_of_table({0}),
                  reference});
  if (takes_score_hooks) {
    ways.push_back({"score",
                    {{test::score_file,
                      header("#define SCORE_IS_IDENTITY 0",
                             "float score(float s, int q, int k, const ScoreContext& c) {\n" + own +
                                 "  const union { unsigned bits; float number; } hidden = {0xff800000u};\n  return " +
                                 rule + " ? s : hidden.number;\n}")}},
                    bytes_of_table({0}),
                    reference});
  }
  return ways;
}

/// Returns a setup with more queries than keys. The first document ends within the second block of 32 keys.
Tested more_queries_than_keys(const std::string& kernel) {
  Tested setup = test::tested(kernel);
  setup.config.shape = {.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 130, .kv_len = 115, .head_dim = 40};
  return setup;
}

std::string wrong_with(const std::string& kernel, Tested setup, const Tensors& tensors, const Hooks& hooks,
                       PipelineCache& cache = test::pipelines()) {
  setup.config.shape.causal = hooks.causal;
  return test::wrong_of(kernel, setup, tensors, hooks, cache);
}

class HiddenVariants : public test::EachKernel {
 protected:
  static const std::string& kernel() { return GetParam(); }
  static bool takes_score_hooks() { return kernel() != "amx"; }
  static Tested more_queries() { return more_queries_than_keys(kernel()); }
  static std::string wrong(const Tested& setup, const Tensors& tensors, const Hooks& hooks) {
    return wrong_with(kernel(), setup, tensors, hooks);
  }
};
INSTANTIATE_TEST_SUITE_P(All, HiddenVariants, testing::ValuesIn(test::kernels()),
                         [](const auto& test) { return test.param; });

// ---- rows that see no key in the first or last blocks

// A kernel that used a large negative number in place of -infinity would be wrong only at some scales.
TEST_P(HiddenVariants, RowsThatBeginOrEndWithoutKeysAtManyScales) {
  const Tested setup = more_queries();
  const Tensors tensors = test::random_tensors(setup.config);
  std::vector<double> scales = {0.54, 0.593, 0.839, 0.892, 1 / std::sqrt(200.0), 0, -0.3, 1e-30, 1e-42, 3};
  for (double scale = 0.03; scale < 2; scale *= 1.09) scales.push_back(scale);
  test::Some some(17);
  for (const Hooks& hooks : ways_to_hide(setup.config.shape, takes_score_hooks())) {
    for (const double scale : scales) {
      if (some.skips()) continue;
      Tested at = setup;
      at.config.shape.scale = scale;
      EXPECT_EQ(wrong(at, tensors, hooks), "") << hooks.name << ", scale " << scale;
    }
  }
}

// ---- large numbers

Tensor constant(const Tensor& like, double value) {
  Tensor tensor = like;
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.store(i, value);
  return tensor;
}

// Equal scores must get equal weights.
TEST_P(HiddenVariants, LargeEqualScores) {
  const Tested setup = more_queries();
  const bool wide = setup.config.dtype != DType::f16;
  Tensors tensors = test::random_tensors(setup.config);
  for (const double size : {0x1p10, 0x1p15, wide ? 0x1p48 : 0x1p14, wide ? 0x1p60 : 0x1p12}) {
    tensors.q = constant(tensors.q, size);
    tensors.k = constant(tensors.k, size);
    for (const double scale : {1.0, -1.0, 0.7}) {
      Tested at = setup;
      at.config.shape.scale = scale;
      EXPECT_EQ(wrong(at, tensors, {.name = "causal", .causal = true}), "") << size << ", scale " << scale;
      EXPECT_EQ(wrong(at, tensors, {.name = "full"}), "") << size << ", scale " << scale;
    }
  }
}

// The products of Q and K are 2^126. At a scale of 3.8 or -3.8 the scores are near the limit of f32, and the scores
// times log2(e) would be infinite.
Tensors at_the_edge_of_f32(const Tested& setup) {
  Tensors tensors = test::random_tensors(setup.config);
  tensors.q = constant(tensors.q, 0);
  tensors.k = constant(tensors.k, 1);
  for (const RowIndex& row : all_rows(setup.config.shape)) tensors.q.set(row.batch, row.head, row.q, 7, 0x1p126);
  return tensors;
}
TEST_P(HiddenVariants, EqualScoresAtTheEdgeOfF32) {
  const Tested setup = more_queries();
  if (setup.config.dtype == DType::f16) GTEST_SKIP() << "products of f16 elements are too small";
  const Tensors tensors = at_the_edge_of_f32(setup);
  for (const double scale : {3.8, -3.8}) {
    Tested at = setup;
    at.config.shape.scale = scale;
    for (const Hooks& hooks : ways_to_hide(setup.config.shape, false)) {
      EXPECT_EQ(wrong(at, tensors, hooks), "") << hooks.name << ", scale " << scale;
    }
  }
}

// The score hook adds a bias of any size in f32. Only a bias of -infinity hides a pair.
TEST_P(HiddenVariants, AFiniteBiasIsAddedInF32) {
  if (!takes_score_hooks()) GTEST_SKIP() << "amx takes no score hook";
  const Tested setup = more_queries();
  const AttentionShape& shape = setup.config.shape;
  // Row q has the biases of bias_of[q % 13].
  const std::function<double(int64_t)> bias_of[13] = {[](int64_t) { return -largest_float; },
                                                      [](int64_t) { return -1e30; },
                                                      [](int64_t k) { return k % 3 == 0 ? -largest_float : 0.5; },
                                                      [](int64_t k) { return k % 3 == 0 ? -1e29 : -1.01e29; },
                                                      [](int64_t) { return 1e38; },
                                                      [](int64_t) { return -infinity; },
                                                      [](int64_t k) { return k == 70 ? -largest_float : -infinity; },
                                                      [](int64_t k) { return k < 70 ? -infinity : -1e30; },
                                                      [](int64_t k) { return k < 70 ? -1e30 : -infinity; },
                                                      [](int64_t) { return -5e9; },
                                                      [](int64_t k) { return k < 70 ? -1e4 : -1e4 - 2; },
                                                      [](int64_t k) { return 0.01 * static_cast<double>(k); },
                                                      [](int64_t k) { return -0.01 * static_cast<double>(k); }};
  std::vector<float> bias;
  for (int64_t q = 0; q < shape.q_len; ++q) {
    for (int64_t k = 0; k < shape.kv_len; ++k) bias.push_back(static_cast<float>(bias_of[q % 13](k)));
  }
  Hooks hooks{.name = "bias",
              .includes = {{test::score_file,
                            header("#define SCORE_IS_IDENTITY 0",
                                   "float score(float s, int q, int k, const ScoreContext& c) {\n"
                                   "  q = q < c.q_len ? q : c.q_len - 1;\n  k = k < c.kv_len ? k : c.kv_len - 1;\n"
                                   "  return s + static_cast<const float*>(c.data)[q * c.kv_len + k];\n}")}},
              .data = bytes_of_table(bias),
              .reference = [&](std::span<double> scores, int64_t, int64_t, int64_t q) {
                for (size_t k = 0; k < scores.size(); ++k) {
                  scores[k] = static_cast<float>(scores[k]) + bias[static_cast<size_t>(q * shape.kv_len) + k];
                }
              }};
  EXPECT_EQ(wrong(setup, test::random_tensors(setup.config), hooks), "");
}

// The sums of weighted values overflow before they are divided by the sum of the weights.
TEST_P(HiddenVariants, ValuesWhoseSumsOverflow) {
  Tested setup = more_queries();
  if (setup.config.dtype == DType::f16) GTEST_SKIP() << "sums of f16 values do not overflow f32";
  setup.config.out_dtype = setup.config.dtype;
  Tensors tensors = test::random_tensors(setup.config);
  tensors.v = constant(tensors.v, 0x1.8p127);
  EXPECT_EQ(wrong(setup, tensors, {.name = "full"}), "");
}

// ---- NaN and infinity, seen and not seen

// The test writes garbage (a huge number, infinity or NaN) into one key's row of K or V: into one element in the first
// batch entry, and into half or all of the row's elements in the second batch entry. An output row that does not see
// this key does not change. A NaN reaches all output rows that see this key.
TEST_P(HiddenVariants, GarbageReachesTheRowsThatSeeIt) {
  const Tested setup = more_queries();
  const AttentionShape& shape = setup.config.shape;
  const double huge = setup.config.dtype == DType::f16 ? 6e4 : 1e36;
  test::Some some(13);
  for (const Hooks& hooks : ways_to_hide(shape, takes_score_hooks())) {
    for (const double garbage : {huge, infinity, -infinity, nan_value}) {
      for (const int64_t key : {int64_t{3}, cut - 1, cut, shape.kv_len - 1}) {
        if (some.skips()) continue;
        Tensors in_k = test::random_tensors(setup.config), in_v = in_k;
        in_k.k.set(0, 0, key, 5, garbage);
        in_v.v.set(0, 0, key, 5, garbage);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          in_k.k.set(1, 0, key, d, d % 2 == 0 || std::isnan(garbage) ? garbage : 0);
          in_v.v.set(1, 0, key, d, garbage);
        }
        EXPECT_EQ(wrong(setup, in_k, hooks), "") << hooks.name << ": " << garbage << " in K, key " << key;
        EXPECT_EQ(wrong(setup, in_v, hooks), "") << hooks.name << ": " << garbage << " in V, key " << key;
      }
    }
  }
}

TEST_P(HiddenVariants, SpecialElementsReachTheRowsThatSeeThem) {
  const Tested setup = more_queries();
  const std::vector<Hooks> every_way = ways_to_hide(setup.config.shape, takes_score_hooks()), full = {{.name = "full"}},
                           causal = {{.name = "causal", .causal = true}};
  const auto check = [&](const char* what, const std::vector<Hooks>& ways, const auto& change, double scale = 0.1) {
    Tested at = setup;
    at.config.shape.scale = scale;
    Tensors tensors = test::random_tensors(setup.config);
    change(tensors);
    for (const Hooks& hooks : ways) EXPECT_EQ(wrong(at, tensors, hooks), "") << hooks.name << ": " << what;
  };
  check("NaN in queries", every_way, [](Tensors& all) {
    for (const int64_t q : {0, 20, 77, 129}) all.q.set(q % 2, 1, q, q % 40, nan_value);
  });
  check("K of NaN", every_way, [](Tensors& all) { all.k = constant(all.k, nan_value); });
  check("V of NaN", every_way, [](Tensors& all) { all.v = constant(all.v, nan_value); });
  // The key's score is about 300 below the other scores, so its weight is 0 in f32. The key is seen all the same.
  check(
      "NaN in V at a key of a small weight", full,
      [](Tensors& all) {
        all.q = constant(all.q, 1);
        for (int64_t d = 0; d < all.k.dim; ++d) all.k.set(1, 0, 20, d, -50);
        all.v.set(1, 0, 20, 5, nan_value);
      },
      0.158);
  // 0 * infinity is NaN, so the rows that see the key are NaN.
  check("infinity at a scale of 0", full, [](Tensors& all) { all.k.set(0, 0, 3, 5, infinity); }, 0);
  check("-infinity at a scale of 0", full, [](Tensors& all) { all.k.set(0, 0, 3, 5, -infinity); }, 0);
  const auto all_bits = [](Tensor& tensor) {
    const size_t element = size_bytes(tensor.dtype);
    std::fill_n(tensor.data.data() + static_cast<size_t>(tensor.offset(0, 0, 50, 9)) * element, element,
                std::byte{0xff});
    ASSERT_TRUE(std::isnan(tensor.at(0, 0, 50, 9)));
  };
  check("NaN with all bits set in K", causal, [&](Tensors& all) { all_bits(all.k); });
  check("NaN with all bits set in V", causal, [&](Tensors& all) { all_bits(all.v); });
}

TEST_P(HiddenVariants, AScoreHookReturnsInfinityOrNaN) {
  if (!takes_score_hooks()) GTEST_SKIP() << "amx takes no score hook";
  const Tested setup = more_queries();
  for (const unsigned bits : {0x7f800000u, 0x7fc00000u, 0xffffffffu}) {
    const double value = bits == 0x7f800000u ? infinity : nan_value;
    const Hooks hooks{
        .name = "score",
        .includes = {{test::score_file,
                      header("#define SCORE_IS_IDENTITY 0",
                             fmt::format("float score(float s, int q, int k, const ScoreContext&) {{\n"
                                         "  const union {{ unsigned bits; float number; }} other = {{{}u}};\n"
                                         "  return q % 5 == 2 && k == 2 * (q / 3) ? other.number : s;\n}}",
                                         bits))}},
        .reference = each_score([value](double s, int64_t, int64_t, int64_t q, int64_t k) {
          return q % 5 == 2 && k == 2 * (q / 3) ? value : s;
        }),
        .causal = true};
    EXPECT_EQ(wrong(setup, test::random_tensors(setup.config), hooks), "") << bits;
  }
}

TEST_P(HiddenVariants, FiniteInfiniteAndNaNSinks) {
  const Tested setup = more_queries();
  for (const double sink : {1.5, -infinity, 1e38, -1e38, 2e4, infinity, nan_value}) {
    for (Hooks hooks : ways_to_hide(setup.config.shape, takes_score_hooks())) {
      hooks.data = bytes_of_table<float>({0.25f, static_cast<float>(sink)});
      hooks.includes[test::sink_file] =
          header("#define SINK_IS_NONE 0",
                 "float sink_logit(const ScoreContext& c) { return static_cast<const float*>(c.data)[c.head]; }");
      hooks.sink = [sink](int64_t, int64_t head) { return head == 0 ? 0.25 : sink; };
      EXPECT_EQ(wrong(setup, test::random_tensors(setup.config), hooks), "") << hooks.name << ", sink " << sink;
    }
  }
}

// All elements are finite, and no sum overflows. So no row is computed anew (repair.h), not even a row that sees no key
// in the first or last blocks. The test breaks the function that computes a row anew, and expects no wrong element.
TEST_P(HiddenVariants, RowsOfFiniteNumbersAreNotRepaired) {
  if (test::on_cuda) GTEST_SKIP() << "only kernels of the cpu include exact_row_cpu.h";
  const test::MutatedSources sources("common/attention/kernels/exact_row_cpu.h", "store(first + d, static_cast<float>(",
                                     "store(first + d, 7 + static_cast<float>(");
  PipelineCache fresh(test::device(), "");
  const Tested setup = more_queries();
  const Tensors tensors = test::random_tensors(setup.config);
  for (const Hooks& hooks : ways_to_hide(setup.config.shape, takes_score_hooks())) {
    EXPECT_EQ(wrong_with(kernel(), setup, tensors, hooks, fresh), "") << hooks.name;
  }
}

// ---- broken kernels that the checks catch

struct HiddenMutation {
  const char *kernel, *what, *file, *from, *to;
};
void PrintTo(const HiddenMutation& mutation, std::ostream* out) { *out << mutation.what; }

std::vector<HiddenMutation> hidden_mutations(bool of_cuda) {
  if (of_cuda) return {};
  return {
      {"tuned", "weights_of_hidden_keys", "softmax.h", "smallest = -63.5f", "smallest = -63.0f"},
      {"tuned", "nan_dropped", "softmax.h", "x < smallest ? V{} + smallest : x", "x > smallest ? x : V{} + smallest"},
      {"tuned", "values_not_repaired", "tuned.cpu.cpp", "if (not_finite[i] != 0 &&", "if (false &&"},
      {"tuned_pairs", "values_not_repaired", "tuned.cpu.cpp", "if (not_finite[i] != 0 &&", "if (false &&"},
      {"tuned_pairs", "large_shifts", "softmax.h", "largest_product = 2048", "largest_product = 1e38f"},
      {"amx", "large_shifts", "softmax.h", "largest_product = 2048", "largest_product = 1e38f"},
      {"amx", "values_not_repaired", "amx.cpu.cpp", "if (any_lane(not_finite != 0) &&", "if (false &&"},
      {"tiled_vector", "values_not_repaired", "tiled.cpu.cpp", "if (not_finite != 0 &&", "if (false &&"},
      {"naive", "hidden_values_read", "naive.cpu.cpp",
       "if (scores[key] == hidden_score) continue;\n    const float weight", "const float weight"},
      {"naive", "rows_without_keys", "softmax.h", "return {seen ? 1 / sum : 0,", "return {1 / sum,"},
      {"tuned", "repaired_beyond_the_range", "repair.h", "if (keys.begin < 0) keys.begin = 0;", "keys.begin = 0;"},
      {"tuned", "repaired_from_hidden_keys", "exact_row_cpu.h", "if (s == hidden_score) continue;", ""},
      {"tuned", "repaired_without_rescaling", "exact_row_cpu.h", "sums[d] * alpha +", "sums[d] +"}};
}

class HiddenMutations : public test::OnDevice<testing::TestWithParam<HiddenMutation>> {};
INSTANTIATE_TEST_SUITE_P(All, HiddenMutations, testing::ValuesIn(hidden_mutations(test::on_cuda)),
                         [](const auto& test) { return std::string(test.param.kernel) + "_" + test.param.what; });

TEST_P(HiddenMutations, AreCaught) {
  const HiddenMutation& mutation = GetParam();
  const std::string kernel = mutation.kernel;
  const Tested setup = more_queries_than_keys(kernel);
  const Tensors plain = test::random_tensors(setup.config);
  Tensors equal = plain, in_k = plain, in_v = plain, large = plain;
  equal.q = constant(plain.q, 0x1p60);
  equal.k = constant(plain.k, 0x1p60);
  in_k.k.set(0, 0, 20, 5, nan_value);
  in_v.v.set(0, 0, 20, 5, nan_value);
  in_v.v.set(1, 0, cut, 5, infinity);
  large.v.set(0, 0, cut, 5, 1e38);
  const auto found = [&](PipelineCache& cache) {
    for (const Hooks& hooks : ways_to_hide(setup.config.shape, false)) {
      for (const auto& [tensors, scale] : {std::pair{plain, 0.593},
                                           {equal, 0.7},
                                           {at_the_edge_of_f32(setup), 3.8},
                                           {at_the_edge_of_f32(setup), -3.8},
                                           {in_k, 0.593},
                                           {in_v, 0.1},
                                           {large, 0.1}}) {
        Tested at = setup;
        at.config.shape.scale = scale;
        if (std::string first = wrong_with(kernel, at, tensors, hooks, cache); !first.empty()) return first;
      }
    }
    return std::string();
  };
  test::expect_mutation_found(std::string("common/attention/kernels/") + mutation.file, mutation.from, mutation.to,
                              found);
}

TEST(HiddenMutationsTest, TextsAreInTheSources) {
  test::expect_texts_in_sources(hidden_mutations(false), [](const HiddenMutation& mutation) {
    return std::string("common/attention/kernels/") + mutation.file;
  });
}

}  // namespace
}  // namespace attn
