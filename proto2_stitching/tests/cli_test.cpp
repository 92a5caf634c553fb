// Runs the program as a user runs it. Most tests give the program a user's score function.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class StitchCliTest : public test::CpuProgramTest {
 protected:
  StitchCliTest() : CpuProgramTest("proto2_stitching") {}

  static constexpr const char* small = "--device cpu:threads=2 --axis q_len=64 --axis head_dim=32 --axis q_heads=2 ";
};

TEST_F(StitchCliTest, AUsersFunctionRunsInEveryForm) {
  own_cache();
  write_text("window.cpp",
             "// Keys at most 20 away.\n"
             "constexpr int reach = 20;\n"
             "static bool near(int distance) { return distance <= reach && distance >= -reach; }\n"
             "float score(float s, int q, int k, const ScoreContext& c) {\n"
             "  return near(q + c.kv_len - c.q_len - k) ? s : -INFINITY;\n"
             "}\n");
  const Outcome outcome = run_line(std::string(small) + test::few_samples + "--score-function window.cpp");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("warning"), std::string::npos) << outcome.err;
  std::set<std::string> forms;
  for (const Json& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record["reason"];
    EXPECT_EQ(record["case"]["function"], "file-" + sha256(text_of(path("window.cpp"))).substr(0, 12));
    EXPECT_GT(record["values"]["calls"], 0);
    EXPECT_GT(record["values"]["calls_per_tile"], 0);
    EXPECT_GT(record["pipeline"]["code_bytes"], 0);
    EXPECT_EQ(record["run"]["files"]["--score-function"]["path"], "window.cpp");
    forms.insert(record["case"]["form"]);
  }
  EXPECT_EQ(forms.size(), 9u);
  ASSERT_FALSE(findings().empty());
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));

  const std::string finding = findings().front()["id"];
  const Outcome replay = run_line("--samples 6 --replay " + finding);
  EXPECT_EQ(replay.status, 0) << replay.err;
  write_text("window.cpp", "float score(float s, int, int, const ScoreContext&) { return s; }\n");
  EXPECT_EQ(run_line("--replay " + finding).status, 2);
}

// The compiler's stack is too small for a million additions in one expression.
TEST_F(StitchCliTest, AFunctionThatCrashesTheCompilerGivesStatus2AndOneLine) {
  if (*ATTN_SANITIZE) GTEST_SKIP() << "the sanitizer ends the program with a report";
  std::string text = "#define A0 +s\n";
  for (int i = 1; i <= 6; ++i) {
    const std::string last = " A" + std::to_string(i - 1);
    text += "#define A" + std::to_string(i);
    for (int n = 0; n < 10; ++n) text += last;
    text += "\n";
  }
  write_text("f.cpp", text + "float score(float s, int, int, const ScoreContext&) { return s A6; }\n");
  const Outcome outcome =
      run_shell(std::string(small) + "--only verify --quiet --score-function f.cpp", "ulimit -s 8192; ulimit -c 0; ");
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("while it compiled --score-function f.cpp"), std::string::npos) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST_F(StitchCliTest, ABadFunctionGivesOneLineAndStatus2) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"// one\nfloat score(float s, int, int) {\n  return s + missing;\n}\n",
            "f.cpp:3:14: error: use of undeclared"},
           {"float other(float s) { return s; }", "float score(float s, int q, int k, const ScoreContext& context)"},
           {"\n#pragma STDC FENV_ACCESS ON\nfloat score(float s, int, int) { return s; }", "#pragma in line 2"}}) {
    write_text("f.cpp", text);
    const Outcome outcome = run_line(std::string(small) + "--quiet --score-function f.cpp");
    EXPECT_EQ(outcome.status, 2) << text;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
    EXPECT_LE(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(records("measurements.jsonl").empty());
  }
}

}  // namespace
}  // namespace attn
