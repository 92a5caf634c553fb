// The program as a user meets it, with a score function of their own.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace attn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Outcome {
  int status = -1;
  std::string out, err;
};

class StitchCliTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/attn-stitch-XXXXXX";
    folder_ = mkdtemp(pattern);
    setenv("ATTENTION_PROTO_CACHE", (folder_ / "cache").c_str(), 1);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string text_of(const fs::path& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::vector<Json> records(const std::string& name) const {
    std::vector<Json> all;
    std::ifstream stream(folder_ / name);
    for (std::string line; std::getline(stream, line);) all.push_back(Json::parse(line));
    return all;
  }
  Outcome run(const std::string& arguments) const {
    const std::string command = fmt::format("cd {0} && {1}/proto2_stitching {2} > run.out 2> run.err", folder_.string(),
                                            ATTN_BINARY_DIR, arguments);
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), text_of(folder_ / "run.out"), text_of(folder_ / "run.err")};
  }

  static constexpr const char* small = "--device cpu:threads=2 --axis q_len=64 --axis head_dim=32 --axis q_heads=2 ";
  fs::path folder_;
};

TEST_F(StitchCliTest, AFunctionOfTheUsersRunsInEveryForm) {
  write("window.cpp",
        "// Keys at most 20 away.\n"
        "constexpr int reach = 20;\n"
        "static bool near(int distance) { return distance <= reach && distance >= -reach; }\n"
        "float score(float s, int q, int k, const ScoreContext& c) {\n"
        "  return near(q + c.kv_len - c.q_len - k) ? s : -INFINITY;\n"
        "}\n");
  const Outcome outcome = run(std::string(small) + "--score-function window.cpp --budget 8");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("warning"), std::string::npos) << outcome.err;
  std::set<std::string> forms;
  for (const Json& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record["reason"];
    EXPECT_EQ(record["case"]["function"], "file");
    EXPECT_GT(record["values"]["calls"], 0);
    EXPECT_GT(record["values"]["calls_per_tile"], 0);
    EXPECT_GT(record["pipeline"]["code_bytes"], 0);
    EXPECT_EQ(record["run"]["file"]["path"], "window.cpp");
    forms.insert(record["case"]["form"]);
  }
  EXPECT_EQ(forms.size(), 9u);
  ASSERT_FALSE(records("findings.jsonl").empty());
  const std::string command =
      fmt::format("{}/findings/validate {} {}", ATTN_SOURCE_DIR, (folder_ / "measurements.jsonl").string(),
                  (folder_ / "findings.jsonl").string());
  const int status = WEXITSTATUS(std::system(command.c_str()));
  EXPECT_TRUE(status == 0 || status == 77) << "the schema does not accept the records";  // 77: no python3-jsonschema

  const std::string finding = records("findings.jsonl").front()["id"];
  const Outcome replay = run("--replay " + finding);
  EXPECT_EQ(replay.status, 0) << replay.err;
  write("window.cpp", "float score(float s, int, int, const ScoreContext&) { return s; }\n");
  EXPECT_EQ(run("--replay " + finding).status, 2);
}

TEST_F(StitchCliTest, AFunctionThatDoesNotCompileIsStatus2WithItsOwnLines) {
  write("broken.cpp",
        "// one\n// two\nfloat score(float s, int q, int k, const ScoreContext& c) {\n  return s + missing;\n}\n");
  const Outcome outcome = run(std::string(small) + "--score-function broken.cpp");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("broken.cpp:4:14: error: use of undeclared identifier 'missing'"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(records("measurements.jsonl").empty());
}

TEST_F(StitchCliTest, BadInputIsStatus2) {
  write("other.cpp", "float other(float s) { return s; }\n");
  write("ok.cpp", "float score(float s, int, int, const ScoreContext&) { return s; }\n");
  for (const auto& [arguments, says] : std::vector<std::pair<std::string, std::string>>{
           {"--score-function nowhere.cpp", "nowhere.cpp"},
           {"--score-function other.cpp", "float score(float s, int q, int k, const ScoreContext& context)"},
           {"--score-function ''", "empty"},
           {"--score-function ok.cpp --axis function=alibi", "function=file"},
           {"--axis function=file", "alibi"},
           {"--axis form=jump", "monolithic"},
           {"--axis grain=page", "element"},
           {"--axis work=-1", "work"},
           {"--axis variant=naive", "unknown axis 'variant'"},
           {"--axis kv_heads=3", "does not divide"}}) {
    const Outcome outcome = run(small + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << arguments << ": " << outcome.err;
  }
}

TEST_F(StitchCliTest, ResumedRunsMeasureNothingTwice) {
  const std::string arguments = std::string(small) +
                                "--axis function=scale --axis form=monolithic,stitched,noinline "
                                "--axis grain=element,tile --budget 3 --resume";
  ASSERT_EQ(run(arguments).status, 0);
  const size_t before = records("measurements.jsonl").size();
  EXPECT_EQ(before, 5u);
  ASSERT_EQ(run(arguments).status, 0);
  EXPECT_EQ(records("measurements.jsonl").size(), before);
}

TEST_F(StitchCliTest, ListAndHelpNameForms) {
  const Outcome list = run("--list");
  EXPECT_EQ(list.status, 0);
  EXPECT_NE(list.out.find("stitched_nolto"), std::string::npos);
  EXPECT_NE(list.out.find("break_even"), std::string::npos);
  EXPECT_NE(run("--help").out.find("--score-function"), std::string::npos);
}

}  // namespace
}  // namespace attn
