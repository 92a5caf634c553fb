#include "common/records/finding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/records/tests/support.h"

namespace attn {
namespace {

TEST(Render, FillsPathsAndFormats) {
  const Json data = parse_json(R"({"x": 0.12345, "n": 80, "big": 18446744073709551615, "minus": -3, "yes": true,
    "s": "tuned", "a": {"b": [{"c": 1.5}, {"c": 2.5}]}, "none": null})");
  const std::pair<const char*, const char*> good[]{
      {"", ""},
      {"plain", "plain"},
      {"{x:.3f}", "0.123"},
      {"{x}", "0.12345"},
      {"{n}", "80"},
      {"{n:.1f} {n:>4} {n:x}", "80.0   80 50"},
      {"{big} {minus}", "18446744073709551615 -3"},
      {"{yes} {s} {s:>7}|", "true tuned   tuned|"},
      {"{a.b.1.c:.2f}{a.b.0.c}", "2.501.5"},
      {"{{x}} {{{n}}} }}", "{x} {80} }"},
  };
  for (const auto& [text, want] : good) EXPECT_EQ(render(text, data), want) << text;
  for (const char* text : {"{y}", "{x.y}", "{a.b.2.c}", "{a.b.-1.c}", "{a.b.c}", "{a.b.}", "{}", "{a}", "{a.b}",
                           "{none}", "{.x}", "{x.}", "{a.b.99999999999999999999.c}"}) {
    EXPECT_THROW(render(text, data), std::out_of_range) << text;
  }
  for (const char* text : {"{x", "x}", "{", "}", "{x:.3q}", "{s:.3f}", "{x:{n}}", "{n:s}"}) {
    EXPECT_THROW(render(text, data), std::invalid_argument) << text;
  }
}

Json finding_of(const Conclusion& c) { return make_finding("proto1_flash", "A CPU", hypothesis("<", 1), c, "r1"); }

Conclusion compared() {
  Conclusion c = conclusion({0.9, 0.88, 0.92}, 0.01);
  c.subject = "head_dim=64";
  c.title = "Bc=80 takes {compare.ratio:.2f} of the best power of two";
  c.content = "{values.note}: {estimate.value:.1f}, {hypothesis.op} {hypothesis.threshold}; {{{run}}}";
  c.tags = {"flash", "tile"};
  c.values = {{"note", "tiles"}};
  c.measurements = {"0123456789abcdef"};
  c.compare = Comparison{};
  c.compare->baseline.set("block_c", AxisValue(int64_t{64}));
  c.compare->contender.set("block_c", AxisValue(int64_t{80}));
  c.compare->ratio = {0.9, 0.88, 0.92};
  c.compare->aa = {1, 0.995, 1.01};
  c.compare->time = {timing(Scope::device_hot, 1e-3), timing(Scope::device_hot, 9e-4)};
  return c;
}

TEST(MakeFinding, HasEveryField) {
  const Json finding = finding_of(compared());
  EXPECT_EQ(finding["claim_key"], "proto1_flash/bc80/" + sha256("m\ndevice_hot").substr(0, 8) + "/A CPU/head_dim=64");
  const Json expected = parse_json(R"({
    "domain": "attention_kernels", "title": "Bc=80 takes 0.90 of the best power of two",
    "content": "tiles: 0.9, < 1; {r1}", "tags": ["flash", "tile"],
    "source": "attention-proto/proto1_flash", "schema": "finding/2",
    "data": {
      "experiment": "proto1_flash", "device": "A CPU", "subject": "head_dim=64", "selection": "",
      "hypothesis": {"id": "bc80", "text": "t", "metric": "m", "op": "<", "threshold": 1.0, "origin": "o"},
      "verdict": {"state": "supported", "reason": "0.9, next run [0.88, 0.92], is < 1"},
      "estimate": {"value": 0.9, "ci_lo": 0.88, "ci_hi": 0.92, "next_lo": 0.88, "next_hi": 0.92, "tau": 0.0,
        "freedom": 30.0, "processes": 1, "sessions": 1, "machines": 1, "scale": "log", "unit": 1.0, "floor": 0.01,
        "cv": 0.01, "unlike_throttling": false, "warm": false,
        "power_capped": false, "prior": {"scale": 0.05, "freedom": 3.0, "between": 2.0}},
      "parts": [{"process": 1, "value": 0.9, "error": 0.010000000000000009, "rounds": 10}],
      "correct": true, "fault": "",
      "compare": {"baseline": {"block_c": 64}, "contender": {"block_c": 80}, "ratio": 0.9, "ci_lo": 0.88,
        "ci_hi": 0.92, "aa_floor": 0.009950330853168092, "time": [{"median_s": 0.001}, {"median_s": 0.0009}]},
      "values": {"note": "tiles"}, "measurements": ["0123456789abcdef"], "run": "r1",
      "template": {"title": "Bc=80 takes {compare.ratio:.2f} of the best power of two"}}})")
                            .flatten();
  for (const auto& [pointer, value] : expected.items()) EXPECT_EQ(value_at(finding, pointer.c_str()), value) << pointer;
  // Writing and reading change neither the record nor the texts that are rendered from it.
  const Json read = parse_json(finding.dump());
  EXPECT_EQ(read["id"], record_id(read));
  for (const char* text : {"title", "content"})
    EXPECT_EQ(read[text], render(read["data"]["template"][text], read["data"])) << text;
}

