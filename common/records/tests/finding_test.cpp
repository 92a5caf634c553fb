#include "common/records/finding.h"

#include <gtest/gtest.h>

#include <cmath>

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
  EXPECT_EQ(finding["title"], "Bc=80 takes 0.90 of the best power of two");
  EXPECT_EQ(finding["content"], "tiles: 0.9, < 1; {r1}");
  EXPECT_EQ(finding["confidence"], 0.8);
  EXPECT_EQ(finding["tags"], Json({"flash", "tile"}));
  EXPECT_EQ(finding["schema"], "finding/2");
  EXPECT_EQ(finding["claim_key"], "proto1_flash/bc80/" + sha256("m\ndevice_hot").substr(0, 8) + "/A CPU/head_dim=64");
  EXPECT_EQ(finding["id"], record_id(finding));
  EXPECT_FALSE(finding["domain"].get<std::string>().empty());
  EXPECT_NE(finding["source"].get<std::string>().find("proto1_flash"), std::string::npos);

  const Json& data = finding["data"];
  EXPECT_EQ(data["experiment"], "proto1_flash");
  EXPECT_EQ(data["device"], "A CPU");
  EXPECT_EQ(data["hypothesis"].dump(),
            R"({"id":"bc80","text":"t","metric":"m","op":"<","threshold":1.0,"origin":"o"})");
  EXPECT_EQ(data["subject"], "head_dim=64");
  EXPECT_EQ(data["selection"], "");
  EXPECT_EQ(data["advice"], "");
  EXPECT_EQ(data["correct"], true);
  EXPECT_EQ(data["template"]["title"], compared().title);
  EXPECT_EQ(data["template"]["content"], compared().content);
  EXPECT_EQ(data["verdict"]["state"], "supported");
  EXPECT_EQ(data["estimate"].dump(),
            R"({"value":0.9,"ci_lo":0.88,"ci_hi":0.92,"next_lo":0.88,"next_hi":0.92,"tau":0.0,"freedom":30.0,)"
            R"("processes":1,"sessions":1,"machines":1,"scale":"log","unit":1.0,"floor":0.01,"cv":0.01,)"
            R"("unlike_throttling":false,"warm":false,"prior":{"scale":0.05,"freedom":2.0,"between":2.0}})");
  EXPECT_EQ(data["parts"].dump(), R"([{"process":1,"value":0.9,"error":0.010000000000000009,"rounds":10}])");
  EXPECT_EQ(data["compare"]["baseline"]["block_c"], 64);
  EXPECT_EQ(data["compare"]["contender"]["block_c"], 80);
  EXPECT_EQ(data["compare"]["ratio"], 0.9);
  EXPECT_EQ(data["compare"]["ci_lo"], 0.88);
  EXPECT_EQ(data["compare"]["ci_hi"], 0.92);
  EXPECT_NEAR(data["compare"]["aa_floor"].get<double>(), std::log(1.01), 1e-12);
  EXPECT_EQ(data["compare"]["time"][1]["median_s"], 9e-4);
  EXPECT_EQ(data["values"]["note"], "tiles");
  EXPECT_EQ(data["measurements"], Json::array({"0123456789abcdef"}));
  EXPECT_EQ(data["run"], "r1");
}

TEST(MakeFinding, ACountIsCertain) {
  Conclusion c = compared();
  c.exact = true;
  const Json finding = finding_of(c);
  EXPECT_EQ(finding["confidence"], 1);
  EXPECT_EQ(finding["data"]["estimate"]["scale"], "exact");
  EXPECT_TRUE(is_exact(finding["data"]["estimate"]));
  EXPECT_FALSE(is_exact(finding_of(compared())["data"]["estimate"]));
}

