#include "findings/kb/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "common/base/error.h"
#include "common/records/recorded.h"
#include "findings/kb/record_input.h"
#include "findings/kb/runs.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

const std::string cpu = "A CPU, 2 units";

Side side(const std::vector<Json>& records) { return {"side", records_of(records)}; }

Json busy(const Json& record) { return changed(record, {{"/busy", "other programs used 1.4 of 2 cores"}}); }

/// Measurements of one configuration by several runs; each has its own time.
std::vector<Json> runs(const std::vector<double>& medians_s, const Case& config = shape(64)) {
  std::vector<Json> records;
  for (const double median_s : medians_s) {
    records.push_back(measurement(config, median_s, cpu, fmt::format("r{}", records.size()), 0.001));
  }
  return records;
}

/// Compares two sides that have one configuration, which is the same.
Compared only(const std::vector<Json>& a, const std::vector<Json>& b) {
  const Comparisons result = compare(side(a), side(b), 0.02);
  EXPECT_EQ(result.configurations.size(), 1u);
  return result.configurations.at(0);
}

TEST(JudgeChange, ByIntervalAndFloor) {
  for (const auto& [ratio, half_width, floor, change] : std::vector<std::tuple<double, double, double, Change>>{
           {0.9, 0.02, 0.02, Change::faster},
           {1.1, 0.02, 0.02, Change::slower},
           {1.0, 0.01, 0.02, Change::same},
           {1.01, 0.005, 0.02, Change::same},  // the difference is noise
           {1.0, 0.1, 0.02, Change::unclear},  // the interval is too wide
           {1.1, 0.3, 0.02, Change::unclear},
           {1.03, 0.02, 0.04, Change::unclear},  // the ratio lies within the floor, but its interval does not
           {1.03, 0.02, 0.001, Change::slower},
           {0.97, 0.02, 0.001, Change::faster},
           {1.5, 0.02, 0.6, Change::same}}) {
    std::string reason;
    EXPECT_EQ(judge_change({ratio, ratio * (1 - half_width), ratio * (1 + half_width)}, floor, reason), change)
        << ratio << " " << half_width << " " << floor;
    EXPECT_FALSE(reason.empty());
  }
}

// Two runs of one program differ by more than the intervals of their medians say.
TEST(Compare, MoreRunsShowASmallerDifference) {
  const std::vector<double> one = {1}, six = {1, 1.01, 0.99, 1, 1.01, 0.99}, twelve(12, 1.0);
  for (const auto& [of_a, of_b, change] : std::vector<std::tuple<std::vector<double>, std::vector<double>, Change>>{
           {one, {0.87}, Change::unclear},
           {one, {0.95}, Change::unclear},
           {one, {1.15}, Change::unclear},
           {one, {4}, Change::slower},
           {one, {0.25}, Change::faster},
           {six, {1.1, 1.11, 1.09}, Change::slower},
           {six, {0.9, 0.91, 0.89}, Change::faster},
           {six, {0.8, 1.1, 1.4}, Change::unclear},  // B's runs differ by more than A and B do
           {twelve, {1, 1.001, 0.999, 1, 1, 1, 1, 1.001, 0.999, 1, 1, 1}, Change::same}}) {
    const Compared compared = only(runs(of_a), runs(of_b));
    EXPECT_EQ(compared.change, change) << of_b[0];
    EXPECT_EQ(compared.regression, change == Change::slower);
    EXPECT_EQ(compared.runs_a, of_a.size());
    EXPECT_EQ(compared.runs_b, of_b.size());
    EXPECT_EQ(compared.scope, "device_hot");
  }
  EXPECT_NEAR(only(runs(six), runs({1.1, 1.11, 1.09})).ratio->value, 1.1, 1e-3);
}

TEST(Compare, ARunOnABusyMachineDoesNotCount) {
  const Side quiet = side(runs({1e-3}));
  const std::vector<Json> slow = runs({4e-3, 4.1e-3});
  const Comparisons unclear = compare(quiet, side({busy(slow[0]), busy(slow[1])}), 0.02);
  EXPECT_EQ(unclear.unclear, 1);
  EXPECT_FALSE(unclear.regression());
  EXPECT_NEAR(unclear.configurations[0].ratio->value, 4.05, 0.01);
  ASSERT_EQ(unclear.notes.size(), 1u);
  expect_has(unclear.notes[0], {"other programs used 1.4 of 2 cores"});
  EXPECT_EQ(compare(side({busy(slow[0])}), quiet, 0.02).faster, 0);

  const Comparisons one_quiet = compare(quiet, side({slow[0], busy(slow[1])}), 0.02);
  EXPECT_EQ(one_quiet.slower, 1) << "the quiet run of B counts";
  EXPECT_EQ(one_quiet.configurations[0].runs_b, 1u);
  EXPECT_EQ(one_quiet.notes, std::vector<std::string>{});
}

