// Tests of a run's table, and of the lines that say what disturbed a run, with invented results.
#include "common/experiment/table.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(text().find("cold"), std::string::npos);
  EXPECT_EQ(text().find("cv_%"), std::string::npos);
  results_[0].time.push_back({Scope::device_cold, 10, 10, 3e-3, 3e-3, 3e-3, 0.01, 3e-3, "ci"});
  EXPECT_NE(text().find("cold"), std::string::npos);
  EXPECT_NE(text().find("3.000 ms"), std::string::npos);
  options_.all_columns = true;
  for (const char* column : {"cv_%", "stop", "error", " n "}) EXPECT_NE(text().find(column), std::string::npos);
}

TEST_F(TableTest, AnAxisThatEqualsAnotherHasNoColumn) {
  for (Measurement& result : results_) result.config.set("m", result.config.integer("n"));
  EXPECT_TRUE(text().starts_with("variant=tuned layout=bhsd m=n\n  n  tile ")) << text();
}

TEST_F(TableTest, ABaselineTakesThePlaceOfTheFastest) {
  results_.push_back(measured(64, 16, 4e-3, "naive"));
  options_.baseline = texts("variant", {"naive"});
  EXPECT_NE(text().find("vs variant=naive"), std::string::npos) << text();
  EXPECT_NE(text().find("0.25x"), std::string::npos) << text();
  EXPECT_NE(text().find("baseline"), std::string::npos) << text();
  EXPECT_EQ(text().find("fastest"), std::string::npos) << text();
}

TEST_F(TableTest, AFilterKeepsTheCasesWithItsWords) {
  options_.filter = "n=64 tuned";
  EXPECT_EQ(text().find("128"), std::string::npos) << text();
  EXPECT_NE(text().find("500.0 us"), std::string::npos) << text();
  options_.filter = "n=6";  // no value of n
  EXPECT_EQ(text(), "no case has \"n=6\"\n");
}

// A filter hides rows, and changes no figure.
TEST_F(TableTest, AFilteredCaseIsComparedWithAllCases) {
  options_.filter = "tile=16 n=64";
  EXPECT_NE(text().find("2.00x"), std::string::npos) << text();
  EXPECT_EQ(text().find("fastest\n"), std::string::npos) << text();
  EXPECT_NE(csv(results_, options_).find(",2.00x,"), std::string::npos);
}

TEST_F(TableTest, TheTableFitsANarrowTerminal) {
  results_.push_back(skipped(500, "needs 65536 bytes"));
  for (options_.width = 20; options_.width < 60; ++options_.width) {
    EXPECT_LE(width_of(text()), options_.width) << text();
  }
}

TEST_F(TableTest, SkippedCasesAreOneLineForEachReason) {
  for (int64_t n = 1; n <= 131; ++n) results_.push_back(skipped(n, "budget spent"));
  results_.push_back(skipped(500, "needs 65536 bytes"));
  EXPECT_TRUE(text().ends_with("\n131 skipped: budget spent\n1 skipped: needs 65536 bytes\n")) << text();
  EXPECT_EQ(std::ranges::count(text(), '\n'), 8) << text();
}

TEST_F(TableTest, AFailuresReasonIsPrintedWhole) {
  std::string reason = "O[0]: got nan, want 1";
  for (int word = 0; word < 60; ++word) reason += " word" + std::to_string(word);
  results_[1].status = "wrong";
  results_[1].reason = reason;
  results_[1].time.clear();
  const std::string lines = text();
  EXPECT_NE(lines.find("  wrong"), std::string::npos) << lines;
  std::string joined = lines.substr(lines.find("1 wrong (n=64 tile=32): "));
  for (size_t at = 0; (at = joined.find("\n  ", at)) != joined.npos;) joined.replace(at, 3, " ");
  EXPECT_NE(joined.find(reason), std::string::npos) << joined;
  EXPECT_LE(width_of(lines), 100u) << lines;
}

TEST_F(TableTest, AWideTableIsFoldedToTheWidth) {
  for (Measurement& result : results_) {
    for (int axis = 0; axis < 12; ++axis) result.config.set("modifier_" + std::to_string(axis), int64_t{0});
  }
  for (int axis = 0; axis < 12; ++axis) {
    results_.push_back(results_[0]);
    results_.back().config.set("modifier_" + std::to_string(axis), int64_t{1});
  }
  EXPECT_LE(width_of(text()), 100u) << text();
  EXPECT_NE(text().find("modifier_3=1"), std::string::npos) << text();
  EXPECT_NE(text().find("where `also` does not say otherwise:"), std::string::npos) << text();
  for (int axis = 0; axis < 12; ++axis) results_[0].config.set("modifier_" + std::to_string(axis), int64_t{2});
  EXPECT_LE(width_of(text()), 100u) << "a cell of many axes must take several lines:\n" << text();
  options_.width = 60;
  EXPECT_LE(width_of(text()), 60u) << text();
  options_.all_columns = true;
  EXPECT_GT(width_of(text()), 100u);
}