TEST(ClaimKey, HasTheDefinitionOfTheFigure) {
  const auto key = [](const std::string& metric, const std::string& scope, const std::string& selection = "") {
    Hypothesis claim = hypothesis("<", 1);
    claim.metric = metric;
    return claim_key("proto1_flash", claim, "A CPU", "head_dim=64", scope, selection);
  };
  EXPECT_EQ(key("m", "device_hot").size(), std::string("proto1_flash/bc80/01234567/A CPU/head_dim=64").size());
  EXPECT_EQ(key("m", "device_hot"), key("m", "device_hot"));
  EXPECT_NE(key("m", "device_hot"), key("n", "device_hot"));
  EXPECT_NE(key("m", "device_hot"), key("m", "device_cold"));
  EXPECT_NE(key("m", "device_hot"), key("m", "device_hot", "q_len=4096"));
  EXPECT_NE(key("m", "device_hot", "q_len=1024"), key("m", "device_hot", "q_len=4096"));
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

TEST(MakeFinding, ARecordRendersTheSameTextsAgain) {
  const Json finding = parse_json(finding_of(compared()).dump());
  const Json& data = finding["data"];
  EXPECT_EQ(finding["title"], render(data["template"]["title"], data));
  EXPECT_EQ(finding["content"], render(data["template"]["content"], data));
  EXPECT_EQ(finding["id"], record_id(finding)) << "writing and reading must not change the record";
}

TEST(ComparisonOf, IsTheComparisonFromWhichTheFindingWasMade) {
  const Comparison made = *compared().compare;
  const std::optional<Comparison> read = comparison_of(parse_json(finding_of(compared()).dump()));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->hypothesis, "bc80");
  EXPECT_EQ(read->baseline, made.baseline);
  EXPECT_EQ(read->contender, made.contender);
  EXPECT_EQ(read->ratio.value, made.ratio.value);
  EXPECT_EQ(read->ratio.ci_hi, made.ratio.ci_hi);
  EXPECT_EQ(read->aa_floor(), made.aa_floor());
  EXPECT_EQ(read->cv, made.cv);
  EXPECT_EQ(to_json(read->time), to_json(made.time));

  Conclusion alone = compared();
  alone.compare.reset();
  alone.title = "t";
  EXPECT_FALSE(comparison_of(finding_of(alone)));
  EXPECT_THROW(comparison_of(Json::object()), Json::exception);
}

TEST(MakeFinding, WithoutComparison) {
  Conclusion c = conclusion({0.9, 0.8, 1.2});
  c.title = c.content = "{estimate.value}";
  const Json finding = finding_of(c);
  EXPECT_TRUE(finding["data"]["compare"].is_null());
  EXPECT_EQ(finding["confidence"], 0.5);
  EXPECT_EQ(finding["claim_key"], "proto1_flash/bc80/" + sha256("m\n").substr(0, 8) + "/A CPU");
}

TEST(MakeFinding, TitleAndAdviceFollowTheVerdict) {
  Conclusion c = compared();
  c.title = "It is the fastest";
  c.title_unless_supported = "None is clearly the fastest: {estimate.value:.2f}";
  c.advice = {"Take it.", "Take any."};
  Json finding = finding_of(c);
  EXPECT_EQ(finding["title"], "It is the fastest");
  EXPECT_EQ(finding["data"]["template"]["title"], "It is the fastest");
  EXPECT_EQ(finding["data"]["advice"], "Take it.");
  c.estimate = conclusion({1.2, 1.1, 1.3}).estimate;
  finding = finding_of(c);
  EXPECT_EQ(finding["title"], "None is clearly the fastest: 1.20");
  EXPECT_EQ(finding["data"]["template"]["title"], c.title_unless_supported);
  EXPECT_EQ(finding["data"]["advice"], "Take any.");
  c.advice.refuted = "Expect more than {threshold:.3g}.";
  EXPECT_EQ(finding_of(c)["data"]["advice"], "Expect more than 1.");
  c.estimate = conclusion({1, 0.9, 1.3}).estimate;
  finding = finding_of(c);
  EXPECT_EQ(finding["title"], "None is clearly the fastest: 1.00");
  EXPECT_EQ(finding["data"]["advice"], "");
  c = compared();
  c.advice = {"Take it.", "Take any."};
  c.correct = false;
  EXPECT_EQ(finding_of(c)["data"]["advice"], "") << "a wrong result must advise nothing";
}

TEST(MakeFinding, RefusesFiguresThatAreNotFinite) {
  Conclusion c = compared();
  c.values["list"] = Json::array({1.0, HUGE_VAL});
  try {
    finding_of(c);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()),
              "proto1_flash/bc80: data.values.list.1 is not a finite number and cannot be recorded");
  }
  c = compared();
  c.estimate.value = std::nan("");
  EXPECT_THROW(finding_of(c), std::runtime_error);
  c = compared();
  c.title = "{compare.speed}";
  EXPECT_THROW(finding_of(c), std::out_of_range);
}

}  // namespace
}  // namespace attn
