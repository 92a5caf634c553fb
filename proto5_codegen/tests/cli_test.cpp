// The program as a user runs it: a short run, its records, a missing package, refused arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class CodegenCliTest : public test::CpuProgramTest {
 protected:
  CodegenCliTest() : CpuProgramTest("proto5_codegen") {}
};

constexpr const char* small_shape = "--device cpu:threads=2 --only verify --axis heads=2 --axis q_len=70 ";

TEST_F(CodegenCliTest, RecordsSayHowLongTheSourceIs) {
  const Outcome outcome = run_line(std::string(small_shape) +
                                   "--axis work=scores,softmax,values,modified --axis generator=hand,compiler --axis "
                                   "head_dim=64 --axis causal=0");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto all = records("measurements.jsonl");
  for (const auto& record : all) {
    EXPECT_EQ(record["status"], "ok") << record;
    EXPECT_GT(record["values"]["source_lines"], 10) << record;
  }
  EXPECT_EQ(all.size(), 8u);
}

TEST_F(CodegenCliTest, AMissingGeneratorIsASkipThatNamesThePackage) {
  setenv("ATTENTION_PROTO_PYTHON", "/bin/false", 1);
  const Outcome outcome = run_line(std::string(small_shape) +
                                   "--axis work=scores --axis generator=hand,halide_tuned --axis "
                                   "head_dim=64");
  unsetenv("ATTENTION_PROTO_PYTHON");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  bool skipped = false;
  for (const auto& record : records("measurements.jsonl")) {
    if (record["case"]["generator"] == "hand") {
      EXPECT_EQ(record["status"], "ok");
    }
    if (record["case"]["generator"] != "halide_tuned") continue;
    skipped = true;
    EXPECT_EQ(record["status"], "skipped");
    EXPECT_NE(record["reason"].get<std::string>().find("package halide"), std::string::npos) << record["reason"];
  }
  EXPECT_TRUE(skipped);
}

TEST_F(CodegenCliTest, SaysInOneLineWhatIsWrong) {
  for (const auto& [arguments, words] : {std::pair{"--axis work=gemm", "work"},
                                         {"--axis generator=tvm", "generator"},
                                         {"--axis head_dim=100", "head_dim"},
                                         {"--axis causal=2", "causal"}}) {
    const Outcome outcome = run_line(std::string(arguments) + " --dry-run");
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace attn
