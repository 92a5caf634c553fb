// Forms (how the kernel reaches the score function) at each grain (how many scores a call takes), on the device under
// test. The tests of the class Forms compare the output with the oracle (a reference in double precision), and on the
// cpu also with the bits of the form `monolithic`.
#include "proto2_stitching/problem.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <string_view>

#include "common/attention/kernels/score_oracle.h"
#include "common/cases/user_functions.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"
#include "common/testing/user_texts.h"

namespace attn {
namespace {

using test::device;
using test::on_cuda;
using test::OnDevice;
using test::pipelines;

std::vector<std::string> forms() {
  DeviceInfo info;
  info.backend = on_cuda ? "cuda" : "cpu";
  std::vector<std::string> found = score_forms();
  std::erase_if(found, [&](const std::string& form) { return !form_runs_on(form, info); });
  return found;
}

StitchConfig small(const std::string& form, const std::string& grain = "element") {
  StitchConfig config;
  config.form = form;
  config.grain = grain;
  config.flash.variant = on_cuda ? "mma_sync" : "tuned";
  config.flash.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 37, .kv_len = 53, .head_dim = 24};
  config.flash.block_r = on_cuda ? 64 : 32;
  config.flash.block_c = 32;
  return config;
}

std::shared_ptr<StitchInputs> inputs_of(const StitchConfig& config) {
  auto inputs = std::make_shared<StitchInputs>();
  inputs->flash = std::make_shared<FlashInputs>(device(), config.flash, 7, "");
  return inputs;
}

struct Result {
  Check check;
  Tensor output;
  int64_t differing = 0;
};

Result run(const StitchConfig& config, const UserFunction& function, const std::shared_ptr<StitchInputs>& inputs,
           PipelineCache& cache = pipelines()) {
  StitchProblem problem(device(), cache, inputs, config, function, stitch_plan(config, device().info(), function));
  return {test::launched(problem), problem.output(), problem.differing_elements()};
}

UserFunction text(const std::string& body) { return {"mine.cpp", body}; }

/// Returns a function whose result depends on every argument.
UserFunction everything() {
  return text(
      "float score(float s, int q, int k, const ScoreContext& c) {\n"
      "  const int place = 7 * q + 3 * k + 11 * c.head + 5 * c.batch + c.q_len - c.kv_len + c.q_heads;\n"
      "  return (k + q) % 9 == 0 ? -INFINITY : 0.5f * s + 0.125f * static_cast<float>(place % 17);\n"
      "}\n");
}

// The function of everything(), written again in double.
double everything_in_double(const AttentionShape& shape, double s, int64_t b, int64_t h, int64_t q, int64_t k) {
  if ((k + q) % 9 == 0) return -std::numeric_limits<double>::infinity();
  const int64_t place = 7 * q + 3 * k + 11 * h + 5 * b + shape.q_len - shape.kv_len + shape.q_heads;
  return 0.5 * s + 0.125 * static_cast<double>(place % 17);
}

class Forms : public OnDevice<testing::TestWithParam<std::string>> {};
INSTANTIATE_TEST_SUITE_P(All, Forms, testing::ValuesIn(forms()), [](const auto& test) { return test.param; });

// The lengths leave tiles and vectors partly filled. Three query heads share a key/value head.
TEST_P(Forms, AreRightAtEveryGrainOnOddShapes) {
  test::Some some(5);
  for (const std::string grain : {"element", "row", "tile"}) {
    if (GetParam() == "monolithic" && grain != "element") continue;
    for (const auto& [q_len, kv_len] : {std::pair{1, 1}, {37, 53}, {100, 65}, {17, 130}}) {
      for (const bool causal : {false, true}) {
        for (const std::string& variant : stitch_variants(device().info())) {
          StitchConfig config = small(GetParam(), grain);
          config.flash.variant = variant;
          config.flash.shape.q_len = q_len;
          config.flash.shape.kv_len = kv_len;
          config.flash.shape.causal = causal;
          config.flash.dtype = causal && variant != "wgmma" ? DType::f32 : DType::bf16;
          const DeviceInfo& info = device().info();
          if (call_skip_reason(config, info) || FlashOperation::of(info).skip_reason(config.flash, info)) continue;
          if (some.skips()) continue;
          const Result outcome = run(config, everything(), inputs_of(config));
          const std::string where = fmt::format("{} by {}, q_len {}, kv_len {}", variant, grain, q_len, kv_len);
          EXPECT_TRUE(outcome.check.ok) << where << ": " << outcome.check.worst;
          if (!on_cuda) {
            EXPECT_EQ(outcome.differing, 0) << where;
          }
        }
      }
    }
  }
}

TEST_P(Forms, BuiltInFunctionsAgreeWithTheOracleAndOnTheCpuWithMonolithic) {
  test::Some some(2);
  for (const std::string& function : built_in_functions()) {
    for (const std::string grain : {"element", "row", "tile"}) {
      if (GetParam() == "monolithic" && grain != "element") continue;
      if (some.skips()) continue;
      const StitchConfig config = small(GetParam(), grain);
      const Result outcome = run(config, built_in_function(function, 5), inputs_of(config));
      EXPECT_TRUE(outcome.check.ok) << function << " by " << grain << ": " << outcome.check.worst;
      if (!on_cuda) {
        EXPECT_EQ(outcome.differing, 0) << function << " by " << grain;
      }
    }
  }
}

// A user's function may leave out the parameter for the context. A file with the text of a built-in function gives the
// built-in function's machine code.
TEST_P(Forms, TakeAUsersFile) {
  const std::string path = source_root() + "/proto2_stitching/functions/alibi.cpp";
  const UserFunction built_in = built_in_function("alibi", 0), file = read_function(FunctionKind::score, path);
  UserFunction short_one = text("float score(float s, int q, int k) { return s - 0.25f * fabsf(q - k); }");
  short_one.guarded = true;
  for (const std::string grain : {"element", "row", "tile"}) {
    if (GetParam() == "monolithic" && grain != "element") continue;
    const StitchConfig config = small(GetParam(), grain);
    const Result outcome = run(config, short_one, inputs_of(config));
    EXPECT_TRUE(outcome.check.ok) << grain << ": " << outcome.check.worst;
    const auto code = [&](const UserFunction& function) {
      const AttentionHooks hook = stitch_hook(config, device().info(), function);
      const Launch launch = attention_launch(config.flash, device().info(), &hook);
      return device().contents(pipelines().get(launch.source).binary);
    };
    // A call on a GPU or with SVE loads the context in another order, so the compiler orders the code of the call in
    // another way. A sanitizer puts the names of the functions into the code.
    const bool reordered = on_cuda || device().info().has("sve");
    if ((reordered && !form_is_inlined(GetParam())) || *ATTN_SANITIZE) continue;
    const CodeContents its = code(file), wanted = code(built_in);
    EXPECT_EQ(its.bytes, wanted.bytes) << grain;
    EXPECT_EQ(its.instructions, wanted.instructions) << grain;
  }
}

class StitchTest : public OnDevice<testing::Test> {};

TEST_F(StitchTest, NamesInAUsersFileChangeNothing) {
  const auto code = [](const std::string& after, const char* form, const char* grain) {
    UserFunction function = text("float score(float s, int q, int k) { return s - 0.25f * fabsf(q - k); }\n" + after);
    function.guarded = true;
    EXPECT_NO_THROW(require_compiles(device(), function)) << after;
    const StitchConfig config = small(form, grain);
    const AttentionHooks hook = stitch_hook(config, device().info(), function);
    return device().contents(pipelines().get(attention_launch(config.flash, device().info(), &hook).source).binary);
  };
  for (const auto& [form, grain] : {std::pair{"monolithic", "element"}, {"inline", "row"}, {"stitched", "tile"}}) {
    const CodeContents plain = code("", form, grain);
    for (const std::string& line : test::lines_with_kernels_names) {
      CodeContents named;
      ASSERT_NO_THROW(named = code(line, form, grain)) << line;
      EXPECT_EQ(named.bytes, plain.bytes) << form << ": " << line;
      EXPECT_EQ(named.instructions, plain.instructions) << form << ": " << line;
    }
  }
}

// The oracle runs the function's text in double precision. everything_in_double() does not use the text.
TEST_F(StitchTest, TheOracleComputesWhatTheTextSays) {
  StitchConfig config = small("monolithic");
  const AttentionShape& shape = config.flash.shape;
  const ScoreFunction got = double_precision(device(), pipelines(), everything(), shape);
  for (const int64_t q : {0, 5, 36}) {
    std::vector<double> scores;
    for (int64_t k = 0; k < shape.kv_len; ++k) scores.push_back(0.1 * static_cast<double>(k) - 2 + 1e-9);
    const std::vector<double> before = scores;
    got(scores, 1, 4, q);
    for (int64_t k = 0; k < shape.kv_len; ++k) {
      const auto at = static_cast<size_t>(k);
      EXPECT_EQ(scores[at], everything_in_double(shape, before[at], 1, 4, q, k)) << "q " << q << ", k " << k;
    }
  }
}

TEST_F(StitchTest, BuiltInFunctionsComputeWhatTheirNamesSay) {
  AttentionShape shape{.batch = 1, .q_heads = 8, .kv_heads = 8, .q_len = 10, .kv_len = 30, .head_dim = 64};
  const auto at = [&](const std::string& name, double s, int64_t head, int64_t q, size_t k) {
    std::vector<double> scores(30, s);
    double_precision(device(), pipelines(), built_in_function(name, 3), shape)(scores, 0, head, q);
    return scores.at(k);
  };
  EXPECT_DOUBLE_EQ(at("scale", 2, 0, 0, 0), 1.5);
  EXPECT_NEAR(at("soft_cap", 50, 0, 0, 7), 20 * std::tanh(2.5), 1e-9);
  // ALiBi: of 8 heads, head 0 has the slope 1/2, and head 7 the slope 2^-8. Query 0 is at the position of key 20, query
  // 9 at the position of key 29.
  EXPECT_NEAR(at("alibi", 1, 0, 0, 0), 1 - 0.5 * 20, 1e-9);
  EXPECT_NEAR(at("alibi", 1, 7, 9, 29), 1, 1e-9);
  EXPECT_NEAR(at("alibi", 1, 7, 9, 28), 1 - 1. / 256, 1e-9);
  double chain = 2;
  for (int i = 0; i < 3; ++i) chain = chain * 0.9375 + 0.03125;
  EXPECT_DOUBLE_EQ(at("chain", 2, 0, 0, 0), chain);
}

std::atomic<int64_t> calls_made{0};

// The kernels of the cpu run in this process, so the function can count its calls in a variable of the test. A call by
// row or by tile runs the function once for each score.
TEST_F(StitchTest, CallsAreCountedAsTheKernelMakesThem) {
  if (on_cuda) GTEST_SKIP() << "only a kernel of the cpu can count in a variable of this process";
  const UserFunction counting =
      text(fmt::format("float score(float s, int, int, const ScoreContext&) {{\n"
                       "#ifndef float\n"  // the oracle defines `float` as a macro, so the oracle's calls do not count
                       "  __atomic_fetch_add(reinterpret_cast<long long*>({}ull), 1, 0);\n"
                       "#endif\n"
                       "  return s;\n}}\n",
                       reinterpret_cast<uintptr_t>(&calls_made)));
  for (const std::string grain : {"element", "row", "tile"}) {
    for (const auto& [q_len, kv_len, causal] :
         {std::tuple{37, 53, false}, {100, 65, true}, {40, 129, true}, {50, 20, true}, {1, 1, false}}) {
      StitchConfig config = small("noinline", grain);
      config.flash.shape.q_len = q_len;
      config.flash.shape.kv_len = kv_len;
      config.flash.shape.causal = causal;
      const StitchProblem problem(device(), pipelines(), inputs_of(config), config, counting,
                                  stitch_plan(config, device().info(), counting));
      CommandEncoder encoder;
      problem.encode(encoder);
      calls_made = 0;
      device().submit(encoder);
      const auto calls = problem.values()["calls"].get<int64_t>();
      const std::string where = fmt::format("by {}, q_len {}, kv_len {}, causal {}", grain, q_len, kv_len, causal);
      if (grain == "element") {
        EXPECT_EQ(calls_made, calls) << where;
      } else if (grain == "row") {
        EXPECT_EQ(calls_made, calls * device().info().simd_width) << where;
      } else {  // a call takes the scores of a register tile, 4 to 24 vectors
        EXPECT_GE(calls_made, calls * 4 * device().info().simd_width) << where;
        EXPECT_LE(calls_made, calls * 12 * 2 * device().info().simd_width) << where;
      }
    }
  }
}

// Checks functions of math.h that a user's function may call. Here these functions compute in float, as in the kernels.
TEST_F(StitchTest, MathFunctionsAreAsExactAsDocumented) {
  const auto apply = [&](const std::string& expression, const std::vector<double>& inputs) {
    const UserFunction function =
        text("float score(float s, int, int, const ScoreContext&) { return " + expression + "; }");
    const KernelSource source{.path = on_cuda ? "common/attention/kernels/score_oracle.cuda.cu"
                                              : "common/attention/kernels/score_oracle.cpu.cpp",
                              .entry = "score_oracle",
                              .includes = {{"common/attention/kernels/user_score.h", function.header()}}};
    const Buffer buffer = uploaded(device(), inputs);
    ScoreOracleParams params{};
    params.scores = static_cast<double*>(buffer.data());
    params.keys = static_cast<int>(inputs.size());
    CommandEncoder encoder;
    encoder.dispatch(*pipelines().get(source).kernel, {1}, 512, 0, params);
    device().submit(encoder);
    return downloaded<double>(buffer);
  };
  std::vector<double> inputs, positive;
  for (int i = -160; i <= 160; ++i) inputs.push_back(static_cast<float>(i * 0.37));
  for (int i = 1; i <= 200; ++i) positive.push_back(static_cast<float>(i * i * 0.013));
  struct Row {
    const char* expression;
    const std::vector<double>& at;
    std::function<double(double)> want;
    double of_size, fixed, of_argument = 0;  // the error may be of_size * |result| + fixed + of_argument * |x * result|
  };
  for (const auto& [expression, at, want, of_size, fixed, of_argument] :
       {Row{"exp2f(s)", inputs, [](double x) { return std::exp2(x); }, 3e-7, 0},
        Row{"expf(s)", inputs, [](double x) { return std::exp(x); }, 3e-7, 0, 1e-7},
        Row{"tanhf(s)", inputs, [](double x) { return std::tanh(x); }, 0, 3e-7},
        Row{"logf(s)", positive, [](double x) { return std::log(x); }, 3e-7, 3e-7},
        Row{"sqrtf(s)", positive, [](double x) { return std::sqrt(x); }, 3e-7, 0},
        Row{"fabsf(s)", inputs, [](double x) { return std::abs(x); }, 0, 0},
        Row{"fminf(s, 2.0f)", inputs, [](double x) { return std::min(x, 2.0); }, 0, 0},
        Row{"fmaxf(s, 2.0f)", inputs, [](double x) { return std::max(x, 2.0); }, 0, 0}}) {
    const std::vector<double> got = apply(expression, at);
    for (size_t i = 0; i < at.size(); ++i) {
      const double right = want(at[i]);
      EXPECT_NEAR(got[i], right, of_size * std::abs(right) + fixed + of_argument * std::abs(at[i] * right))
          << expression << " at " << at[i];
    }
  }
  EXPECT_EQ(apply("-INFINITY", {1.0}).front(), -std::numeric_limits<double>::infinity());
  EXPECT_GT(apply("expf(s)", {1000.0}).front(), 1e38);
  EXPECT_LT(apply("expf(s)", {-1000.0}).front(), 1e-37);
}

TEST_F(StitchTest, OnlyFormsThatAreNotInlinedLeaveCalls) {
  if (!std::string_view(ATTN_SANITIZE).empty()) GTEST_SKIP() << "sanitizers add calls of their own";
  std::map<std::string, int64_t> left;
  for (const std::string& form : forms()) {
    if (form == "std_function") continue;  // its kernel gets the address to call from the host
    const AttentionHooks hook = stitch_hook(small(form), device().info(), built_in_function("scale", 0));
    const Launch launch = attention_launch(small(form).flash, device().info(), &hook);
    const CodeContents code = device().contents(pipelines().get(launch.source).binary);
    if (code.instructions.empty()) GTEST_SKIP() << "the device does not count instructions";
    for (const auto& [name, count] : code.instructions) {
      if (name.starts_with("call") || name == "CALL" || name == "bl" || name == "blr") left[form] += count;
    }
    EXPECT_GT(code.bytes, 0);
  }
  for (const auto& [form, calls] : left) {
    if (form_is_inlined(form)) {
      EXPECT_EQ(calls, left["monolithic"]) << form;
    } else {
      EXPECT_GT(calls, left["monolithic"]) << form;
    }
  }
}

// ---- mutations: the test replaces a part of form.h, and the check must fail

struct Mutation {
  const char *what, *form, *grain, *from, *to;
};
void PrintTo(const Mutation& mutation, std::ostream* out) { *out << mutation.what; }

class Mutations : public OnDevice<testing::TestWithParam<Mutation>> {};

std::vector<Mutation> mutations() {
  if (on_cuda) {
    return {{"row_of_another_key", "noinline", "row", "k + i / 2 * 8 + i % 2, context);\n#elif",
             "k + i / 2 * 8, context);\n#elif"},
            {"tile_of_another_query", "noinline", "tile", "q + i / 2 % 2 * 8", "q"},
            {"tile_of_another_key", "stitched", "tile", "k + i / 4 * 8 + i % 2", "k + i / 4 * 8"},
            {"another_branch", "switch", "tile", "case 1:", "case 0:"},
            {"another_entry_of_the_table", "pointer", "row", "score_table[score_choice(context)]", "score_table[0]"}};
  }
  return {{"row_of_another_query", "noinline", "row", "s[i] = score(s[i], q + i, k, context)",
           "s[i] = score(s[i], q, k, context)"},
          {"tile_of_another_key", "noinline", "tile", "q + i, k + row, context", "q + i, k, context"},
          {"element_of_another_query", "noinline", "element",
           "  for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] = score_call(s[i], q + i, k, context);\n#endif",
           "  for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] = score_call(s[i], q, k, context);\n#endif"},
          {"last_lane_left_out", "stitched", "row", "i < SCORE_LANES; ++i) s[i] = score(s[i], q + i",
           "i < SCORE_LANES - 1; ++i) s[i] = score(s[i], q + i"},
          {"another_entry_of_the_table", "pointer", "element", "score_table[score_choice(context)]", "score_table[0]"},
          {"another_branch", "switch", "tile", "case 1:", "case 0:"}};
}

INSTANTIATE_TEST_SUITE_P(All, Mutations, testing::ValuesIn(mutations()),
                         [](const auto& test) { return std::string(test.param.what); });

TEST_P(Mutations, AreCaught) {
  const auto& [what, form, grain, from, to] = GetParam();
  const StitchConfig config = small(form, grain);
  const auto inputs = inputs_of(config);
  ASSERT_TRUE(run(config, everything(), inputs).check.ok);
  const test::MutatedSources sources("proto2_stitching/kernels/form.h", from, to);
  PipelineCache fresh(device(), "");
  EXPECT_FALSE(run(config, everything(), inputs, fresh).check.ok);
}

}  // namespace
}  // namespace attn