TEST(Compare, EmulatedResultsStayApart) {
  const Json emulated = emulated_measurement();
  EXPECT_THROW(compare(side(runs({1e-3})), side({emulated}), 0.02), BadInput);  // no configuration is on both sides
  EXPECT_EQ(only({emulated}, {emulated}).id_a, emulated["id"].get<std::string>());
}

TEST(Compare, EachConfigurationOnceInAnyOrderOfItsAxes) {
  std::vector<Json> a, b;
  for (const int64_t head_dim : {64, 80, 96, 128, 160}) a.push_back(measurement(shape(head_dim), 1e-3));
  for (const auto& [head_dim, median_s] : {std::pair{64, 0.2e-3}, {80, 5e-3}, {96, 1e-3}, {128, 1.001e-3}, {192, 1e-3}})
    b.push_back(measurement(in_order(shape(head_dim), {{.name = "dtype"}, {.name = "head_dim"}}), median_s, cpu, "r2",
                            head_dim == 96 ? 0.1 : 0.005));
  const Comparisons result = compare(side(a), side(b), 0.02);
  EXPECT_EQ(result.faster, 1);
  EXPECT_EQ(result.slower, 1);
  EXPECT_EQ(result.unclear, 2);
  EXPECT_EQ(result.only_a, 1);
  EXPECT_EQ(result.only_b, 1);
  EXPECT_TRUE(result.regression());
  ASSERT_EQ(result.configurations.size(), 6u);
  EXPECT_EQ(result.configurations[0].config, shape(80)) << "a regression comes first";
  EXPECT_EQ(result.configurations[1].config, shape(64));
  EXPECT_EQ(compare(side(b), side(a), 0.02).faster, 1) << "the slower configuration is the faster one, exchanged";
  EXPECT_FALSE(compare(side(a), side(a), 0.02).regression());
}

TEST(Compare, OnlyRunsOfTheLatestCodeCount) {
  const Json first = measurement(shape(64), 1e-3);
  const Json later =
      changed(with_other_code(measurement(shape(64), 2e-3, cpu, "r2")), {{"/run/ts", "2026-02-01T00:00:00Z"}});
  const Json second = with_other_code(measurement(shape(64), 4e-3, cpu, "r3"));
  for (const auto& [b, ratio] : std::vector<std::pair<std::vector<Json>, double>>{
           {{later, first}, 2},  // the latest by time
           {{first, later}, 2},
           {{first, second}, 4},  // of two records of one time, the record that arrived last
           {{second, first}, 1},
           {{measurement(shape(64), 9e-3), measurement(shape(64), 1e-3)}, 1}}) {  // of a run, the latest measurement
    const Compared compared = only({first}, b);
    EXPECT_NEAR(compared.ratio->value, ratio, 1e-9);
    EXPECT_EQ(compared.runs_b, 1u);
  }
}

TEST(Compare, ACaseThatIsNoLongerCorrectIsARegression) {
  const Json wrong =
      changed(measurement(shape(64), 1e-3, cpu, "r2"),
              {{"/status", "wrong"}, {"/reason", "o[0]: got nan"}, {"/rate", nullptr}, {"/time", Json::array()}});
  const Side good = side(runs({1e-3})), broken = side({wrong}),
             left_out = side({changed(wrong, {{"/status", "skipped"}})});
  Comparisons result = compare(good, broken, 0.02);
  EXPECT_EQ(result.broken, 1);
  EXPECT_TRUE(result.regression());
  expect_has(result.configurations[0].reason, {"got nan"});
  result = compare(good, left_out, 0.02);
  EXPECT_FALSE(result.regression());
  EXPECT_EQ(result.unclear, 1);
  EXPECT_FALSE(compare(broken, good, 0.02).regression());
  EXPECT_FALSE(compare(broken, broken, 0.02).regression());
}