TEST(MakeFinding, ACountIsCertainAndAFigureMayHaveNoComparison) {
  Conclusion count = compared(), alone = conclusion({0.9, 0.8, 1.2});
  count.exact = true;
  alone.title = alone.content = "{estimate.value}";
  const Json certain = finding_of(count), single = finding_of(alone);
  EXPECT_EQ(certain["wrong"], 0);
  EXPECT_TRUE(is_exact(certain["data"]["estimate"]));
  EXPECT_FALSE(is_exact(single["data"]["estimate"]));
  EXPECT_TRUE(single["data"]["compare"].is_null());
  EXPECT_GT(single["wrong"], 0.1);
  EXPECT_EQ(single["claim_key"], "proto1_flash/bc80/" + sha256("m\n").substr(0, 8) + "/A CPU");
  EXPECT_FALSE(comparison_of(single));
}

TEST(ClaimKey, HasTheDefinitionOfTheFigure) {
  std::set<std::string> keys;
  for (const auto& [metric, scope, selection] : {std::tuple{"m", "device_hot", ""},
                                                 {"n", "device_hot", ""},
                                                 {"m", "device_cold", ""},
                                                 {"m", "device_hot", "q_len=1024"},
                                                 {"m", "device_hot", "q_len=4096"}}) {
    Hypothesis claim = hypothesis("<", 1);
    claim.metric = metric;
    keys.insert(claim_key("proto1_flash", claim, "A CPU", "head_dim=64", scope, selection));
  }
  EXPECT_EQ(keys.size(), 5u);
}

TEST(JoinRuns, CopiesTheHeaderOfARunIntoTheFindingsOfTheRun) {
  const Json header = {{"schema", "run/1"}, {"run", {{"id", "r1"}, {"seed", 7}}}, {"env", {{"compiler", "c"}}}};
  Json other = finding_of(compared());
  other["data"]["run"] = "r2";
  std::vector<Json> records = {finding_of(compared()), header, other, {{"schema", "measurement/1"}}};
  join_runs(records);
  EXPECT_EQ(records[0]["data"]["run"]["seed"], 7);
  EXPECT_EQ(records[0]["data"]["env"]["compiler"], "c");
  EXPECT_EQ(records[2]["data"]["run"], "r2") << "without a header of r2, the id must stay";
}

TEST(ComparisonOf, IsTheComparisonFromWhichTheFindingWasMade) {
  const std::optional<Comparison> read = comparison_of(parse_json(finding_of(compared()).dump()));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->hypothesis, "bc80");
  EXPECT_EQ(to_json(*read), to_json(*compared().compare));
  EXPECT_THROW(comparison_of(Json::object()), Json::exception);
}

TEST(MakeFinding, TheTitleFollowsTheVerdict) {
  Conclusion c = compared();
  c.title = "It is the fastest";
  c.title_unless_supported = "None is clearly the fastest: {estimate.value:.2f}";
  for (const auto& [next, correct, title] : std::vector<std::tuple<Estimate, bool, std::string>>{
           {{0.9, 0.88, 0.92}, true, "It is the fastest"},
           {{1.2, 1.1, 1.3}, true, "None is clearly the fastest: 1.20"},
           {{1, 0.9, 1.3}, true, "None is clearly the fastest: 1.00"},
           {{0.9, 0.88, 0.92}, false, "None is clearly the fastest: 0.90"}}) {
    c.estimate = conclusion(next).estimate;
    c.correct = correct;
    const Json finding = finding_of(c);
    EXPECT_EQ(finding["title"], title);
    EXPECT_EQ(finding["data"]["template"]["title"], next.value < 1 && correct ? c.title : c.title_unless_supported);
  }
}

TEST(MakeFinding, RefusesFiguresThatAreNotFinite) {
  Conclusion c = compared();
  c.values["list"] = Json::array({1.0, HUGE_VAL});
  EXPECT_THROW(finding_of(c), std::runtime_error);
  c = compared();
  c.estimate.value = std::nan("");
  EXPECT_THROW(finding_of(c), std::runtime_error);
  c = compared();
  c.title = "{compare.speed}";
  EXPECT_THROW(finding_of(c), std::out_of_range);
}

}  // namespace
}  // namespace attn
