// A sweep with kernels that fault or hang records the cases of these kernels, and measures all other cases.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/device/tests/support.h"
#include "common/records/finding.h"

namespace attn {
namespace {

class GpuLoopTest : public test::OpenDeviceTest {
 protected:
  GpuLoopTest() : OpenDeviceTest("cuda") {}
  void SetUp() override {
    OpenDeviceTest::SetUp();
    device_.reset();  // the experiment runs in another process
  }

  /// Runs faulty_experiment; returns its exit status.
  int run(const std::string& arguments) const {
    const std::string folder = folder_.path();
    const int status = std::system(("cd " + folder + " && ATTENTION_PROTO_CACHE=" + folder +
                                    "/cache " ATTN_BINARY_DIR "/faulty_experiment --device cuda --budget 2 " +
                                    arguments + " > out 2> err")
                                       .c_str());
    std::printf("%s%s", test::read_text(folder_.path() / "err").c_str(),
                test::read_text(folder_.path() / "out").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  /// Returns the last record of each case. The key is "n variant".
  std::map<std::string, Json> records() const {
    std::vector<std::string> problems;
    std::map<std::string, Json> found;
    for (Json& record : read_records(folder_.path() / "measurements.jsonl", problems)) {
      const Json& config = record["case"];
      found[config["n"].dump() + " " + config["variant"].get<std::string>()] = record;
    }
    return found;
  }

  test::TemporaryFolder folder_;
};

TEST_F(GpuLoopTest, AFaultCostsOneCase) {
  EXPECT_EQ(run("--profile full --axis n=1,2 --axis variant=good,late_fault,fault,fine"), 1);
  const auto found = records();
  ASSERT_EQ(found.size(), 8u);
  for (const std::string n : {"1 ", "2 "}) {
    for (const char* variant : {"good", "fine"}) {
      const Json& record = found.at(n + variant);
      EXPECT_EQ(record["status"], "ok") << record;
      EXPECT_EQ(record["time"].size(), 3u) << "a record must have hot, cold and host times";
      EXPECT_GT(record["clocks"]["core_mhz"].get<double>(), 0);
      EXPECT_GE(record["clocks"]["readings"].get<int>(), 1);
      std::printf("%s\n", record["clocks"].dump().c_str());
      EXPECT_GT(record["pipeline"]["registers"].get<int>(), 0);
    }
    for (const char* variant : {"fault", "late_fault"}) {
      const Json& record = found.at(n + variant);
      EXPECT_EQ(record["status"], "failed") << record;
      EXPECT_NE(record["reason"].get<std::string>().find("illegal memory access"), std::string::npos) << record;
      EXPECT_TRUE(record["time"].empty());
    }
  }
}

TEST_F(GpuLoopTest, AHangCostsOneCaseAndAProcess) {
  EXPECT_EQ(run("--axis n=1,2 --axis variant=good,hang,late_hang,fine"), 1);
  const auto found = records();
  ASSERT_EQ(found.size(), 8u);
  std::set<std::string> runs;
  for (const auto& [name, record] : found) runs.insert(record["run_id"].get<std::string>());
  EXPECT_EQ(runs.size(), 1u) << "the new process must go on with the same run";
  for (const char* name : {"1 good", "1 fine", "2 good", "2 fine"}) EXPECT_EQ(found.at(name)["status"], "ok") << name;
  for (const char* name : {"1 hang", "1 late_hang"}) {
    EXPECT_EQ(found.at(name)["status"], "timeout") << name;
    EXPECT_NE(found.at(name)["reason"].get<std::string>().find("did not end within"), std::string::npos);
  }
  EXPECT_EQ(found.at("2 hang")["status"], "skipped");
  const std::string out = test::read_text(folder_.path() / "out");
  EXPECT_NE(out.find("timeout"), std::string::npos) << "the table must have all cases";
}

}  // namespace
}  // namespace attn
