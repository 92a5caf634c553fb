#include "findings/kb/compare.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "findings/kb/runs.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

Side side(const std::string& label, const std::vector<Json>& records) {
  Store store = Store::open(":memory:", Store::Mode::write);
  for (const Json& record : records) store.add(record);
  return {label, store.list({})};
}

/// A measurement of the run `run` whose kernel has other machine code.
Json with_other_code(double median_s, const std::string& run) {
  Json record = measurement(shape(64), median_s, "A CPU, 2 units", run);
  record["pipeline"]["code_sha256"] = std::string(64, 'c');
  return with_id(record);
}

Json busy(Json record) {
  record["busy"] = "other programs used 1.4 of 2 cores";
  return with_id(record);
}

/// Measurements of one configuration by several runs; each has its own time.
std::vector<Json> runs(const std::vector<double>& medians_s, const Case& config = shape(64)) {
  std::vector<Json> records;
  for (const double median_s : medians_s) {
    records.push_back(measurement(config, median_s, "A CPU, 2 units", fmt::format("r{}", records.size()), 0.001));
  }
  return records;
}

TEST(JudgeChange, ByIntervalAndFloor) {
  const auto judged = [](double ratio, double half_width, double floor) {
    std::string reason;
    const Change change = judge_change({ratio, ratio * (1 - half_width), ratio * (1 + half_width)}, floor, reason);
    EXPECT_FALSE(reason.empty());
    return change;
  };
  EXPECT_EQ(judged(0.9, 0.02, 0.02), Change::faster);
  EXPECT_EQ(judged(1.1, 0.02, 0.02), Change::slower);
  EXPECT_EQ(judged(1.0, 0.01, 0.02), Change::same);
  EXPECT_EQ(judged(1.01, 0.005, 0.02), Change::same) << "the difference is noise";
  EXPECT_EQ(judged(1.0, 0.1, 0.02), Change::unclear) << "the interval is too wide";
  EXPECT_EQ(judged(1.1, 0.3, 0.02), Change::unclear);
  EXPECT_EQ(judged(1.03, 0.02, 0.04), Change::unclear) << "the ratio lies within the floor, but its interval does not";
  EXPECT_EQ(judged(1.03, 0.02, 0.001), Change::slower);
  EXPECT_EQ(judged(0.97, 0.02, 0.001), Change::faster);
  EXPECT_EQ(judged(1.5, 0.02, 0.6), Change::same);
}

// Two runs of one program differ by more than the intervals of their medians say.
TEST(Compare, OneRunOnEachSideShowsOnlyALargeDifference) {
  const auto change = [](double ratio) {
    return compare(side("a", runs({1e-3})), side("b", runs({ratio * 1e-3})), 0.02).configurations.at(0).change;
  };
  for (const double ratio : {0.87, 0.95, 1.05, 1.15, 1.3}) EXPECT_EQ(change(ratio), Change::unclear) << ratio;
  EXPECT_EQ(change(4), Change::slower);
  EXPECT_EQ(change(0.25), Change::faster);
}

TEST(Compare, MoreRunsShowASmallerDifference) {
  const Side a = side("a", runs({1e-3, 1.01e-3, 0.99e-3, 1e-3, 1.01e-3, 0.99e-3}));
  const auto compared = [&](const std::vector<double>& medians_s) {
    const Comparisons result = compare(a, side("b", runs(medians_s)), 0.02);
    EXPECT_EQ(result.configurations.at(0).runs_a, 6u);
    EXPECT_EQ(result.configurations.at(0).runs_b, medians_s.size());
    return result.configurations.at(0);
  };
  const Compared slower = compared({1.1e-3, 1.11e-3, 1.09e-3});
  EXPECT_EQ(slower.change, Change::slower);
  EXPECT_TRUE(slower.regression);
  EXPECT_NEAR(slower.ratio->value, 1.1, 1e-3);
  EXPECT_EQ(compared({0.9e-3, 0.91e-3, 0.89e-3}).change, Change::faster);
  EXPECT_EQ(compared({0.8e-3, 1.1e-3, 1.4e-3}).change, Change::unclear) << "B's runs differ by more than A and B do";
  EXPECT_EQ(compared({1e-3, 1.001e-3, 0.999e-3, 1e-3, 1e-3, 1e-3}).change, Change::same);
}

