// Tests of workers that end badly: a run records the case that ended its worker, and measures all other cases.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <tuple>

#include "common/base/platform.h"
#include "common/experiment/task.h"
#include "common/testing/program.h"

namespace attn {
namespace {

class WorkerTest : public test::ProgramTest {
 protected:
  WorkerTest() : ProgramTest("hanging_experiment") {}
  /// The last record of each case. The key is "n variant".
  std::map<std::string, Json> last_records() const {
    std::map<std::string, Json> found;
    for (const Json& record : records("measurements.jsonl")) {
      found[record["case"]["n"].dump() + " " + record["case"]["variant"].get<std::string>()] = record;
    }
    return found;
  }
  static constexpr const char* few = "--budget 600 --samples 6 --axis n=1,2 --axis variant=good,";
};

TEST_F(WorkerTest, ACaseThatEndsItsWorkerIsOneFailedCase) {
  const std::string silent =
      std::string("made no progress for ") + (is_emulated() ? "10.5" : "1.5") + " s, and was ended";
  const std::map<std::string, std::string> reasons = {{"stops", silent},
                                                      {"loops", silent},
                                                      {"crashes", "was ended by signal 11"},
                                                      {"killed", "was ended by signal 9"},
                                                      {"exits", "ended with status 3"}};
  const std::string line = std::string(few) + "stops,loops,crashes,killed,exits --processes 1";
  const test::Outcome outcome = run_line(line);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = last_records();
  EXPECT_EQ(found.size(), 12u);
  for (const auto& [name, record] : found) {
    const auto reason = reasons.find(name.substr(2));
    EXPECT_EQ(record["status"], reason == reasons.end() ? "ok" : "failed") << record;
    if (reason == reasons.end()) continue;
    EXPECT_NE(record["reason"].get<std::string>().find("device lost: the process of the run " + reason->second),
              std::string::npos)
        << record["reason"];
  }
  EXPECT_EQ(run_line(line + " --resume").status, 0);
  const std::vector<Json> all = records("measurements.jsonl");
  EXPECT_EQ(std::ranges::count(all, "failed", [](const Json& record) { return record["status"]; }), 10)
      << "no case that ended a worker may run again";
}

TEST_F(WorkerTest, AProcessThatMeasuresAgainAndHangsCostsOneCase) {
  const test::Outcome outcome = run_line(std::string(few) + "stops_in_part --processes 2");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const auto& [name, record] : last_records()) EXPECT_EQ(record["status"] == "ok", name.ends_with("good"));
  EXPECT_EQ(records("measurements.jsonl").size(), 4u + 2u);
}

TEST_F(WorkerTest, AWorkerThatEndsWhileItCompilesAheadIsFollowedByOneThatDoesNot) {
  own_cache();
  const test::Outcome outcome = run_line("--only verify --axis n=1,2 --axis variant=compiles");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(path("compiled")));
  for (const auto& [name, record] : last_records()) EXPECT_EQ(record["status"], "ok") << record;
}

// A function of the user may overwrite the heap. The worker may then crash at any later time.
TEST_F(WorkerTest, AfterCodeOfTheUserAnEndBetweenCasesFailsTheLastCase) {
  for (const auto& [more, status] : {std::pair{"", "ok"}, {" --text text", "failed"}}) {
    write_text("text", "a text");
    std::filesystem::remove(path("measurements.jsonl"));
    EXPECT_EQ(run_line(std::string("--only verify --axis n=1,2 --axis variant=crashes_later") + more).status, 0);
    for (const auto& [name, record] : last_records()) EXPECT_EQ(record["status"], status) << record;
    EXPECT_EQ(last_records().size(), 2u);
  }
  write_text("bad", "a text");
  const test::Outcome outcome = run_line("--text bad");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("while it compiled --text bad"), std::string::npos) << outcome.err;
}

TEST_F(WorkerTest, ASignalEndsAWorkerThatIgnoresSignals) {
  const pid_t child = start({"--budget", "600", "--samples", "6", "--axis", "n=1", "--axis", "variant=good,ignores"});
  while (!std::filesystem::exists(path("ignores"))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(child, SIGTERM);
  const test::Outcome outcome = finish(child);
  EXPECT_EQ(outcome.status, 130);
  EXPECT_NE(outcome.err.find("--resume"), std::string::npos) << outcome.err;
}

TEST(CompilationLimitTest, ACompilationThatTakesTooMuchEndsTheWorker) {
  Activity activity;
  const Port port{.send = [](const Json& message) { std::fputs(message.dump().c_str(), stderr); },
                  .activity = activity};
  for (const auto& [seconds, bytes, says] : {std::tuple{0.1, 1e12, "more than 0 s"}, {60.0, -1e12, "GB of memory"}}) {
    EXPECT_EXIT(
        {
          const CompilationLimit limit(port, seconds, bytes);
          for (;;) pause();
        },
        testing::ExitedWithCode(1), says);
  }
  const CompilationLimit in_time(port);
}

}  // namespace
}  // namespace attn
