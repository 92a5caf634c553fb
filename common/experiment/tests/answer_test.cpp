// Tests of a run's answer, with invented results of an invented device.
#include "common/experiment/answer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/temporary_folder.h"
#include "common/source/kernel_source.h"

namespace attn {
namespace {

Timing timing(double median_s, double lo_s, double hi_s) {
  return {Scope::device_hot, 10, 10, median_s, lo_s, hi_s, 0.01, median_s, "ci"};
}

Measurement measured(const std::vector<std::pair<std::string, AxisValue>>& axes, double median_s) {
  static int number = 0;
  Measurement result;
  result.id = fmt::format("{:016x}", 0xabc000 + ++number);
  result.experiment = "proto";
  for (const auto& [axis, value] : axes) result.config.set(axis, value);
  result.time = {timing(median_s, 0.99 * median_s, 1.01 * median_s)};
  return result;
}

class AnswerTest : public ::testing::Test {
 protected:
  Measurement tile(int64_t rows, int64_t keys, double seconds, int64_t n = 64, const std::string& dtype = "f32") {
    return measured({{"dtype", dtype}, {"head_dim", int64_t{64}}, {"q_len", n}, {"block_r", rows}, {"block_c", keys}},
                    seconds);
  }
  Json finding(const std::string& subject, const std::string& state, double value) {
    return {{"id", "f"},
            {"claim_key", subject},
            {"data",
             {{"hypothesis", {{"id", "causal"}}},
              {"subject", subject},
              {"verdict", {{"state", state}}},
              {"estimate", {{"value", value}}}}}};
  }
  Json record(const std::string& subject, const std::string& state, double value) {
    return {{"hypothesis", "causal"},
            {"claim_key", subject},
            {"subject", subject},
            {"verdict", {{"state", state}}},
            {"advised", state != "inconclusive"},
            {"estimate", {{"value", value}}},
            {"latest", "r"}};
  }
  Json answered() {
    return answer({.spec = spec_,
                   .claims = claims_,
                   .device = "made up, 2 units",
                   .results = results_,
                   .comparisons = comparisons_,
                   .findings = findings_,
                   .known = known_,
                   .whole_sweep = whole_,
                   .complete = [](Case& config) {
                     config.set_default("block_r", int64_t{64});
                     config.set_default("block_c", int64_t{64});
                   }});
  }
  std::string text(size_t width = 100, size_t lines = 100) { return answer_text(answered(), width, lines); }