TEST(Compare, ARunOnABusyMachineDoesNotCount) {
  const Side quiet = side("a", runs({1e-3}));
  const std::vector<Json> slow = runs({4e-3, 4.1e-3});
  const Comparisons unclear = compare(quiet, side("b", {busy(slow[0]), busy(slow[1])}), 0.02);
  EXPECT_EQ(unclear.unclear, 1);
  EXPECT_FALSE(unclear.regression());
  EXPECT_NEAR(unclear.configurations[0].ratio->value, 4.05, 0.01);
  ASSERT_EQ(unclear.notes.size(), 1u);
  EXPECT_NE(unclear.notes[0].find("other programs used 1.4 of 2 cores"), std::string::npos) << unclear.notes[0];
  EXPECT_EQ(compare(side("a", {busy(slow[0])}), quiet, 0.02).faster, 0);

  const Comparisons one_quiet = compare(quiet, side("b", {slow[0], busy(slow[1])}), 0.02);
  EXPECT_EQ(one_quiet.slower, 1) << "the quiet run of B counts";
  EXPECT_EQ(one_quiet.configurations[0].runs_b, 1u);
  EXPECT_EQ(one_quiet.notes, std::vector<std::string>{});
}

TEST(Compare, EmulatedResultsStayApart) {
  Json emulated = measurement(shape(64), 1e-3, "emulated, 1 units");
  emulated["time"] = Json::array();
  emulated["rate"] = emulated["clocks"] = emulated["pipeline"]["compile_s"] = nullptr;
  emulated["id"] = record_id(emulated);
  const Side measured = side("a", {measurement(shape(64), 1e-3)}), checked = side("b", {emulated});
  EXPECT_THROW(compare(measured, checked, 0.02), BadInput);  // no configuration is on both sides
  const Comparisons alike = compare(checked, checked, 0.02);
  EXPECT_EQ(alike.only_a + alike.only_b, 0);
  EXPECT_EQ(alike.configurations.size(), 1u);
}

TEST(Compare, EachConfigurationOnce) {
  const Side a = side("a", {measurement(shape(64), 1e-3), measurement(shape(80), 1e-3), measurement(shape(96), 1e-3),
                            measurement(shape(128), 1e-3), measurement(shape(160), 1e-3)});
  Json wide = measurement(shape(96), 1e-3, "A CPU, 2 units", "r2", 0.1);
  const Side b = side("b", {measurement(shape(64), 0.2e-3, "A CPU, 2 units", "r2"), wide,
                            measurement(shape(80), 5e-3, "A CPU, 2 units", "r2"),
                            measurement(shape(128), 1.001e-3, "A CPU, 2 units", "r2"),
                            measurement(shape(192), 1e-3, "A CPU, 2 units", "r2")});
  const Comparisons result = compare(a, b, 0.02);
  EXPECT_EQ(result.faster, 1);
  EXPECT_EQ(result.slower, 1);
  EXPECT_EQ(result.unclear, 2);
  EXPECT_EQ(result.same, 0);
  EXPECT_EQ(result.only_a, 1);
  EXPECT_EQ(result.only_b, 1);
  EXPECT_TRUE(result.regression());
  ASSERT_EQ(result.configurations.size(), 6u);
  for (const Compared& one : result.configurations) {
    if (one.config.value_text("head_dim") == "64") {
      EXPECT_EQ(one.change, Change::faster);
      EXPECT_NEAR(one.ratio->value, 0.2, 1e-9);
      EXPECT_EQ(one.scope, "device_hot");
      EXPECT_FALSE(one.regression);
    }
    EXPECT_EQ(one.regression, one.change == Change::slower);
  }
  // With A and B exchanged, the slower configuration is the faster one.
  EXPECT_EQ(compare(b, a, 0.02).faster, 1);
  EXPECT_FALSE(compare(a, a, 0.02).regression());
}