TEST(Compare, AHigherFloorOfTheRecordsCounts) {
  for (const auto& [aa_floor, head_dim, change, floor] : std::vector<std::tuple<double, int, Change, double>>{
           {0.01, 64, Change::slower, 0.02},
           {0.08, 64, Change::same, 0.083},      // the finding compares this configuration
           {0.08, 256, Change::same, 0.083}}) {  // no finding compares this configuration: the median floor counts
    std::vector<Json> records = runs(std::vector(6, 1e-3), shape(head_dim));
    records.push_back(finding(1.5, "r1", cpu, {}, aa_floor));
    const Compared compared = only(records, runs(std::vector(6, 1.05e-3), shape(head_dim)));
    EXPECT_EQ(compared.change, change) << aa_floor << " " << head_dim;
    EXPECT_NEAR(compared.floor, floor, 1e-3);
  }
}

TEST(Compare, DevicesAreMatchedByNameIfASideHasSeveral) {
  const auto on = [](const char* device, double time) { return measurement(shape(64), time, device); };
  const Compared across = only({on("X, 1 units", 1e-3)}, {on("Y, 1 units", 9e-3)});
  EXPECT_EQ(across.change, Change::slower);
  EXPECT_EQ(across.device_b, "Y, 1 units");
  const Comparisons within =
      compare(side({on("X, 1 units", 1e-3), on("Y, 1 units", 5e-3)}), side({on("Y, 1 units", 5e-3)}), 0.02);
  EXPECT_NEAR(within.configurations.at(0).ratio->value, 1, 1e-9);
  EXPECT_EQ(within.only_a, 1);
}

// During some runs of the Zen 4 machines other programs ran on purpose. Records of that time do not say so.
TEST(Compare, RecordedRunsOfTheSameCodeSeldomDiffer) {
  std::map<std::string, std::vector<Side>> runs_of;  // by device and experiment
  Rans rans;
  for (const std::string& name : recorded_files(ATTN_SOURCE_DIR)) {
    if (name.find("/znver4/") != name.npos) continue;
    RecordInput file(name);
    Store store = Store::open(":memory:", Store::Mode::write);
    store.ingest(file);
    const std::vector<Record> records = store.list({});
    rans.merge(rans_of(records));
    const auto first = std::ranges::find(records, "measurement", &Record::kind);
    if (first != records.end()) runs_of[first->device + "\n" + first->experiment].push_back({name, records});
  }
  int compared = 0, changed = 0;
  const auto count = [&](const Side& a, const Side& b) {
    try {
      for (const Compared& one : compare(a, b, 0.02).configurations) {
        if (!one.ratio || rans.at(one.id_a).code != rans.at(one.id_b).code) continue;
        ++compared;
        changed += one.change == Change::faster || one.change == Change::slower;
      }
    } catch (const BadInput&) {  // no configuration in common
    }
  };
  for (const auto& [group, sides] : runs_of) {
    for (size_t i = 0; i < sides.size(); ++i) {
      for (size_t j = i + 1; j < sides.size(); ++j) count(sides[i], sides[j]);
    }
  }
  EXPECT_GT(compared, 5000);
  EXPECT_LT(changed, 0.05 * compared) << changed << " of " << compared;
}

TEST(Compare, RefusesSidesThatCannotBeCompared) {
  const Side a = side(runs({1e-3}));
  for (const Side& b : {side({}), side({finding(1.5)}), side({measurement(shape(128), 1e-3)})}) {
    EXPECT_THROW(compare(a, b, 0.02), BadInput);
    EXPECT_THROW(compare(b, a, 0.02), BadInput);
  }
}

TEST(OfCommit, RunsOfACommit) {
  const Json other = changed(header("r2"), {{"/env/git/commit", "0123457"}});
  const std::vector<Record> all = records_of(
      {measurement(shape(64), 1e-3), measurement(shape(64), 2e-3, cpu, "r2"), finding(1.5, "r1"), header("r1"), other});
  EXPECT_EQ(of_commit(all, "0123456789").size(), 3u);
  EXPECT_EQ(of_commit(all, "0123457").size(), 2u);
  for (const char* refused : {"012345", "fffffff", "master"})  // two commits begin with 012345
    EXPECT_THROW(of_commit(all, refused), BadInput) << refused;
}

}  // namespace
}  // namespace attn::kb
