// Tests of a run's answer, with invented results of an invented device.
#include "common/experiment/answer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/temporary_folder.h"
#include "common/source/kernel_source.h"

namespace attn {
namespace {

constexpr const char* invented = "made up, 2 units";

struct Tile {
  int64_t rows = 0, keys = 0;
  double ms = 0;
  int64_t n = 64;
  double lo_ms = 0;  // 0: 1 % less than `ms`

  Measurement measured() const {
    static int number = 0;
    Measurement result;
    result.id = fmt::format("{:016x}", ++number);
    result.experiment = "proto";
    result.config.set("dtype", std::string("f32"));
    for (const auto& [axis, value] :
         {std::pair{"head_dim", int64_t{64}}, {"q_len", n}, {"block_r", rows}, {"block_c", keys}})
      result.config.set(axis, value);
    const double lo = (lo_ms > 0 ? lo_ms : 0.99 * ms) / 1e3;
    result.time = {{Scope::device_hot, 10, 10, ms / 1e3, lo, 1.01 * ms / 1e3, 0.01, ms / 1e3, "ci"}};
    return result;
  }
};

/// A verdict of the run, or of the records.
struct Told {
  std::string subject, state;
  double value = 0;
  std::string hypothesis = "causal";

  Json finding() const {
    return {{"id", "f"},
            {"claim_key", subject},
            {"data",
             {{"hypothesis", {{"id", hypothesis}}},
              {"subject", subject},
              {"verdict", {{"state", state}}},
              {"estimate", {{"value", value}}}}}};
  }
  Json record() const {
    return {{"hypothesis", hypothesis},
            {"claim_key", subject},
            {"subject", subject},
            {"verdict", {{"state", state}}},
            {"advised", state != "inconclusive"},
            {"estimate", {{"value", value}}},
            {"latest", "r"}};
  }
};

/// What the records say about the tile: an entry of findings/tuning.
Json tuned(int64_t rows, int64_t keys, const Json& tied = Json::array()) {
  Json entry = {{"experiment", "proto"}, {"causal", 0}, {"measured_at", {64}}, {"tiles_compared", 3}, {"tied", tied}};
  entry["params"] = {{"variant", "tuned"}, {"block_r", rows}, {"block_c", keys}};
  Json tuning;
  tuning["devices"][invented]["f32"]["64"] = Json::array({entry});
  return tuning;
}

struct Situation {
  std::vector<Tile> tiles = {};
  std::vector<Told> findings = {}, records = {};
  Json tuning = nullptr;
  AnswerSpec spec = {
      .choices = {{.what = "tile", .axes = {"block_r", "block_c"}, .between = "x", .by = {"dtype", "head_dim"}}},
      .claims = {"causal"}};
  Advice words = {"Say that the mask is causal.", "Do not plan with {threshold:.1f} of the time."};
  std::string metric = "time causal / time full";
  bool whole_sweep = true;
  std::vector<Comparison> comparisons = {};

