#include "findings/kb/compare.h"

#include "common/base/error.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

Side side(const std::string& label, const std::vector<Json>& records) {
  Store store = Store::open(":memory:", Store::Mode::write);
  for (const Json& record : records) store.add(record);
  return {label, store.list({})};
}

TEST(JudgeChange, ByIntervalAndFloor) {
  const auto judged = [](double ratio, double half_width, double floor) {
    std::string reason;
    // The interval of the ratio is about ratio * (1 +- half_width).
    const Interval a{1, 1 - half_width / 2, 1 + half_width / 2};
    const Interval b{ratio, ratio * (1 - half_width / 2), ratio * (1 + half_width / 2)};
    const Change change = judge_change(a, b, floor, reason);
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
  const Side b = side("b", {measurement(shape(64), 0.8e-3, "A CPU, 2 units", "r2"), wide,
                            measurement(shape(80), 1.2e-3, "A CPU, 2 units", "r2"),
                            measurement(shape(128), 1.001e-3, "A CPU, 2 units", "r2"),
                            measurement(shape(192), 1e-3, "A CPU, 2 units", "r2")});
  const Comparisons result = compare(a, b, 0.02);
  EXPECT_EQ(result.faster, 1);
  EXPECT_EQ(result.slower, 1);
  EXPECT_EQ(result.unclear, 1);
  EXPECT_EQ(result.same, 1);
  EXPECT_EQ(result.only_a, 1);
  EXPECT_EQ(result.only_b, 1);
  EXPECT_TRUE(result.regression());
  ASSERT_EQ(result.configurations.size(), 6u);
  for (const Compared& one : result.configurations) {
    if (one.config.value_text("head_dim") == "64") {
      EXPECT_EQ(one.change, Change::faster);
      EXPECT_NEAR(*one.ratio, 0.8, 1e-9);
      EXPECT_EQ(one.scope, "device_hot");
      EXPECT_FALSE(one.regression);
    }
    EXPECT_EQ(one.regression, one.change == Change::slower);
  }
  // With A and B exchanged, the slower configuration is the faster one.
  EXPECT_EQ(compare(b, a, 0.02).faster, 1);
  EXPECT_FALSE(compare(a, a, 0.02).regression());
  EXPECT_EQ(compare(a, a, 0.02).same, 5);
}

TEST(Compare, TheLatestMeasurementIsTheLatestByTimeAndThenByArrival) {
  Json later = measurement(shape(64), 2e-3, "A CPU, 2 units", "r2");
  later["run"]["ts"] = "2026-02-01T00:00:00Z";
  const Json first = measurement(shape(64), 1e-3), second = measurement(shape(64), 4e-3, "A CPU, 2 units", "r3");
  const Side one = side("one", {first});
  for (const Side& both : {side("b", {with_id(later), first}), side("b", {first, with_id(later)})}) {
    EXPECT_NEAR(*compare(one, both, 0.02).configurations.at(0).ratio, 2, 1e-9);
  }
  EXPECT_NEAR(*compare(one, side("b", {first, second}), 0.02).configurations.at(0).ratio, 4, 1e-9);
  EXPECT_NEAR(*compare(one, side("b", {second, first}), 0.02).configurations.at(0).ratio, 1, 1e-9);
}

TEST(Compare, TheLatestMeasurementCountsAndTheOrderOfAxesDoesNot) {
  Case swapped;
  for (const char* axis : {"dtype", "head_dim", "variant"}) {
    const Case original = shape(64);
    std::string(axis) == "head_dim" ? swapped.set(axis, original.integer(axis))
                                    : swapped.set(axis, original.text(axis));
  }
  const Side a = side("a", {measurement(shape(64), 9e-3), measurement(shape(64), 1e-3, "A CPU, 2 units", "r2")});
  const Side b = side("b", {measurement(swapped, 1e-3, "A CPU, 2 units", "r3")});
  EXPECT_EQ(compare(a, b, 0.02).same, 1);
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
    const Side a = side("a", {measurement(config, 1e-3), finding(1.5, "r1", "A CPU, 2 units", {}, aa_floor)});
    const Side b = side("b", {measurement(config, 1.05e-3, "A CPU, 2 units", "r2")});
    return compare(a, b, 0.02).configurations.at(0);
  };
  EXPECT_EQ(changed(0.01, shape(64)).change, Change::slower);
  EXPECT_EQ(changed(0.01, shape(64)).floor, 0.02);
  EXPECT_EQ(changed(0.08, shape(64)).change, Change::same) << "the finding compares this configuration";
  EXPECT_EQ(changed(0.08, shape(256)).change, Change::same)
      << "no finding compares this configuration: the median floor counts";
}

TEST(Compare, DevicesAreMatchedByNameIfASideHasSeveral) {
  const auto on = [](const char* device, double time) { return measurement(shape(64), time, device); };
  const Comparisons across = compare(side("a", {on("X, 1 units", 1e-3)}), side("b", {on("Y, 1 units", 2e-3)}), 0.02);
  EXPECT_EQ(across.slower, 1);
  EXPECT_EQ(across.configurations[0].device_b, "Y, 1 units");
  const Comparisons within =
      compare(side("a", {on("X, 1 units", 1e-3), on("Y, 1 units", 5e-3)}), side("b", {on("Y, 1 units", 5e-3)}), 0.02);
  EXPECT_EQ(within.same, 1);
  EXPECT_EQ(within.only_a, 1);
}

TEST(Compare, RefusesSidesThatCannotBeCompared) {
  const Side a = side("a", {measurement(shape(64), 1e-3)});
  EXPECT_THROW(compare(a, side("b", {}), 0.02), BadInput);
  EXPECT_THROW(compare(side("a", {finding(1.5)}), a, 0.02), BadInput);
  EXPECT_THROW(compare(a, side("b", {measurement(shape(128), 1e-3)}), 0.02), BadInput);
}

TEST(OfCommit, RunsOfACommit) {
  Json other = finding(1.5, "r2");
  other["data"]["env"]["git"]["commit"] = "0123457";
  const Side all = side("", {measurement(shape(64), 1e-3), measurement(shape(64), 2e-3, "A CPU, 2 units", "r2"),
                             finding(1.5, "r1"), with_id(other)});
  EXPECT_EQ(of_commit(all.records, "0123456789").size(), 2u);
  const auto second = of_commit(all.records, "0123457");
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].json()["run_id"], "r2");
  const Side headed = side("", {header("r1"), second_finding({1.5}, "r1"), measurement(shape(64), 1e-3)});
  EXPECT_EQ(of_commit(headed.records, "0123456789").size(), 3u) << "the header names the commit";
  EXPECT_THROW(of_commit(all.records, "012345"), BadInput) << "two commits begin with these digits";
  EXPECT_THROW(of_commit(all.records, "fffffff"), BadInput);
  EXPECT_THROW(of_commit(all.records, "master"), BadInput);
}

}  // namespace
}  // namespace attn::kb