// A record's share of the copy rate comes from samples of the case and of a copy that took turns. The table must show
// this share, and not divide the rate by a copy rate that was measured at another time.
TEST_F(TableTest, TheTableAndCsvHaveTheRecordedShareOfTheCopyRate) {
  results_[0].copy_pct = Estimate{87.5, 87, 88};
  EXPECT_NE(text().find(" 87.5"), std::string::npos) << text();
  EXPECT_NE(csv(results_, options_).find(",87.5,"), std::string::npos) << csv(results_, options_);
}

TEST_F(TableTest, CsvHasAllCasesAndWholeReasons) {
  results_.push_back(skipped(500, "needs \"65536\" bytes, 8192 are there"));
  std::istringstream lines(csv(results_, options_));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) found.push_back(line);
  ASSERT_EQ(found.size(), 5u);
  EXPECT_TRUE(found[0].starts_with("variant,layout,n,tile,id,status,reason,scope,median_s,")) << found[0];
  EXPECT_TRUE(found[1].starts_with("tuned,bhsd,64,16,0123456789abcdef,ok,,device_hot,0.001,")) << found[1];
  EXPECT_NE(found[4].find("skipped,\"needs \"\"65536\"\" bytes, 8192 are there\","), std::string::npos) << found[4];
}

// ---- what disturbs a run

class BusyTest : public ::testing::Test {
 protected:
  BusyTest() {
    device_.on_host = true;
    device_.units = 2;
  }
  std::string lines(int cores = 2, double others = 0) {
    std::string text;
    for (const std::string& line : disturbances(device_, results_, comparisons_, cores, others)) text += line + "\n";
    return text;
  }
  DeviceInfo device_;
  std::vector<Measurement> results_ = {measured(64, 16, 1e-3), measured(64, 32, 1e-3)};
  std::vector<Comparison> comparisons_;
};

TEST_F(BusyTest, AQuietMachineSaysNothing) { EXPECT_EQ(lines(2, 0.1), ""); }

TEST_F(BusyTest, OtherProgramsOnTheCoresOfTheRunAreReported) {
  EXPECT_NE(lines(2, 0.8).find("the machine was busy: other programs used 0.8 of 2 cores"), std::string::npos);
  EXPECT_EQ(lines(8, 0.8), "") << "nothing may be reported if the cores suffice for the run and the other programs";
}

TEST_F(BusyTest, ScatteredSamplesAreReported) {
  results_[1].time[0].cv = 2.22;
  EXPECT_EQ(lines(),
            "the machine was busy: the samples of 1 of 2 cases scatter by up to 222 % (cv); measure again "
            "when it is quiet\n");
}

TEST_F(BusyTest, ACaseSaysWhatDisturbedIt) {
  EXPECT_EQ(disturbance(device_, results_[0], 2, 0.1), "");
  EXPECT_EQ(disturbance(device_, results_[0], 2, 0.8), "other programs used 0.8 of 2 cores");
  results_[0].time[0].cv = 0.64;
  EXPECT_EQ(disturbance(device_, results_[0], 8, 0.8), "the samples scatter by 64 % (cv)");
  EXPECT_EQ(disturbance(device_, skipped(500, "needs more"), 2, 0.8), "") << "the case was not timed";
}

TEST_F(BusyTest, TwoTimesOfOneCaseThatDifferAreReported) {
  comparisons_.resize(2);
  comparisons_[0].aa = {1, 0.99, 1.01};
  comparisons_[1].aa = {1.1, 1.05, 1.15};
  EXPECT_NE(lines().find("in 1 of 2 comparisons two times of one case differ by more than 5 %"), std::string::npos);
}

TEST_F(BusyTest, MoreThreadsThanCoresAreReported) {
  device_.units = 64;
  EXPECT_EQ(lines(), "64 threads on 2 cores: threads wait for each other; use --device cpu:threads=2\n");
}

TEST_F(BusyTest, ThrottlingIsReported) {
  results_[0].clocks = {{"throttle_reasons", {"sw_power_cap"}}};
  EXPECT_EQ(lines(), "the device throttled in 1 of 2 cases (sw_power_cap)\n");
}

TEST(CoreTimesTest, OthersAreTheWorkOfOtherProcesses) {
  CoreTimes begin{.cores = 2, .busy_s = 100, .own_s = 10}, end{.cores = 2, .busy_s = 118, .own_s = 20};
  end.at = begin.at + std::chrono::seconds(10);
  EXPECT_NEAR(others(begin, end), 0.8, 1e-9);
  end.cores = 0;
  EXPECT_EQ(others(begin, end), 0);
}

}  // namespace
}  // namespace attn