TEST(Compare, OnlyRunsOfTheLatestCodeCount) {
  Json later = with_other_code(2e-3, "r2");
  later["run"]["ts"] = "2026-02-01T00:00:00Z";
  const Json first = measurement(shape(64), 1e-3), second = with_other_code(4e-3, "r3");
  const Side one = side("one", {first});
  for (const Side& both : {side("b", {with_id(later), first}), side("b", {first, with_id(later)})}) {
    EXPECT_NEAR(compare(one, both, 0.02).configurations.at(0).ratio->value, 2, 1e-9) << "the latest by time";
  }
  EXPECT_NEAR(compare(one, side("b", {first, second}), 0.02).configurations.at(0).ratio->value, 4, 1e-9)
      << "of two records of one time, the one that arrived last";
  EXPECT_NEAR(compare(one, side("b", {second, first}), 0.02).configurations.at(0).ratio->value, 1, 1e-9);
}

TEST(Compare, OfARunTheLatestMeasurementCounts) {
  const Side a = side("a", {measurement(shape(64), 9e-3), measurement(shape(64), 1e-3)});
  const Compared compared = compare(a, side("b", runs({1e-3})), 0.02).configurations.at(0);
  EXPECT_NEAR(compared.ratio->value, 1, 1e-9);
  EXPECT_EQ(compared.runs_a, 1u);
}

TEST(Compare, TheOrderOfAxesDoesNotMatter) {
  Case swapped;
  for (const char* axis : {"dtype", "head_dim", "variant"}) {
    const Case original = shape(64);
    std::string(axis) == "head_dim" ? swapped.set(axis, original.integer(axis))
                                    : swapped.set(axis, original.text(axis));
  }
  const Comparisons result = compare(side("a", runs({1e-3})), side("b", runs({1e-3}, swapped)), 0.02);
  EXPECT_EQ(result.configurations.size(), 1u);
}

TEST(Compare, ACaseThatIsNoLongerCorrectIsARegression) {
  Json wrong = measurement(shape(64), 1e-3, "A CPU, 2 units", "r2");
  wrong["status"] = "wrong";
  wrong["reason"] = "o[0]: got nan";
  wrong["rate"] = nullptr;
  wrong["time"] = Json::array();
  Json skipped = wrong;
  skipped["status"] = "skipped";
  const Side good = side("a", {measurement(shape(64), 1e-3)});
  const Side broken = side("b", {with_id(wrong)}), left_out = side("b", {with_id(skipped)});
  Comparisons result = compare(good, broken, 0.02);
  EXPECT_EQ(result.broken, 1);
  EXPECT_TRUE(result.regression());
  EXPECT_NE(result.configurations[0].reason.find("got nan"), std::string::npos);
  result = compare(good, left_out, 0.02);
  EXPECT_FALSE(result.regression());
  EXPECT_EQ(result.unclear, 1);
  EXPECT_FALSE(compare(broken, good, 0.02).regression());
  EXPECT_FALSE(compare(broken, broken, 0.02).regression());
}

TEST(Compare, AHigherFloorOfTheRecordsCounts) {
  const auto changed = [](double aa_floor, const Case& config) {
    std::vector<Json> records = runs({1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}, config);
    records.push_back(finding(1.5, "r1", "A CPU, 2 units", {}, aa_floor));
    const Side b = side("b", runs({1.05e-3, 1.05e-3, 1.05e-3, 1.05e-3, 1.05e-3, 1.05e-3}, config));
    return compare(side("a", records), b, 0.02).configurations.at(0);
  };
  EXPECT_EQ(changed(0.01, shape(64)).change, Change::slower);
  EXPECT_EQ(changed(0.01, shape(64)).floor, 0.02);
  EXPECT_EQ(changed(0.08, shape(64)).change, Change::same) << "the finding compares this configuration";
  EXPECT_EQ(changed(0.08, shape(256)).change, Change::same)
      << "no finding compares this configuration: the median floor counts";
}