  Json answered() const {
    std::vector<Claim> claims;
    for (const char* id : {"causal", "other"}) {
      claims.push_back({.hypothesis = {id, "It saves time.", metric, "<=", 0.6, "a test"}, .advice = words});
    }
    std::vector<Measurement> results;
    for (const Tile& tile : tiles) results.push_back(tile.measured());
    std::vector<Json> found;
    for (const Told& told : findings) found.push_back(told.finding());
    Known known = {.tuning = tuning};
    for (const Told& told : records) known.claims.push_back(told.record());
    return answer({.spec = spec,
                   .claims = claims,
                   .device = invented,
                   .results = results,
                   .comparisons = comparisons,
                   .findings = found,
                   .known = known,
                   .whole_sweep = whole_sweep,
                   .complete = [](Case& config) {
                     config.set_default("block_r", int64_t{64});
                     config.set_default("block_c", int64_t{64});
                   }});
  }
  std::string text(size_t width = 200, size_t lines = 100) const { return answer_text(answered(), width, lines); }
};

const std::string nothing = "nothing: these cases have no options to compare, and decide no claim\n";

TEST(AnswerTest, FollowsFromTheTimes) {
  AnswerSpec within = Situation().spec;
  within.choices[0].within = 1.03;
  const std::string one = "tile\n  f32 head_dim=64  ";
  const std::vector<std::pair<Situation, std::string>> rows = {
      {{.tiles = {{128, 128, 1}, {128, 64, 1.005}, {64, 64, 1.06}, {16, 64, 1.5}}},
       one + "take 128x128; as good: 128x64; avoid 16x64 1.50x, 64x64 (the default) 1.06x\n"},
      {{.tiles = {{128, 128, 1.5}, {64, 64, 1}, {16, 64, 1.2}}},
       one + "take 64x64 (the default); avoid 128x128 1.50x, 16x64 1.20x\n"},
      // An option that is as good in all shapes is taken; without such an option, each shape has a line.
      {{.tiles = {{128, 128, 1}, {64, 64, 1.01}, {16, 64, 2}, {128, 128, 3, 128}, {64, 64, 2, 128}, {16, 64, 4, 128}}},
       one + "take 64x64 (the default); avoid 16x64 2.00x, 128x128 1.50x\n"},
      {{.tiles = {{128, 128, 1}, {64, 64, 1.1}, {16, 64, 2}, {128, 128, 3, 128}, {64, 64, 2, 128}, {16, 64, 4, 128}}},
       "tile\n"
       "  f32 head_dim=64 q_len=64   take 128x128; avoid 16x64 2.00x, 64x64 (the default) 1.10x\n"
       "  f32 head_dim=64 q_len=128  take 64x64 (the default); avoid 16x64 2.00x, 128x128 1.50x\n"},
      {{.tiles = {{128, 128, 1}, {64, 64, 1.01}, {16, 64, 1.005}}},
       one + "undecided: all 3 options are equally good; the fastest here: 128x128, 16x64, 64x64 (the default)\n"},
      {{.tiles = {{128, 128, 1}, {64, 64, 1.05, 64, 0.9}, {16, 64, 1.5}}, .spec = within},
       one + "take 128x128; unclear: 64x64 (the default); avoid 16x64 1.50x\n"},
      {{.tiles = {{128, 128, 1}, {64, 64, 1.05, 64, 0.9}, {16, 64, 1.5, 64, 0.9}}, .spec = within},
       one + "undecided: the noise hides which of 3 options is the fastest; the fastest here: 128x128; unclear: 16x64, "
             "64x64 (the default)\n"},
      // The records of the device narrow the choice, decide it, or contradict it.
      {{.tiles = {{128, 128, 1}, {64, 64, 1.01}, {16, 64, 1.5}}, .tuning = tuned(64, 64, {"32x64"})},
       one + "take 64x64 (the default); avoid 16x64 1.50x\n"},
      {{.tiles = {{128, 128, 1}, {64, 64, 1.01}, {16, 64, 1.005}}, .tuning = tuned(64, 64)},
       one + "take 64x64 (the default)\n"},
      {{.tiles = {{128, 128, 1}, {64, 64, 1.06}, {16, 64, 1.5}}, .tuning = tuned(16, 64)},
       one + "undecided: this run says 128x128, the records say 16x64; the fastest here: 128x128; avoid 16x64 1.50x, "
             "64x64 (the default) 1.06x\n"}};
  for (const auto& [given, text] : rows) EXPECT_EQ(given.text(), text);
  Situation given = rows[7].first;
  given.tuning["devices"]["another"] = given.tuning["devices"][invented];
  given.tuning["devices"].erase(invented);
  EXPECT_NE(given.text().find("take 128x128; as good: 64x64"), std::string::npos) << "only this device's records count";
}

TEST(AnswerTest, ARatioComesFromTheComparisonOfThePair) {
  Situation given = {.tiles = {{128, 128, 1}, {64, 64, 1.2}, {16, 64, 1.5}}};
  given.comparisons.resize(2);
  given.comparisons[0].baseline = given.tiles[0].measured().config;
  given.comparisons[0].contender = given.tiles[2].measured().config;
  given.comparisons[0].ratio = {1.4, 1.39, 1.41};
  given.comparisons[1].baseline = given.tiles[1].measured().config;
  given.comparisons[1].contender = given.tiles[0].measured().config;
  given.comparisons[1].ratio = {0.8, 0.79, 0.81};
  EXPECT_NE(given.text().find("avoid 16x64 1.40x, 64x64 (the default) 1.25x"), std::string::npos) << given.text();
}

TEST(AnswerTest, ClaimsAdvise) {
  const std::string holds = "- Say that the mask is causal", refuted = "- Do not plan with 0.6 of the time";
  const Told yes = {"head_dim=64", "supported", 0.52}, no = {"head_dim=64", "refuted", 0.7},
             open = {"head_dim=64", "inconclusive", 0.6}, recorded = {"head_dim=64", "supported", 0.5};
  AnswerSpec other = Situation().spec;
  other.claims = {"other"};
  const std::vector<std::pair<Situation, std::string>> rows = {
      {{.findings = {yes, {"head_dim=128", "supported", 0.55}}}, holds + ", in both cases: 0.52x to 0.55x [causal]\n"},
      {{.findings = {yes, {"head_dim=128", "supported", 0.55}, {"head_dim=256", "refuted", 0.7}}},
       holds + ", at head_dim 128, 64: 0.52x to 0.55x [causal]\n" + refuted + ", at head_dim 256: 0.70x [causal]\n"},
      {{.findings = {{"n=1 m=1 head_dim=64", "supported", 0.5},
                     {"n=2 m=2 head_dim=64", "refuted", 0.7},
                     {"n=1 m=1 head_dim=128", "refuted", 0.7}}},
       holds + ", at n 1, head_dim 64: 0.50x [causal]\n" + refuted + ", in 2 of 3 cases: 0.70x [causal]\n"},
      {{.findings = {open}}, "undecided: causal 0.60x\n"},
      // The answer has the claims that it names. If the run judges none of these, it has all that the run judged.
      {{.findings = {yes, {"head_dim=64", "supported", 0.1, "other"}}, .spec = other}, holds + ": 0.10x [other]\n"},
      {{.findings = {yes}, .spec = other}, holds + ": 0.52x [causal]\n"},
      {{.findings = {yes}, .spec = {}}, holds + ": 0.52x [causal]\n"},
      {{.findings = {no}, .spec = other, .words = {}}, "- refuted: \"It saves time.\": 0.70x [causal]\n"},
      {{.records = {recorded}, .spec = other}, nothing},
      // The run and the records decide together.
      {{.records = {recorded}}, holds + ": 0.50x [causal]\n"},
      {{.records = {recorded}, .whole_sweep = false}, nothing},
      {{.findings = {open}, .records = {recorded}}, holds + ": 0.50x [causal]\n"},
      {{.findings = {yes}, .records = {recorded}}, holds + ": 0.50x to 0.52x [causal]\n"},
      {{.findings = {no}, .records = {recorded}},
       "undecided: causal 0.50x to 0.70x, where this run and the records contradict each other\n"},
      {{.findings = {no}, .records = {open}}, refuted + ": 0.70x [causal]\n"}};
  for (const auto& [given, text] : rows) EXPECT_EQ(given.text(), text);
}

TEST(AnswerTest, TimesHaveOneUnitAndDigitsThatAgree) {
  struct Row {
    std::string unit;
    double low, high;
    std::string text;
  };
  for (const Row& row : std::vector<Row>{{"ns", -5.37, 9, "0 to 9 ns"},  // only noise makes a time negative
                                         {"ns", -5.37, -1, "0 ns"},
                                         {"ns", 1.7, 37.44, "1.70 to 37.4 ns"},
                                         {"ns", 900, 1238, "0.90 to 1.24 us"},
                                         {"ms", 84.94, 92.74, "84.9 to 92.7 ms"},
                                         {"tokens", 64, 128, "64 to 128 tokens"},
                                         {"%", 12.5, 50, "12.5 to 50.0 %"}}) {
    const std::string text = Situation{.findings = {{"n=1", "supported", row.low}, {"n=2", "supported", row.high}},
                                       .metric = row.unit + " per call"}
                                 .text();
    EXPECT_NE(text.find(": " + row.text + " [causal]"), std::string::npos) << text;
  }
}

TEST(AnswerTest, FitsTheScreen) {
  Situation given;
  for (int64_t n = 1; n <= 40; ++n) {
    for (const auto& [rows, ms] : {std::pair{128, 1.0}, {64, 2.0}, {32, 3.0}}) given.tiles.push_back({rows, 64, ms, n});
  }
  given.spec.choices[0].by = {"q_len"};
  given.findings = {{"head_dim=64", "supported", 0.52}};
  const std::string cut = given.text(72, 12);
  EXPECT_LE(std::ranges::count(cut, '\n'), 12) << cut;
  EXPECT_NE(cut.find(" more: tile of q_len="), std::string::npos) << cut;
  for (const size_t width : {50, 72, 100}) {
    std::istringstream lines(given.text(width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width) << line;
  }
  EXPECT_EQ(given.answered()["counts"], (Json{{"ok", 120}, {"wrong", 0}, {"skipped", 0}}));
  EXPECT_EQ(given.answered()["choices"].size(), 40u);
}

// scripts/tests/pages_test reads picks.json too, because the pages use the same rule.
TEST(PickTest, IsTheRuleOfThePages) {
  for (const Json& pick : parse_json(read_file(source_root() + "/scripts/tests/picks.json").value())) {
    std::vector<Measurement> measurements;
    for (const Json& option : pick.at("options")) {
      Measurement& result = measurements.emplace_back();
      result.config.set("page_size", option[0].get<int64_t>());
      result.time = {{Scope::device_hot, 10, 10, option[1], option[2], option[3], 0.01, option[1], "ci"}};
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

TEST(KnownTest, ReadsTheClaimsOfOneDeviceAndExperiment) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "pooled.jsonl";
  EXPECT_TRUE(known_of(file, "proto", invented).claims.empty());
  for (const auto& [experiment, name] : {std::pair{"proto", invented}, {"proto", "another"}, {"other", invented}}) {
    std::ofstream(file, std::ios::app) << Json({{"experiment", experiment}, {"device", name}}).dump() << "\n";
  }
  std::ofstream(file, std::ios::app) << Json({{"experiment", "proto"}, {"device", invented}}).dump() << "torn\n";
  EXPECT_EQ(known_of(file, "proto", invented).claims.size(), 1u);
}

}  // namespace
}  // namespace attn
