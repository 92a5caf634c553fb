// Runs the programs as a user runs them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/tuning.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class CodegenCliTest : public test::CpuProgramTest {
 protected:
  CodegenCliTest() : CpuProgramTest("proto5_codegen") {}
};

constexpr const char* small_shape = "--device cpu:threads=2 --only verify --axis heads=2 --axis q_len=70 ";

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

TEST_F(CodegenCliTest, DamagedWinnersAreOneLineOfTheLogAndDoNotCount) {
  namespace fs = std::filesystem;
  const fs::path original = ATTN_SOURCE_DIR, tree = path("tree");
  fs::create_directories(tree / "findings/tuning");
  fs::create_directories(tree / "proto5_codegen");
  fs::create_directory_symlink(original / "common", tree / "common");
  fs::create_directory_symlink(original / "proto5_codegen/kernels", tree / "proto5_codegen/kernels");
  const std::string file = tuning_path(Device::open("cpu")->info());
  const auto winner = [](const std::string& constants) {
    return R"({"generated":{"search":{"scores head_dim=64 dtype=f32":{"constants":)" + constants +
           R"(,"q_len":1,"heads":1,"tried":1,"seconds":1}}}})";
  };
  setenv("ATTENTION_PROTO_SOURCE", tree.c_str(), 1);
  const auto dry = [&](const std::string& text) {
    std::ofstream(tree / file) << text;
    return run_line(std::string(small_shape) +
                    "--axis work=scores --axis generator=search --axis head_dim=64 --dry-run");
  };
  for (const char* sound : {"{}", R"({"BLOCK_R":32})"}) {
    const Outcome outcome = dry(winner(sound));
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
  }
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {winner(R"({"BLOCK_R":"wide"})"), R"(BLOCK_R: "wide" is not allowed; one of 16, 32, 48)"},
           {winner(R"({"BLOCK_R":-7})"), "BLOCK_R: -7 is not allowed; one of 16"},
           {winner(R"({"BLOCK_X":16})"), "BLOCK_X is no constant of this search"},
           {winner("5"), "constants: 5 is not allowed; an object"}}) {
    const Outcome outcome = dry(text);
    EXPECT_EQ(outcome.status, 0) << text;
    EXPECT_NE(outcome.err.find(file + ": generated: search: scores head_dim=64 dtype=f32: " + words), std::string::npos)
        << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  unsetenv("ATTENTION_PROTO_SOURCE");
}

// The recorded time (`us`) of each winner in the source tree is at most the recorded time with the constants that are
// used without a search (`usual_us`).
TEST(Winners, InTheSourceTreeAreNoSlower) {
  int found = 0;
  for (const auto& file : std::filesystem::directory_iterator(ATTN_SOURCE_DIR "/findings/tuning")) {
    DeviceInfo device;
    device.arch = file.path().stem();
    const Json content = read_tuning(device);
    if (!content.contains("generated")) continue;
    for (const auto& [generator, cases] : content["generated"].items()) {
      for (const auto& [key, winner] : cases.items()) {
        ++found;
        EXPECT_LE(winner.at("us").get<double>(), winner.at("usual_us").get<double>()) << generator << " " << key;
      }
    }
  }
  EXPECT_GT(found, 0);
}

class TuneCliTest : public test::ProgramTest {
 protected:
  TuneCliTest() : ProgramTest("proto5_codegen_tune") {}
};

TEST_F(TuneCliTest, ADamagedFileOfTuningIsNotOverwritten) {
  namespace fs = std::filesystem;
  const fs::path tree = path("tree");
  fs::create_directories(tree / "findings/tuning");
  fs::create_directory_symlink(fs::path(ATTN_SOURCE_DIR) / "common", tree / "common");
  const std::string file = tuning_path(Device::open("cpu")->info());
  std::ofstream(tree / file) << "{";
  setenv("ATTENTION_PROTO_SOURCE", tree.c_str(), 1);
  const Outcome outcome = run_line("--seconds 0.001 --work softmax");
  unsetenv("ATTENTION_PROTO_SOURCE");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "proto5_codegen_tune: " + file + " is no JSON object\n");
  EXPECT_EQ(*read_file(tree / file), "{");
}

TEST_F(TuneCliTest, BadArgumentsGiveOneLineAndStatus2) {
  for (const char* line : {"--nosuch", "--seconds x", "--work nosuch", "--dtype f8", "--seconds 0", "--seconds nan",
                           "--seconds inf", "--seconds -1", "--heads 0", "--heads 99999999999999999999", "--heads 0x8",
                           "--q-len 0", "--work ''", "extra"}) {
    const Outcome outcome = run_line(line);
    EXPECT_EQ(outcome.status, 2) << line;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace attn