TEST(Compare, DevicesAreMatchedByNameIfASideHasSeveral) {
  const auto on = [](const char* device, double time) { return measurement(shape(64), time, device); };
  const Comparisons across = compare(side("a", {on("X, 1 units", 1e-3)}), side("b", {on("Y, 1 units", 9e-3)}), 0.02);
  EXPECT_EQ(across.slower, 1);
  EXPECT_EQ(across.configurations[0].device_b, "Y, 1 units");
  const Comparisons within =
      compare(side("a", {on("X, 1 units", 1e-3), on("Y, 1 units", 5e-3)}), side("b", {on("Y, 1 units", 5e-3)}), 0.02);
  EXPECT_NEAR(within.configurations.at(1).ratio->value, 1, 1e-9);
  EXPECT_EQ(within.only_a, 1);
}

// During some runs of the Zen 4 machines other programs ran on purpose. Records of that time do not say so.
TEST(Compare, RecordedRunsOfTheSameCodeSeldomDiffer) {
  std::map<std::string, std::vector<Side>> runs_of;  // by device and experiment
  std::map<std::string, Code> codes;
  for (const std::string& name : recorded_files(ATTN_SOURCE_DIR)) {
    if (name.find("/znver4/") != name.npos) continue;
    RecordInput file(name);
    Store store = Store::open(":memory:", Store::Mode::write);
    store.ingest(file);
    const std::vector<Record> records = store.list({});
    codes.merge(codes_of(records));
    const auto first = std::ranges::find(records, "measurement", &Record::kind);
    if (first != records.end()) runs_of[first->device + "\n" + first->experiment].push_back({name, records});
  }
  int compared = 0, changed = 0;
  for (const auto& [group, sides] : runs_of) {
    for (size_t i = 0; i < sides.size(); ++i) {
      for (size_t j = i + 1; j < sides.size(); ++j) {
        Comparisons result;
        try {
          result = compare(sides[i], sides[j], 0.02);
        } catch (const BadInput&) {
          continue;  // no configuration in common
        }
        for (const Compared& one : result.configurations) {
          if (!one.ratio || codes.at(one.id_a) != codes.at(one.id_b)) continue;
          ++compared;
          changed += one.change == Change::faster || one.change == Change::slower;
        }
      }
    }
  }
  EXPECT_GT(compared, 5000);
  EXPECT_LT(changed, 0.05 * compared) << changed << " of " << compared;
}

TEST(Compare, RefusesSidesThatCannotBeCompared) {
  const Side a = side("a", {measurement(shape(64), 1e-3)});
  EXPECT_THROW(compare(a, side("b", {}), 0.02), BadInput);
  EXPECT_THROW(compare(side("a", {finding(1.5)}), a, 0.02), BadInput);
  EXPECT_THROW(compare(a, side("b", {measurement(shape(128), 1e-3)}), 0.02), BadInput);
}

TEST(OfCommit, RunsOfACommit) {
  Json other = header("r2");
  other["env"]["git"]["commit"] = "0123457";
  const Side all = side("", {measurement(shape(64), 1e-3), measurement(shape(64), 2e-3, "A CPU, 2 units", "r2"),
                             finding(1.5, "r1"), header("r1"), with_id(other)});
  EXPECT_EQ(of_commit(all.records, "0123456789").size(), 3u);
  const auto second = of_commit(all.records, "0123457");
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].json()["run_id"], "r2");
  EXPECT_THROW(of_commit(all.records, "012345"), BadInput) << "two commits begin with these digits";
  EXPECT_THROW(of_commit(all.records, "fffffff"), BadInput);
  EXPECT_THROW(of_commit(all.records, "master"), BadInput);
}

}  // namespace
}  // namespace attn::kb
