// Runs the program as a user runs it: short runs, their records, and refused arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class VariantsCliTest : public test::CpuProgramTest {
 protected:
  VariantsCliTest() : CpuProgramTest("proto7_variants") {}
};

constexpr const char* small_shape =
    "--device cpu:threads=2 --quiet --axis q_len=65 --axis head_dim=24 --axis batch=2 --axis q_heads=3 --axis "
    "causal=0 ";
constexpr const char* even_mask =
    "bool visible(int q, int k) { return (q - k) % 2 == 0; }\n"
    "KeyRange keys(int q) { return {q - 7, q + 1}; }\n";

/// Returns the value of an axis that stands for a file with this text.
std::string value_of(const std::string& text) { return "file-" + sha256(text).substr(0, 12); }

TEST_F(VariantsCliTest, FunctionsOfTheUsersAreComparedWithPlainAttention) {
  const std::string score = "float score(float s, int q, int k) { return s - 0.1f * fabsf(q - k); }\n";
  write_text("even.cpp", even_mask);
  write_text("near.cpp", score);
  const Outcome outcome =
      run_line(small_shape + test::few_samples + "--mask-function even.cpp --score-function near.cpp");
  ASSERT_EQ(outcome.status, 0) << outcome.err << outcome.out;
  EXPECT_EQ(outcome.err, "");
  std::set<std::string> seen;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    const std::string mask = record["case"]["mask_function"];
    seen.insert(record["case"]["score_function"].get<std::string>() + " " + mask);
    // A row sees the existing keys among q - 6, q - 4, q - 2 and q: 4 keys, but fewer in the first six rows.
    EXPECT_EQ(record["work"]["flops"], 4. * 24 * 6 * (mask == "none" ? 65 * 65 : 1 + 1 + 2 + 2 + 3 + 3 + 59 * 4));
  }
  const std::string its_score = value_of(score), its_mask = value_of(even_mask);
  EXPECT_EQ(seen,
            (std::set<std::string>{"none none", its_score + " none", "none " + its_mask, its_score + " " + its_mask}));
  std::set<std::string> claims;
  for (const auto& finding : findings()) {
    claims.insert(finding["data"]["hypothesis"]["id"]);
    EXPECT_NE(finding["data"]["subject"].get<std::string>().find("_function=file-"), std::string::npos) << finding;
  }
  EXPECT_EQ(claims, (std::set<std::string>{"score_function", "mask_function"})) << outcome.out;
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));

  EXPECT_EQ(run_line("--quiet --only verify --axis mask_function=" + its_mask).status, 2)
      << "a function's name was accepted without --mask-function";
}

