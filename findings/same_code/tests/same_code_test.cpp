// Runs same_code on two trees with one kernel each. The records are of processors that the test's machine need not
// have.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/backends/cpu/target.h"
#include "common/base/json.h"
#include "common/source/kernel_source.h"
#include "common/testing/program.h"

namespace attn::kb {
namespace {

class SameCodeTest : public test::ProgramTest {
 protected:
  SameCodeTest() : ProgramTest("same_code") {
    for (const char* folder : {"old/kernels", "new/kernels", "new/findings"}) {
      std::filesystem::create_directories(path(folder));
    }
    write_text("new/findings/same_code.txt", "# A head.\n");
    write_text("old/kernels/twice.cpu.cpp", kernel("float twice(float x) { return x + x; }"));
    setenv("ATTENTION_PROTO_SOURCE", path("old").c_str(), 1);
    recorded_ = source_sha256(twice());
    setenv("ATTENTION_PROTO_SOURCE", path("new").c_str(), 1);
  }
  ~SameCodeTest() override { unsetenv("ATTENTION_PROTO_SOURCE"); }

  static KernelSource twice() {
    return {.path = "kernels/twice.cpu.cpp", .entry = "twice", .constants = {{"COUNT", 8}}};
  }
  static std::string kernel(const std::string& function) {
    return "static inline " + function +
           "\nextern \"C\" void twice(float* values) { for (int i = 0; i < COUNT; ++i) values[i] = ::twice(values[i]); "
           "}";
  }

  /// Writes records of the old kernel on processors of `families`, and compares the old kernel with a kernel of
  /// `function`. The first finding describes its processor itself; the other processors are described in headers of
  /// runs.
  test::Outcome compare(const std::string& function, const std::vector<std::string>& families,
                        const std::string& key = twice().key()) {
    std::string text = kernel(function);
    text.replace(text.find("::twice"), 7, function.substr(6, function.find('(') - 6));
    write_text("new/kernels/twice.cpu.cpp", text);
    std::string records;
    for (const std::string& family : families) {
      const Json env = {
          {"device", {{"backend", "cpu"}, {"arch", family}, {"features", CpuTarget::named(family).features}}}};
      const Json pipeline = {{"key", key}, {"source_sha256", recorded_}, {"code_sha256", ""}};
      if (records.empty()) {
        records += Json{{"data", {{"device", family}, {"env", env}}}}.dump() + "\n";
      } else {
        records += Json{{"schema", "run/1"}, {"run", {{"id", family}}}, {"env", env}}.dump() + "\n";
        records += Json{{"schema", "finding/2"}, {"data", {{"device", family}, {"run", family}}}}.dump() + "\n";
      }
      records += Json{{"device", family}, {"pipeline", pipeline}}.dump() + "\n";
    }
    return run(
        {"--old", path("old"), "--out", path("new/findings/same_code.txt"), write_text("records.jsonl", records)});
  }
  std::string same_code() const { return text_of(path("new/findings/same_code.txt")); }

