// Tests of a run's table, and of the lines that say what disturbed a run, with invented results.
#include "common/experiment/table.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "common/experiment/busy.h"

namespace attn {
namespace {

Measurement measured(int64_t n, int64_t tile, double seconds, const std::string& variant = "tuned") {
  Measurement result;
  result.id = "0123456789abcdef";
  result.config.set("variant", variant);
  result.config.set("layout", std::string("bhsd"));
  result.config.set("n", n);
  result.config.set("tile", tile);
  result.work = Work{1e6, 1e3};
  result.check = Check{};
  result.time = {{Scope::device_hot, 10, 10, seconds, 0.99 * seconds, 1.01 * seconds, 0.01, seconds, "ci"}};
  return result;
}

Measurement skipped(int64_t n, const std::string& reason) {
  Measurement result = measured(n, 16, 1);
  result.time.clear();
  result.check.reset();
  result.status = "skipped";
  result.reason = reason;
  return result;
}

size_t width_of(const std::string& text) {
  std::istringstream lines(text);
  size_t width = 0;
  for (std::string line; std::getline(lines, line);) width = std::max(width, line.size());
  return width;
}

bool shows(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

class TableTest : public ::testing::Test {
 protected:
  std::string text() { return table(results_, {}, options_); }
  TableOptions options_ = {.compared_axes = {"tile", "variant"}};
  std::vector<Measurement> results_ = {measured(64, 16, 1e-3), measured(64, 32, 0.5e-3), measured(128, 16, 2e-6)};
};

TEST_F(TableTest, OneCellHasMedianAndIntervalAndCasesAreComparedWithinGroups) {
  EXPECT_EQ(text(),
            "variant=tuned layout=bhsd\n"
            "  n  tile             time  vs fastest  GFLOP/s\n"
            " 64    16  1.000 ms +-1.0%       2.00x  1\n"
            " 64    32  500.0 us +-1.0%     fastest  2\n"
            "128    16  2.000 us +-1.0%              500\n");
}

TEST_F(TableTest, EmptyColumnsAndExtraColumnsAreLeftOut) {
  EXPECT_FALSE(shows(text(), "cold") || shows(text(), "cv_%"));
  results_[0].time.push_back({Scope::device_cold, 10, 10, 3e-3, 3e-3, 3e-3, 0.01, 3e-3, "ci"});
  results_[0].copy_pct = Estimate{87.5, 87, 88};  // the recorded share, by samples that took turns
  for (Measurement& result : results_) result.config.set("m", result.config.integer("n"));
  for (const char* part : {"cold", "3.000 ms", " 87.5", "layout=bhsd m=n\n"})
    EXPECT_TRUE(shows(text(), part)) << text();
  options_.all_columns = true;
  for (const char* column : {"cv_%", "stop", "error", " n "}) EXPECT_TRUE(shows(text(), column)) << text();
}

// A filter hides rows, and changes no figure.
TEST_F(TableTest, BaselineAndFilter) {
  options_.filter = "tile=16 n=64";
  EXPECT_TRUE(shows(text(), "2.00x") && !shows(text(), "fastest\n") && !shows(text(), "128")) << text();
  EXPECT_TRUE(shows(csv(results_, options_), ",2.00x,"));
  options_.filter = "n=6";  // no value of n
  EXPECT_EQ(text(), "no case has \"n=6\"\n");
  options_.filter = "";
  results_.push_back(measured(64, 16, 4e-3, "naive"));
  options_.baseline = texts("variant", {"naive"});
  for (const char* part : {"vs variant=naive", "0.25x", "baseline"}) EXPECT_TRUE(shows(text(), part)) << text();
  EXPECT_FALSE(shows(text(), "fastest")) << text();
}

TEST_F(TableTest, ReasonsStandBelowTheTable) {
  for (int64_t n = 1; n <= 131; ++n) results_.push_back(skipped(n, "budget spent"));
  results_.push_back(skipped(500, "needs 65536 bytes"));
  EXPECT_TRUE(text().ends_with("\n131 skipped: budget spent\n1 skipped: needs 65536 bytes\n")) << text();
  for (options_.width = 20; options_.width < 60; ++options_.width) EXPECT_LE(width_of(text()), options_.width);
  std::string reason = "O[0]: got nan, want 1";
  for (int word = 0; word < 60; ++word) reason += " word" + std::to_string(word);
  results_[1].status = "wrong";
  results_[1].reason = reason;
  results_[1].time.clear();
  options_.width = 100;
  std::string joined = text().substr(text().find("1 wrong (n=64 tile=32): "));
  for (size_t at = 0; (at = joined.find("\n  ", at)) != joined.npos;) joined.replace(at, 3, " ");
  EXPECT_TRUE(shows(joined, reason)) << joined;
  EXPECT_LE(width_of(text()), 100u) << text();
}

TEST_F(TableTest, AWideTableIsFoldedToTheWidth) {
  for (Measurement& result : results_) {
    for (int axis = 0; axis < 12; ++axis) result.config.set("modifier_" + std::to_string(axis), int64_t{0});
  }
  for (int axis = 0; axis < 12; ++axis) {
    results_.push_back(results_[0]);
    results_.back().config.set("modifier_" + std::to_string(axis), int64_t{1});
  }
  EXPECT_TRUE(shows(text(), "modifier_3=1") && shows(text(), "where `also` does not say otherwise:")) << text();
  for (int axis = 0; axis < 12; ++axis) results_[0].config.set("modifier_" + std::to_string(axis), int64_t{2});
  for (options_.width = 60; options_.width <= 100; options_.width += 40) EXPECT_LE(width_of(text()), options_.width);
  options_.all_columns = true;
  EXPECT_GT(width_of(text()), 100u);
}

TEST_F(TableTest, CsvHasAllCasesAndWholeReasons) {
  results_.push_back(skipped(500, "needs \"65536\" bytes, 8192 are there"));
  const std::string found = csv(results_, options_);
  EXPECT_EQ(std::ranges::count(found, '\n'), 5);
  EXPECT_TRUE(found.starts_with("variant,layout,n,tile,id,status,reason,scope,median_s,")) << found;
  EXPECT_TRUE(shows(found, "\ntuned,bhsd,64,16,0123456789abcdef,ok,,device_hot,0.001,")) << found;
  EXPECT_TRUE(shows(found, "skipped,\"needs \"\"65536\"\" bytes, 8192 are there\",")) << found;
}

// ---- what disturbs a run

TEST(BusyTest, WhatDisturbedARunIsReported) {
  DeviceInfo device;
  device.on_host = true;
  struct {
    uint32_t units;
    int cores;
    double others, cv;
    bool throttled, apart;
    const char *says, *of_the_case;  // the run's line has `says`; "" if there is none
  } const table[] = {
      {2, 2, 0.1, 0.01, false, false, "", ""},
      {2, 2, 0.8, 0.01, false, false, "other programs used 0.8 of 2 cores", "other programs used 0.8 of 2 cores"},
      {2, 8, 0.8, 0.01, false, false, "", ""},  // the cores suffice for the run and the other programs
      {2, 2, 0, 2.22, false, false, "the samples of 1 of 2 cases scatter by up to 222 %", "scatter by 222 % (cv)"},
      {64, 2, 0, 0.01, false, false, "64 threads on 2 cores", ""},
      {2, 2, 0, 0.01, true, false, "the device throttled in 1 of 2 cases (sw_power_cap)", ""},
      {2, 2, 0, 0.01, false, true, "in 1 of 2 comparisons two times of one case differ by more than 5 %", ""}};
  for (const auto& [units, cores, others, cv, throttled, apart, says, of_the_case] : table) {
    device.units = units;
    std::vector<Measurement> results = {measured(64, 16, 1e-3), measured(64, 32, 1e-3)};
    results[1].time[0].cv = cv;
    if (throttled) results[1].clocks = {{"throttle_reasons", {"sw_power_cap"}}};
    std::vector<Comparison> comparisons(2);
    comparisons[0].aa = {1, 0.99, 1.01};
    comparisons[1].aa = apart ? Estimate{1.1, 1.05, 1.15} : comparisons[0].aa;
    const std::vector<std::string> lines = disturbances(device, results, comparisons, cores, others);
    ASSERT_EQ(lines.size(), *says ? 1u : 0u) << says;
    EXPECT_TRUE(lines.empty() || shows(lines[0], says)) << lines[0];
    const std::string of_case = disturbance(device, results[1], cores, others);
    EXPECT_TRUE(*of_the_case ? shows(of_case, of_the_case) : of_case.empty()) << of_case;
  }
  EXPECT_EQ(disturbance(device, skipped(500, "needs more"), 2, 0.8), "") << "the case was not timed";
}

TEST(CoreTimesTest, OthersAreTheWorkOfOtherProcesses) {
  CoreTimes begin{.cores = 2, .busy_s = 100, .own_s = 10}, end{.cores = 2, .busy_s = 118, .own_s = 20};
  end.at = begin.at + std::chrono::seconds(10);
  EXPECT_NEAR(others(begin, end), 0.8, 1e-9);
  end.cores = 0;
  EXPECT_EQ(others(begin, end), 0);
}

// A run's worker lives until the run ends. Its CPU time is the run's own, not that of another program.
TEST(Others, AreNotTheWorkersOfTheRun) {
  int ready[2] = {}, end[2] = {};
  ASSERT_EQ(pipe(ready) + pipe(end), 0);
  const double before = core_times().own_s;
  const pid_t child = fork();
  if (child == 0) {
    timespec used{};
    do {
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    } while (used.tv_sec == 0 && used.tv_nsec < 200'000'000);
    char byte = 0;
    if (write(ready[1], &byte, 1) == 1 && close(end[1]) == 0) byte = static_cast<char>(read(end[0], &byte, 1));
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_GT(core_times().own_s - before, 0.15) << "while the child lives";
  close(end[1]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_GT(core_times().own_s - before, 0.15) << "after its end";
  for (const int descriptor : {ready[0], ready[1], end[0]}) close(descriptor);
}

}  // namespace
}  // namespace attn