TEST_F(VariantsCliTest, AFileThatIsNoFunctionGivesAShortMessageAndStatus2) {
  for (const auto& [option, text, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"--mask-function", "#include <cmath>\n", "has #include in line 1"},
           {"--mask-function", "bool other(int);\nbool visible(int q, int) { return other(q); }", "calls other(int)"},
           {"--score-function", "float score(float s) { return s; }",
            "it must define float score(float s, int q, int k"},
           {"--mask-function", "bool visible(int q, int k) { return slop; }", "function.cpp:1:37: error"}}) {
    write_text("function.cpp", text);
    const Outcome outcome = run_line(std::string(small_shape) + option + " function.cpp");
    EXPECT_EQ(outcome.status, 2) << text;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
    EXPECT_LE(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(run_line(std::string(small_shape) + "--mask-function .").status, 2);
  EXPECT_EQ(run_line(std::string(small_shape) + "--mask-function nowhere").status, 2);
  EXPECT_TRUE(records("measurements.jsonl").empty());
}

/// In these tests a user's function faults, or does not end, at the query 30. The function's case must fail with a
/// message of one line, and the case without the function must be measured all the same.
class GuardCliTest : public VariantsCliTest {
 protected:
  void SetUp() override {
    VariantsCliTest::SetUp();
    if (*ATTN_SANITIZE) GTEST_SKIP() << "the sanitizer reports the fault itself, or handles the signal";
  }
  void expect_failed(const std::string& text, const std::string& status, const std::string& says, int threads = 2) {
    const bool mask = text.find("bool visible") != text.npos;
    write_text("wrong.cpp", text);
    std::filesystem::remove(path("measurements.jsonl"));
    const Outcome outcome = run_line(
        "--device cpu:threads=" + std::to_string(threads) +
        " --quiet --axis q_len=65 --axis head_dim=24 --axis batch=1 --axis q_heads=1 --axis causal=0 --only verify " +
        std::string(mask ? "--mask-function" : "--score-function") + " wrong.cpp");
    EXPECT_EQ(outcome.status, 1) << text << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    std::map<std::string, Json> found;
    for (const auto& record : records("measurements.jsonl"))
      found[record["case"][mask ? "mask_function" : "score_function"]] = record;
    ASSERT_EQ(found.size(), 2u) << outcome.err;
    EXPECT_EQ(found.at("none")["status"], "ok");
    const auto& record = found.at(value_of(text));
    EXPECT_EQ(record["status"], status) << record;
    EXPECT_NE(record["reason"].get<std::string>().find(says), std::string::npos) << record["reason"];
    EXPECT_EQ(record["reason"].get<std::string>().find('\n'), std::string::npos) << record["reason"];
  }
};

TEST_F(GuardCliTest, AFunctionThatFaultsFailsOnlyItsOwnCase) {
  const std::string head = "float score(float s, int q, int k, const ScoreContext&) {\n  if (q == 30 && k == 7) ";
  expect_failed(head + "return *reinterpret_cast<volatile float*>(64);\n  return s;\n}\n", "failed",
                "flash_forward, with a user's function, met an illegal address (0x40)");
  expect_failed("int deep(volatile int& n) { n = n + 1; return n < 0 ? 0 : deep(n) + n; }\n" + head +
                    "{\n    volatile int n = 0;\n    return deep(n);\n  }\n  return s;\n}\n",
                "failed", "flash_forward, with a user's function, filled its stack");
  expect_failed(head + "__builtin_trap();\n  return s;\n}\n", "failed", "met a trap");
  // Only the oracle's text defines the macro `float`.
  expect_failed("#ifdef float\nconstexpr bool oracle = true;\n#else\nconstexpr bool oracle = false;\n#endif\n" + head +
                    "if (oracle) return *reinterpret_cast<volatile float*>(64);\n  return s;\n}\n",
                "failed", "score_oracle, with a user's function, met an illegal address (0x40)");
  // To make a problem, the program counts the pairs that the mask function leaves. This mask function fails during the
  // count.
  expect_failed("bool visible(int q, int k) {\n  if (q == 30) __builtin_trap();\n  return q > k;\n}\n", "failed",
                "mask_oracle, with a user's function, met a trap");
#ifdef __x86_64__  // on other architectures an integer division by zero gives 0
  expect_failed(head + "{\n    volatile int zero = 0;\n    return k / zero;\n  }\n  return s;\n}\n", "failed",
                "divided by zero");
#endif
}

// After the guard jumps out of this function, the process returns to an address that the function has overwritten.
TEST_F(GuardCliTest, AFunctionThatOverwritesTheStackFailsOnlyItsOwnCase) {
  expect_failed(
      "float score(float s, int q, int k, const ScoreContext&) {\n  if (q == 30 && k == 7) {\n"
      "    auto* const place = static_cast<volatile char*>(__builtin_frame_address(0));\n"
      "    for (int i = 0; i < 1 << 26; ++i) place[i] = 1;\n  }\n  return s;\n}\n",
      "failed", "device lost: the process of the run was ended by signal");
}

TEST_F(GuardCliTest, AFunctionWithoutEndFailsOnlyItsOwnCase) {
  expect_failed(
      "float score(float s, int q, int k) {\n  volatile bool on = q == 30 && k == 7;\n"
      "  while (on) {}\n  return s;\n}\n",
      "timeout", "did not end a threadgroup within 10 s", 1);  // a second thread would spin for 10 s, too
}

TEST_F(VariantsCliTest, RunsSharedHeadsByIndexAndByCopyAndTheCopiesAlone) {
  const Outcome outcome = run_line(
      "--device cpu:threads=2" + test::few_samples +
      test::axes_of("q_len=65 head_dim=24 batch=2 q_heads=6 kv_heads=2 causal=1 dtype=f32 out_dtype=f32 variant=tuned "
                    "layout=bhsd,bshd kv_heads_by=index,copy alibi=0 soft_cap=0 sinks=0 documents=0 prefix=0 bias=none "
                    "lengths=0 window_left=-1 task=attention,expand rope=none global_tokens=0 block_sparse=0 "
                    "window_by=range lists=1"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::map<std::string, int> cases;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    const std::string by = record["case"]["kv_heads_by"];
    const bool alone = record["case"]["task"] == "expand";
    ++cases[alone ? "expand" : by];
    // Attention moves Q, K, V, O and lse. The launch that copies reads K and V of 2 heads, and writes K and V of 6
    // heads.
    const double rows = 2 * 65 * 24 * 4, copies = 2 * (2 + 6) * rows;
    EXPECT_EQ(record["work"]["bytes"], alone           ? copies
                                       : by == "index" ? 2 * (6 + 2) * rows + 6 * 2 * 65 * 4
                                                       : 2 * (6 + 6) * rows + 6 * 2 * 65 * 4 + copies);
    if (by == "copy" && !alone) {
      ASSERT_EQ(record["phases"].size(), 2u);
      EXPECT_EQ(record["phases"][0]["phase"], "expand");
      EXPECT_EQ(record["phases"][1]["phase"], "attention");
    }
    EXPECT_EQ(record["case"]["q_len"], alone ? 0 : 65);
  }
  EXPECT_EQ(cases, (std::map<std::string, int>{{"index", 2}, {"copy", 2}, {"expand", 2}}));
  std::map<std::string, int> claims;
  for (const auto& finding : findings()) ++claims[finding["data"]["hypothesis"]["id"]];
  EXPECT_EQ(claims, (std::map<std::string, int>{{"gqa_copy", 2}, {"expand_share", 2}})) << outcome.out;
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

// A user may ask for a value that makes no sense with a value of the sweep. The run skips such cases.
TEST_F(VariantsCliTest, SkipsModifiersThatChangeNothing) {
  for (const auto& [axes, reason] :
       {std::pair{"--axis prefix=5 --axis causal=0", "prefix=5: without causal=1"},
        {"--axis global_tokens=4 --axis window_left=-1", "global_tokens=4: without window"},
        {"--axis window_by=mask --axis window_left=-1", "there is no window_left"},
        {"--axis score_by=noinline --axis alibi=0", "score_by=noinline: there is no alibi, soft_cap or bias"},
        {"--axis lists=0 --axis window_by=range --axis block_sparse=0 "
         "--axis global_tokens=0 --axis window_left=-1",
         "lists=0: only global_tokens"}}) {
    std::filesystem::remove(path("measurements.jsonl"));
    const Outcome outcome =
        run_line(std::string(axes) + " --axis task=attention --axis q_len=20 --axis head_dim=16 --only verify");
    int skipped = 0, others = 0;
    for (const auto& record : records("measurements.jsonl")) {
      const bool so =
          record["status"] == "skipped" && record["reason"].get<std::string>().find(reason) != std::string::npos;
      ++(so ? skipped : others);
    }
    EXPECT_GT(skipped, 0) << axes;
    EXPECT_EQ(outcome.status, others > 0 ? 0 : 4) << outcome.err;
  }
}

}  // namespace
}  // namespace attn