  std::string recorded_;
};

// Sanitizers put column numbers of the text into the machine code. So the functions' names are as long as "::twice",
// which they replace.
TEST_F(SameCodeTest, OtherTextOfTheSameCodeIsAdded) {
  const test::Outcome outcome = compare("float doubled(float x) { return 2 * x; }", {"znver3", "cascadelake"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "kernels: 0 current, 1 changed with the same machine code, 0 changed otherwise, 0 with incomplete keys\n");
  EXPECT_EQ(same_code(), "# A head.\n" + recorded_ + " " + source_sha256(twice()) + "\n");
  // A second run has nothing to do. A further change of the text replaces the pair.
  EXPECT_EQ(compare("float doubled(float x) { return 2 * x; }", {"znver3"}).out,
            "kernels: 1 current, 0 changed with the same machine code, 0 changed otherwise, 0 with incomplete keys\n");
  EXPECT_EQ(compare("float doubler(float x) { return x + x; }", {"znver3"}).status, 0);
  EXPECT_EQ(same_code(), "# A head.\n" + recorded_ + " " + source_sha256(twice()) + "\n");
}

TEST_F(SameCodeTest, OtherCodeIsReportedAndNotAdded) {
  const test::Outcome other = compare("float thrice(float x) { return 3 * x; }", {"znver3"});
  EXPECT_NE(other.out.find("twice[COUNT=8] (znver3): other machine code\n"), other.out.npos) << other.out;
  const test::Outcome broken = compare("float doubled(float x) { return y; }", {"znver3"});
  EXPECT_NE(broken.out.find("(znver3): does not compile: "), broken.out.npos) << broken.out;
  const test::Outcome foreign = compare("float doubled(float x) { return 2 * x; }", {"znver3"}, "twice[COUNT=9]");
  EXPECT_NE(foreign.out.find("twice[COUNT=9] (znver3): the old tree does not have the recorded text\n"),
            foreign.out.npos)
      << foreign.out;
  EXPECT_EQ(same_code(), "# A head.\n");
}

// A pair of hashes names no device.
TEST_F(SameCodeTest, CodeThatDiffersOnOneDeviceIsNotAdded) {
  const std::string function =
      "float twice_on(float x) {\n#ifdef __AVX512F__\nreturn 3 * x;\n#else\nreturn 2 * x;\n#endif\n}";
  const test::Outcome outcome = compare(function, {"znver3", "znver4"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(same_code(), "# A head.\n");
}

// findings/same_code.txt is about the runs in findings/recorded.
TEST_F(SameCodeTest, NamedRecordFilesNeedANamedList) {
  compare("float doubled(float x) { return 2 * x; }", {"znver3"});
  write_text("new/findings/same_code.txt", "# A head.\n");
  const test::Outcome outcome = run({"--old", path("old"), path("records.jsonl")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("FILE needs --out LIST or --dry-run"), outcome.err.npos) << outcome.err;
  EXPECT_EQ(same_code(), "# A head.\n");
}

TEST_F(SameCodeTest, RefusesFilesThatItCannotRead) {
  EXPECT_EQ(run({"--old", path("old"), "--dry-run", path("none.jsonl")}).status, 2);
  const std::string array = write_text("array.jsonl", R"({"device":5,"pipeline":[]})"
                                                      "\n");
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{path("none.jsonl")},
                                             {"--old", path("none")},
                                             {"--nosuch"},
                                             {"--old", ""},
                                             {"--old", path("old"), "--dry-run", "/dev/zero"},
                                             {"--old", path("old"), "--dry-run", array},
                                             {"--old", path("old"), "--out", path("old"), array},
                                             {"--old", path("old"), "--out", array, array}}) {
    const test::Outcome outcome = run(wrong);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  const test::Outcome damaged =
      run({"--old", path("old"), "--dry-run", write_text("damaged.jsonl.gz", "\x1f\x8b\x08")});
  EXPECT_EQ(damaged.status, 2);
  EXPECT_NE(damaged.err.find("damaged.jsonl.gz: is damaged gzip: it ends early"), damaged.err.npos) << damaged.err;
}

TEST_F(SameCodeTest, ReadsGzipAndTheRecordedRuns) {
  ASSERT_EQ(compare("float doubled(float x) { return 2 * x; }", {"znver3"}).status, 0);
  ASSERT_EQ(std::system(("gzip -9n '" + path("records.jsonl").string() + "'").c_str()), 0);
  const test::Outcome packed = run({"--old", path("old"), "--dry-run", path("records.jsonl.gz")});
  EXPECT_EQ(packed.out,
            "kernels: 1 current, 0 changed with the same machine code, 0 changed otherwise, 0 with incomplete keys\n")
      << packed.err;
  std::filesystem::create_directories(path("new/findings/recorded/device"));
  std::filesystem::rename(path("records.jsonl.gz"), path("new/findings/recorded/device/run.jsonl.gz"));
  EXPECT_EQ(run({"--old", path("old")}).out, packed.out) << "without FILE, same_code must read the recorded runs";
}

}  // namespace
}  // namespace attn::kb
