// Tests of the advice that follows from pooled claims (findings/kb/advice.h).
#include "findings/kb/advice.h"

#include <gtest/gtest.h>

#include <fstream>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"

namespace attn::kb {
namespace {

struct Pooled {
  std::string hypothesis, subject, state, id;
  double value = 1;
  std::string ts = "2026-01-01", device = "d";
  bool advised = true;

  Json json() const {
    return {{"schema", "pooled/1"},
            {"experiment", "proto1_flash"},
            {"device", device},
            {"subject", subject},
            {"hypothesis", hypothesis},
            {"metric", "time of a / time of b"},
            {"op", "<="},
            {"threshold", 1.5},
            {"title", "t"},
            {"verdict", {{"state", state}}},
            {"advice", state == "supported" ? "Recorded." : "Recorded no."},
            {"wrong", 0.25},
            {"estimate", {{"value", value}, {"scale", "log"}}},
            {"latest", id},
            {"ts", ts},
            {"measured", id},
            {"advised", advised && state != "inconclusive"}};
  }
};

std::vector<Json> advice_of(const std::vector<Pooled>& claims, const std::vector<Json>& registered = {}) {
  std::vector<Json> pooled;
  for (const Pooled& claim : claims) pooled.push_back(claim.json());
  return advice_by_device(pooled, registered);
}

Json words(const std::string& hypothesis, const Json& advice) {
  return {{"experiment", "proto1_flash"}, {"hypothesis", hypothesis}, {"advice", advice}};
}

TEST(DeviceAdviceTest, EachDeviceHasItsLinesUnderTheirTopics) {
  const std::vector<Json> devices = advice_of(
      {{"causal", "n=1", "supported", "c1", 0.5},
       {"layout", "n=1", "refuted", "l1"},
       {"bc80", "n=1", "supported", "b1", 1.1},
       {"bc80", "n=2", "supported", "b2", 1.2},
       {"bc80", "n=3", "refuted", "b3", 1.7},
       {"bc80", "n=4", "supported", "b4", 1.45, "2026", "d", false},
       {"causal", "n=1", "inconclusive", "e1", 1.4, "2026", "e"}},
      {words("bc80", {{"supported", "At most {threshold:.3g}."}, {"refuted", ""}}), words("layout", Json::object())});
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(
      advice_page(devices),
      "d\nTile\n  b1  At most 1.5, at n 1, 2: 1.10x to 1.20x [bc80]\nCausal mask\n  c1  Recorded: 0.50x [causal]\n")
      << "registered words replace recorded ones, and a claim or a verdict without words gives no advice";
  EXPECT_EQ(devices[0]["advised"][0]["ids"], Json({"b1", "b2"}));
  ASSERT_EQ(devices[0]["undecided"].size(), 1u) << "a claim that may not advise counts as undecided";
  EXPECT_EQ(devices[0]["undecided"][0]["ids"], Json({"b4"}));
  EXPECT_EQ(devices[0]["decided"], 6);
  EXPECT_EQ(devices[0]["measurements"], 6);
  EXPECT_DOUBLE_EQ(devices[0]["wrong"], 6 * 0.25);
  EXPECT_EQ(devices[1]["decided"], 0);
  EXPECT_EQ(devices[1]["undecided"].size(), 1u);
}

TEST(DeviceAdviceTest, TheLatestDefinitionOfAClaimCounts) {
  for (const bool reversed : {false, true}) {
    std::vector<Pooled> claims = {{"causal", "n=1", "supported", "new", 0.5, "2026-02"},
                                  {"causal", "n=1", "refuted", "old", 2, "2026-01"}};
    if (reversed) std::swap(claims[0], claims[1]);
    const Json lines = advice_of(claims)[0]["advised"];
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0]["id"], "new");
  }
}

TEST(DeviceAdviceTest, OtherFilesAreRefused) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "f.jsonl";
  EXPECT_THROW(read_lines(file, "pooled/1"), BadInput);
  std::ofstream(file) << Pooled{"causal", "n=1", "supported", "c1"}.json().dump() << "\n";
  EXPECT_EQ(read_lines(file, "pooled/1").size(), 1u);
  std::ofstream(file, std::ios::app) << R"({"schema":"finding/2"})" << "\n";
  EXPECT_THROW(read_lines(file, "pooled/1"), BadInput);
}

}  // namespace
}  // namespace attn::kb
