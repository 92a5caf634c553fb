// The program as a user meets it: a short run of every task, its records, and what it refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace attn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class ConstantsCliTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/attn-cli-XXXXXX";
    folder_ = mkdtemp(pattern);
    setenv("ATTENTION_PROTO_CACHE", (folder_ / "cache").c_str(), 1);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Exit status; the output of both streams is in `out`.
  int run(const std::string& arguments, std::string& out) const {
    const std::string log = folder_ / "log";
    const int status = std::system(
        fmt::format("cd {} && {}/proto4_constants {} > {} 2>&1", folder_.string(), ATTN_BINARY_DIR, arguments, log)
            .c_str());
    std::ifstream stream(log);
    out = {std::istreambuf_iterator<char>(stream), {}};
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  std::vector<Json> records(const std::string& name) const {
    std::vector<Json> all;
    std::ifstream stream(folder_ / name);
    for (std::string line; std::getline(stream, line);) all.push_back(Json::parse(line));
    return all;
  }

  fs::path folder_;
};

TEST_F(ConstantsCliTest, EveryTaskLeavesRecordsThatTheSchemaAccepts) {
  std::string out;
  const std::string host =
      "--axis task=compile,memory,disk,archive,archive_create,archive_load,start_compile,start_disk,start_archive "
      "--axis kernel=naive --axis variants=2 --axis workers=1 ";
  ASSERT_EQ(run("--device cpu:threads=2 --budget 0.1 " + host, out), 0) << out;
  ASSERT_EQ(
      run("--device cpu:threads=2 --budget 3 --axis task=run --axis kernel=tiled_vector --axis q_len=33 "
          "--axis q_heads=2 --axis head_dim=24 --axis block_r=16 --axis block_c=16 --axis causal=1 --axis alibi=1",
          out),
      0)
      << out;
  std::set<std::string> tasks, claims;
  for (const Json& record : records("measurements.jsonl")) {
    EXPECT_TRUE(record["status"] == "ok" || record["reason"] == "budget spent") << record;
    tasks.insert(record["case"]["task"]);
    if (record["case"]["task"] == "run" && record["status"] == "ok") {
      EXPECT_GT(record["pipeline"]["code_bytes"], 100);
    }
  }
  EXPECT_EQ(tasks.size(), 10u);
  for (const Json& finding : records("findings.jsonl")) claims.insert(finding["data"]["hypothesis"]["id"]);
  EXPECT_TRUE(claims.contains("run_time")) << out;
  const std::string command =
      fmt::format("{0}/findings/validate {1}/measurements.jsonl {1}/findings.jsonl", ATTN_SOURCE_DIR, folder_.string());
  const int status = WEXITSTATUS(std::system(command.c_str()));
  if (status == 77) GTEST_SKIP() << "python3-jsonschema is not installed";
  EXPECT_EQ(status, 0);
}

TEST_F(ConstantsCliTest, ACaseIsResumedAndReplayed) {
  std::string out;
  const std::string one =
      "--device cpu:threads=2 --budget 1 --axis task=compile --axis kernel=naive --axis dtype=f32 --axis variants=1 "
      "--axis workers=1 ";
  ASSERT_EQ(run(one, out), 0) << out;
  ASSERT_EQ(records("measurements.jsonl").size(), 1u) << out;
  const Json first = records("measurements.jsonl")[0];
  EXPECT_EQ(first["time"][0]["scope"], "host");
  EXPECT_EQ(first["values"]["variants"], 1);
  ASSERT_EQ(run(one + "--resume", out), 0) << out;
  EXPECT_NE(out.find("cases recorded 1, left 0"), std::string::npos) << out;
  ASSERT_EQ(run("--budget 1 --replay " + first["id"].get<std::string>(), out), 0) << out;
  EXPECT_NE(out.find("of the recorded median"), std::string::npos) << out;
}

TEST_F(ConstantsCliTest, RefusesInOneLine) {
  for (const std::string arguments :
       {"--axis task=link", "--axis variants=0", "--axis run_time=dtype", "--device cpu:threads=0", "--axis pch=2"}) {
    std::string out;
    EXPECT_EQ(run(arguments, out), 2) << out;
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
  }
  std::string out;
  EXPECT_EQ(run("--first-result cpu", out), 1);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
}

}  // namespace
}  // namespace attn