  AnswerSpec spec_ = {
      .choices = {{.what = "tile", .axes = {"block_r", "block_c"}, .between = "x", .by = {"dtype", "head_dim"}}},
      .claims = {"causal"}};
  std::vector<Claim> claims_ = {
      {.hypothesis = {"causal", "It saves time.", "time causal / time full", "<=", 0.6, "a test"},
       .advice = {"Say that the mask is causal.", "Do not plan with {threshold:.1f} of the time."}}};
  std::vector<Measurement> results_;
  std::vector<Comparison> comparisons_;
  std::vector<Json> findings_;
  Known known_;
  bool whole_ = true;
};

TEST_F(AnswerTest, ALongAnswerFitsOneScreen) {
  for (int64_t dim = 1; dim <= 40; ++dim) {
    for (const auto& [rows, seconds] : {std::pair{128, 1e-3}, {64, 2e-3}, {32, 3e-3}}) {
      results_.push_back(tile(rows, 64, seconds));
      results_.back().config.set("head_dim", dim);
    }
  }
  EXPECT_EQ(std::ranges::count(text(), '\n'), 41);
  const std::string cut = text(100, 12);
  EXPECT_LE(std::ranges::count(cut, '\n'), 12) << cut;
  EXPECT_NE(cut.find("  f32 head_dim=1   take 128x64"), std::string::npos) << cut;
  EXPECT_NE(cut.find(" more: tile of f32 head_dim="), std::string::npos) << cut;
}

// scripts/tests/pages_test reads picks.json too, because the pages use the same rule.
TEST(PickTest, IsTheRuleOfThePages) {
  for (const Json& pick : parse_json(read_file(source_root() + "/scripts/tests/picks.json").value())) {
    std::vector<Measurement> measurements;
    for (const Json& option : pick.at("options")) {
      measurements.push_back(measured({{"page_size", option[0].get<int64_t>()}}, 1));
      measurements.back().time = {timing(option[1], option[2], option[3])};
    }
    Results options;
    for (const Measurement& measurement : measurements) options.push_back(&measurement);
    const Picked picked = pick_option(options, pick.at("within"));
    Json as_good = Json::array();
    for (const Measurement* option : picked.as_good) as_good.push_back(option->config.integer("page_size"));
    EXPECT_EQ(Json(picked.best->config.integer("page_size")), pick.at("best")) << pick.at("about");
    EXPECT_EQ(as_good, pick.at("as_good")) << pick.at("about");
  }
}

TEST_F(AnswerTest, NamesTheTileTheTiesAndWhatToAvoid) {
  results_ = {tile(128, 128, 1e-3), tile(128, 64, 1.005e-3), tile(64, 64, 1.06e-3), tile(16, 64, 1.5e-3)};
  EXPECT_EQ(text(),
            "tile\n"
            "  f32 head_dim=64  take 128x128; as good: 128x64; avoid 16x64 1.50x, 64x64 (the default) 1.06x\n");
  const Json line = answered()["choices"][0];
  EXPECT_EQ(line["take"], "128x128");
  EXPECT_EQ(line["as_good"], Json::array({"128x64"}));
  EXPECT_EQ(line["measurement"], results_[0].id);
  EXPECT_EQ(line["of"], 4);
}

TEST_F(AnswerTest, OtherTimesGiveAnotherAnswer) {
  results_ = {tile(128, 128, 1.5e-3), tile(64, 64, 1e-3), tile(16, 64, 1.2e-3)};
  EXPECT_EQ(text(), "tile\n  f32 head_dim=64  take 64x64 (the default); avoid 128x128 1.50x, 16x64 1.20x\n");
}

TEST_F(AnswerTest, ARatioComesFromTheComparisonOfThePair) {
  results_ = {tile(128, 128, 1e-3), tile(64, 64, 1.2e-3), tile(16, 64, 1.5e-3)};
  comparisons_.resize(2);
  comparisons_[0].baseline = results_[0].config;
  comparisons_[0].contender = results_[2].config;
  comparisons_[0].ratio = {1.4, 1.39, 1.41};
  comparisons_[1].baseline = results_[1].config;
  comparisons_[1].contender = results_[0].config;
  comparisons_[1].ratio = {0.8, 0.79, 0.81};
  EXPECT_NE(text().find("avoid 16x64 1.40x, 64x64 (the default) 1.25x"), std::string::npos) << text();
}

TEST_F(AnswerTest, AnOptionThatIsAsGoodInAllShapesIsTaken) {
  results_ = {tile(128, 128, 1e-3),      tile(64, 64, 1.01e-3),   tile(16, 64, 2e-3),
              tile(128, 128, 3e-3, 128), tile(64, 64, 2e-3, 128), tile(16, 64, 4e-3, 128)};
  EXPECT_EQ(text(), "tile\n  f32 head_dim=64  take 64x64 (the default); avoid 16x64 2.00x, 128x128 1.50x\n");
  results_[1] = tile(64, 64, 1.1e-3);  // now no tile is as good as the fastest in both shapes
  EXPECT_EQ(text(),
            "tile\n"
            "  f32 head_dim=64 q_len=64   take 128x128; avoid 16x64 2.00x, 64x64 (the default) 1.10x\n"
            "  f32 head_dim=64 q_len=128  take 64x64 (the default); avoid 16x64 2.00x, 128x128 1.50x\n");
}

TEST_F(AnswerTest, SaysWhatIsUndecided) {
  results_ = {tile(128, 128, 1e-3), tile(64, 64, 1.01e-3), tile(16, 64, 1.005e-3)};
  EXPECT_NE(text().find("undecided: all 3 options are equally good"), std::string::npos) << text();
  EXPECT_TRUE(answered()["choices"][0]["take"].is_null());
}

TEST_F(AnswerTest, OptionsThatTheNoiseHidesAreUnclear) {
  spec_.choices[0].within = 1.03;
  results_ = {tile(128, 128, 1e-3), tile(64, 64, 1.05e-3), tile(16, 64, 1.5e-3)};
  results_[1].time[0].ci_lo_s = 0.9e-3;
  EXPECT_NE(text().find("take 128x128; unclear: 64x64 (the default); avoid 16x64 1.50x"), std::string::npos) << text();
  results_[2].time[0].ci_lo_s = 0.9e-3;
  EXPECT_NE(text().find("undecided: the noise hides which of 3 options is the fastest"), std::string::npos) << text();
}

TEST_F(AnswerTest, TheRecordsOfTheDeviceCount) {
  results_ = {tile(128, 128, 1e-3), tile(64, 64, 1.01e-3), tile(16, 64, 1.5e-3)};
  const auto recorded = [&](int64_t rows, int64_t keys, const Json& tied) {
    Json entry = {{"experiment", "proto"}, {"causal", 0}, {"measured_at", {64}}, {"tiles_compared", 3}, {"tied", tied}};
    entry["params"] = {{"variant", "tuned"}, {"block_r", rows}, {"block_c", keys}};
    known_.tuning["devices"]["made up, 2 units"]["f32"]["64"] = Json::array({entry});
    return text();
  };
  EXPECT_EQ(recorded(64, 64, {"32x64"}), "tile\n  f32 head_dim=64  take 64x64 (the default); avoid 16x64 1.50x\n");
  const std::vector<Measurement> clear =
      std::exchange(results_, {tile(128, 128, 1e-3), tile(64, 64, 1.01e-3), tile(16, 64, 1.005e-3)});
  EXPECT_EQ(recorded(64, 64, Json::array()), "tile\n  f32 head_dim=64  take 64x64 (the default)\n")
      << "the records must decide what this run leaves undecided";
  results_ = clear;
  const std::string contradicted = recorded(16, 64, Json::array());
  EXPECT_NE(contradicted.find("undecided: this run says 128x128, the records say 16x64"), std::string::npos)
      << contradicted;
  known_.tuning["devices"]["another"] = known_.tuning["devices"]["made up, 2 units"];
  known_.tuning["devices"].erase("made up, 2 units");
  EXPECT_NE(text().find("take 128x128; as good: 64x64"), std::string::npos) << text();
}

TEST_F(AnswerTest, AClaimAdvisesUsers) {
  findings_ = {finding("head_dim=64", "supported", 0.52), finding("head_dim=128", "supported", 0.55)};
  EXPECT_EQ(text(), "- Say that the mask is causal, in both cases: 0.52x to 0.55x [causal]\n");
  findings_.push_back(finding("head_dim=256", "refuted", 0.7));
  EXPECT_EQ(text(),
            "- Say that the mask is causal, at head_dim 128, 64: 0.52x to 0.55x [causal]\n"
            "- Do not plan with 0.6 of the time, at head_dim 256: 0.70x [causal]\n");
  findings_ = {finding("head_dim=64", "inconclusive", 0.6)};
  EXPECT_EQ(text(), "undecided: causal 0.60x\n");
  findings_ = {finding("n=1 m=1 head_dim=64", "supported", 0.5), finding("n=2 m=2 head_dim=64", "refuted", 0.7),
               finding("n=1 m=1 head_dim=128", "refuted", 0.7)};
  EXPECT_TRUE(text().starts_with("- Say that the mask is causal, at n 1, head_dim 64: 0.50x [causal]\n")) << text();
  spec_.claims = {"other"};  // now the claim advises the authors of kernels, and the answer leaves its advice out
  claims_.push_back(claims_.front());
  claims_.back().hypothesis.id = "other";
  findings_.push_back(finding("head_dim=64", "supported", 0.1));
  findings_.back()["data"]["hypothesis"]["id"] = "other";
  EXPECT_EQ(text(), "- Say that the mask is causal: 0.10x [other]\n");
}

// A run that judges only claims that the answer does not name has an answer, too: a user reads the figure there.
TEST_F(AnswerTest, ARunOfOtherClaimsAnswersByThem) {
  spec_.claims = {"other"};
  findings_ = {finding("head_dim=64", "supported", 0.52)};
  EXPECT_EQ(text(), "- Say that the mask is causal: 0.52x [causal]\n");
  findings_ = {finding("head_dim=64", "inconclusive", 0.6)};
  EXPECT_EQ(text(), "undecided: causal 0.60x\n");
  claims_[0].advice = {};
  findings_ = {finding("head_dim=64", "refuted", 0.7)};
  EXPECT_EQ(text(), "- refuted: \"It saves time.\": 0.70x [causal]\n");
  findings_.clear();
  known_.claims = {record("head_dim=64", "supported", 0.5)};
  EXPECT_EQ(text(), "nothing: these cases have no options to compare, and decide no claim\n");
}

TEST_F(AnswerTest, TimesHaveOneUnitAndDigitsThatAgree) {
  const auto range = [&](const std::string& unit, double low, double high) {
    claims_[0].hypothesis.metric = unit + " per call";
    claims_[0].compared = false;
    claims_[0].figure = ratio_of_medians;
    findings_ = {finding("head_dim=64", "supported", low), finding("head_dim=128", "supported", high)};
    const std::string line = text();
    return line.substr(line.find(": ") + 2, line.find(" [causal]") - line.find(": ") - 2);
  };
  EXPECT_EQ(range("ns", -5.37, 9), "0 to 9 ns") << "only noise makes a time negative";
  EXPECT_EQ(range("ns", -5.37, 9.04), "0 to 9.04 ns");
  EXPECT_EQ(range("ns", -5.37, -1), "0 ns");
  EXPECT_EQ(range("ns", 1.7, 37.44), "1.70 to 37.4 ns");
  EXPECT_EQ(range("ns", 900, 1238), "0.90 to 1.24 us");
  EXPECT_EQ(range("ms", 84.94, 92.74), "84.9 to 92.7 ms");
  EXPECT_EQ(range("tokens", 64, 128), "64 to 128 tokens");
}

TEST_F(AnswerTest, AnExperimentThatNamesNoClaimsAdvisesByAllClaims) {
  spec_ = {};
  findings_ = {finding("head_dim=64", "supported", 0.52)};
  EXPECT_EQ(text(), "- Say that the mask is causal: 0.52x [causal]\n");
}

TEST_F(AnswerTest, RecordsAndRunDecideTogether) {
  known_.claims = {record("head_dim=64", "supported", 0.5)};
  EXPECT_EQ(text(), "- Say that the mask is causal: 0.50x [causal]\n")
      << "a recorded claim must advise, though this run did not judge it";
  whole_ = false;
  EXPECT_EQ(text(), "nothing: these cases have no options to compare, and decide no claim\n");
  findings_ = {finding("head_dim=64", "inconclusive", 0.6)};
  EXPECT_EQ(text(), "- Say that the mask is causal: 0.50x [causal]\n");
  findings_ = {finding("head_dim=64", "supported", 0.55)};
  EXPECT_EQ(text(), "- Say that the mask is causal: 0.50x to 0.55x [causal]\n");
  findings_ = {finding("head_dim=64", "refuted", 0.7)};
  EXPECT_EQ(text(), "undecided: causal 0.50x to 0.70x, where this run and the records contradict each other\n");
  known_.claims = {record("head_dim=64", "inconclusive", 0.5)};
  EXPECT_EQ(text(), "- Do not plan with 0.6 of the time: 0.70x [causal]\n");
}

TEST_F(AnswerTest, LinesKeepTheWidth) {
  for (const int64_t rows : {16, 32, 48, 64, 80, 96, 112, 128}) results_.push_back(tile(rows, 64, 1e-3 + 1e-7 * rows));
  results_.push_back(tile(256, 64, 2e-3));
  findings_ = {finding("head_dim=64", "supported", 0.52)};
  for (const size_t width : {50, 72, 100}) {
    std::istringstream lines(text(width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width) << line;
  }
}

TEST_F(AnswerTest, CountsTheCases) {
  results_ = {tile(16, 64, 1), tile(32, 64, 1), tile(64, 64, 1)};
  results_[1].status = "skipped";
  EXPECT_EQ(answered()["counts"], (Json{{"ok", 2}, {"wrong", 0}, {"skipped", 1}}));
}

TEST(KnownTest, ReadsTheRecordsOfOneDeviceAndExperiment) {
  const TemporaryFolder folder;
  const auto root = folder.path().string();
  EXPECT_TRUE(known_of(root, "proto", "made up").claims.empty());
  std::filesystem::create_directory(folder.path() / "findings");
  std::ofstream(folder.path() / "findings/pooled.jsonl") << R"({"experiment":"proto","device":"made up"})"
                                                            "\n"
                                                         << R"({"experiment":"proto","device":"another"})"
                                                            "\n"
                                                         << R"({"experiment":"other","device":"made up"})"
                                                            "\n"
                                                         << R"({"experiment":"proto","device":"made up","sub)"
                                                            "\n";
  EXPECT_EQ(known_of(root, "proto", "made up").claims.size(), 1u);
}

}  // namespace
}  // namespace attn
