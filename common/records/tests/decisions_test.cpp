// Tests of the tables of decisions, with invented measurements and claims of an invented device.
#include "common/records/decisions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>

#include "common/base/json.h"

namespace attn {
namespace {

constexpr const char* invented = "made up, 2 units";

struct Tile {
  int64_t rows = 0, keys = 0;
  double ms = 0;
  int64_t n = 64, batch = 1;
  const char* code = "c";
  double percent = 0.1;  // half of the time's interval

  Measurement measured() const {
    static int number = 0;
    Measurement result;
    result.id = fmt::format("{:016x}", ++number);
    result.config.set("dtype", std::string("f32"));
    for (const auto& [axis, value] : {std::pair{"batch", batch},
                                      {"q_heads", int64_t{8}},
                                      {"head_dim", int64_t{64}},
                                      {"causal", int64_t{1}},
                                      {"q_len", n},
                                      {"kv_len", n},
                                      {"block_r", rows},
                                      {"block_c", keys}})
      result.config.set(axis, value);
    const double s = ms / 1e3;
    result.time = {{Scope::device_hot, 10, 10, s, s * (1 - percent / 100), s * (1 + percent / 100), 0.01, s, "ci"}};
    result.pipeline = {{"code_sha256", code}};
    return result;
  }
};

struct MadeRun {
  std::vector<Tile> tiles;
  std::vector<Comparison> comparisons = {};
};

/// A run of these tiles, and of a slow tile in each of their shapes.
MadeRun run(const std::vector<Tile>& tiles) {
  MadeRun made = {.tiles = tiles, .comparisons = {}};
  std::set<std::pair<int64_t, int64_t>> shapes;
  for (const Tile& tile : tiles) {
    if (shapes.insert({tile.n, tile.batch}).second) made.tiles.push_back({16, 16, 99, tile.n, tile.batch});
  }
  return made;
}

struct Situation {
  std::vector<MadeRun> runs;
  std::vector<Json> claims = {};
  bool today = true;
  std::string experiment = "proto1_flash";

  Json table() const {
    std::vector<MeasuredRun> measured;
    for (const MadeRun& run : runs) {
      MeasuredRun& own = measured.emplace_back();
      own.id = fmt::format("run{}", measured.size());
      own.ts = fmt::format("2026-01-0{}T00:00:00Z", measured.size());
      for (const Tile& tile : run.tiles) own.results.push_back(tile.measured());
      own.comparisons = run.comparisons;
    }
    DecisionInput input = {.experiment = experiment, .device = invented};
    for (const MeasuredRun& run : measured) input.runs.push_back(&run);
    input.claims = claims;
    input.today = [this](const Measurement&) { return today; };
    input.complete = [](Case& config) {
      config.set_default("block_r", int64_t{64});
      config.set_default("block_c", int64_t{64});
    };
    return decisions(input);
  }
  /// Of each row: the case after the mask, what to take, and what is as good.
  std::vector<std::string> rows() const {
    std::vector<std::string> texts;
    const Json found = table();
    for (const Json& row : found.at("rows")) {
      const std::string place = row.at("case"), take = row.at("take");
      const std::vector<std::string> good = row.at("as_good");
      texts.push_back(fmt::format("{}: {}{}", place.substr(place.find("causal, ") + 8), take,
                                  good.empty() ? "" : " " + good.front() + (good.size() > 1 ? " ..." : "")));
    }
    return texts;
  }
};

Json claim(const std::string& hypothesis, const std::string& state, double value, double low, double high,
           const Json& pair = nullptr, const std::string& subject = "",
           const std::string& metric = "time of a / time of b") {
  return {{"hypothesis", hypothesis},
          {"metric", metric},
          {"subject", subject},
          {"verdict", {{"state", state}}},
          {"estimate", {{"value", value}, {"next_lo", low}, {"next_hi", high}, {"scale", "log"}}},
          {"pair", pair},
          {"latest", "f0123456789"},
          {"findings", {"f"}},
          {"ts", "2026-01-09T00:00:00Z"}};
}

Json pair(const Tile& a, const Tile& b) {
  return Json::array({a.measured().config.json(), b.measured().config.json()});
}

Json older(Json claim) {
  claim["today"] = false;
  return claim;
}

TEST(DecisionTest, WhatToTakeFollowsFromTheTimes) {
  const Tile a = {128, 128, 1}, b = {128, 64, 1.002}, c = {64, 64, 1.5};
  const auto at = [](Tile tile, int64_t n, double ms, int64_t batch = 1) {
    tile.n = n, tile.ms = ms, tile.batch = batch;
    return tile;
  };
  struct Row {
    const char* about;
    Situation given;
    std::vector<std::string> rows;
  };
  for (const auto& [about, given, rows] : std::vector<Row>{
           {"the fastest", {.runs = {run({a, c})}}, {"1 x 8 heads, 64 tokens: 128x128"}},
           {"on another device another", {.runs = {run({at(a, 64, 2), c})}}, {"1 x 8 heads, 64 tokens: 64x64"}},
           {"as good", {.runs = {run({a, b, c})}}, {"1 x 8 heads, 64 tokens: 128x128 128x64"}},
           {"the default, if it is as good",
            {.runs = {run({a, b, at(c, 64, 1.004)})}},
            {"1 x 8 heads, 64 tokens: 64x64 128x128 ..."}},
           {"of what is as good, what is so in the most cases",
            {.runs = {run({a, b, c, at(b, 64, 1, 2), at(c, 64, 2, 2)})}},
            {"1 x 8 heads, 64 tokens: 128x64 128x128", "2 x 8 heads, 64 tokens: 128x64"}},
           {"two tiles are no choice", {.runs = {run({a})}}, {}},
           {"lengths with a common answer share a row",
            {.runs = {run({a, b, c, at(b, 128, 2), at(a, 128, 2.01), at(c, 128, 3)})}},
            {"1 x 8 heads, 64 to 128 tokens: 128x64 128x128"}},
           {"lengths without a common answer do not",
            {.runs = {run({a, c, at(a, 128, 3), at(c, 128, 2)})}},
            {"1 x 8 heads, 64 tokens: 128x128", "1 x 8 heads, 128 tokens: 64x64"}},
           {"batches never share a row",
            {.runs = {run({a, c, at(a, 128, 2, 4), at(c, 128, 3, 4)})}},
            {"1 x 8 heads, 64 tokens: 128x128", "4 x 8 heads, 128 tokens: 128x128"}},
           {"the latest whole run counts",
            {.runs = {run({a, b, c}), run({at(a, 64, 3)})}},
            {"1 x 8 heads, 64 tokens: 128x128 128x64"}},
           {"a claim about the pair decides",
            {.runs = {run({a, b, c})}, .claims = {claim("best_tile", "supported", 1.05, 1.03, 1.07, pair(a, b))}},
            {"1 x 8 heads, 64 tokens: 128x128"}},
           {"2 % are no reason to choose",
            {.runs = {run({a, b, c})}, .claims = {claim("best_tile", "supported", 1.02, 1.019, 1.021, pair(a, b))}},
            {"1 x 8 heads, 64 tokens: 128x128 128x64"}},
           {"what takes longer than the slower is slower",
            {.runs = {run({a, b, at(c, 64, 1.06)})},
             .claims = {claim("best_tile", "supported", 1.05, 1.03, 1.07, pair(a, b)),
                        claim("default_tile", "inconclusive", 1.06, 0.9, 1.3, pair(a, c))}},
            {"1 x 8 heads, 64 tokens: 128x128"}},
           {"a claim of older kernels does not",
            {.runs = {run({a, b, c})},
             .claims = {older(claim("best_tile", "supported", 1.05, 1.03, 1.07, pair(a, b)))}},
            {"1 x 8 heads, 64 tokens: 128x128 128x64"}},
           {"an open claim too, by its interval",
            {.runs = {run({a, b, c})}, .claims = {claim("best_tile", "inconclusive", 1.04, 1.03, 1.05, pair(a, b))}},
            {"1 x 8 heads, 64 tokens: 128x128"}},
           {"of several claims each counts",
            {.runs = {run({a, b, c})},
             .claims = {claim("best_tile", "inconclusive", 1.04, 1.03, 1.05, pair(a, b)),
                        claim("default_tile", "supported", 1.01, 0.99, 1.03, pair(a, b))}},
            {"1 x 8 heads, 64 tokens: 128x128"}},
           {"also that it is open",
            {.runs = {run({a, at(b, 64, 1.4), at(c, 64, 2)})},
             .claims = {claim("best_tile", "inconclusive", 1.01, 0.97, 1.04, pair(a, b))}},
            {"1 x 8 heads, 64 tokens: 128x128 128x64"}}}) {
    EXPECT_EQ(given.rows(), rows) << about;
  }
}

TEST(DecisionTest, RunsOfTheSameCodeArePooled) {
  const Tile a = {128, 128, 1}, b = {128, 64, 1.08, 64, 1, "c", 4};
  Tile slow = b;
  slow.ms = 1.6;
  EXPECT_EQ((Situation{.runs = {run({a, b})}}.rows()),
            std::vector<std::string>{"1 x 8 heads, 64 tokens: 128x128 128x64"});
  const Json pooled = Situation{.runs = {run({a, slow}), run({a, slow}), run({a, b})}}.table().at("rows")[0];
  EXPECT_EQ(pooled["runs"], 3);
  EXPECT_GT(pooled["slower"][0]["ratio"], 1.3);
  slow.code = "other";
  EXPECT_EQ((Situation{.runs = {run({a, slow}), run({a, slow}), run({a, b})}}.rows()),
            std::vector<std::string>{"1 x 8 heads, 64 tokens: 128x128 128x64"})
      << "a kernel with other code is another kernel";
}

TEST(DecisionTest, AFigureIsOfTheRunsThatTheRowCounts) {
  const Tile fast = {128, 128, 1}, slow = {128, 128, 4}, other = {128, 64, 9};
  const Json row = Situation{.runs = {run({fast, other}), run({slow, other}), {.tiles = {slow}}}}.table().at("rows")[0];
  EXPECT_EQ(row["runs"], 2) << "the third run compared nothing";
  EXPECT_EQ(row["figure"], "2.00 ms");
}

TEST(DecisionTest, ARowHasTheRatioOfWhatWouldBeNextToTake) {
  const Tile a = {128, 128, 1}, b = {64, 64, 1.2};
  for (const bool turned : {false, true}) {
    MadeRun made = run({a, b});
    Comparison& comparison = made.comparisons.emplace_back();
    comparison.baseline = (turned ? b : a).measured().config;
    comparison.contender = (turned ? a : b).measured().config;
    comparison.ratio = turned ? Estimate{0.8, 0.799, 0.801} : Estimate{1.25, 1.249, 1.251};
    const Json row = Situation{.runs = {made}}.table().at("rows")[0];
    EXPECT_NEAR(row["default"]["ratio"], 1.25, 1e-9) << "by the comparison of the pair";
    EXPECT_EQ(row["cells"][1], "128x128");
    EXPECT_EQ(row["cells"][2], "3") << "options were compared";
    EXPECT_EQ(row["cells"][3].get<std::string>().find("default 64x64 1.25x ["), 0u) << row;
  }
  const Json row = Situation{.runs = {run({{64, 64, 1}, {128, 128, 1.25}})}}.table().at("rows")[0];
  EXPECT_EQ(row["cells"][1], "64x64 (default)");
  EXPECT_EQ(row["cells"][3].get<std::string>().find("128x128 1.25x ["), 0u) << row;
}

/// The rows of results "AXIS=VALUE ... ms=MILLISECONDS".
Json rows_of(const std::string& experiment, const std::vector<std::string>& results,
             const std::vector<Json>& claims = {}) {
  MeasuredRun run = {.id = "run", .ts = "2026-01-01T00:00:00Z"};
  for (const std::string& axes : results) {
    Measurement result = Tile{.ms = std::stod(axes.substr(axes.find("ms=") + 3))}.measured();
    result.config = {};
    std::istringstream words(axes.substr(0, axes.find(" ms=")));
    for (std::string word; words >> word;) {
      const std::string value = word.substr(word.find('=') + 1);
      const bool number = std::ranges::all_of(value, [](unsigned char c) { return std::isdigit(c); });
      result.config.set(word.substr(0, word.find('=')),
                        number ? AxisValue(int64_t{std::stoll(value)}) : AxisValue(value));
    }
    run.results.push_back(std::move(result));
  }
  return decisions({.experiment = experiment, .device = invented, .runs = {&run}, .claims = claims}).at("rows");
}

TEST(DecisionTest, OneProblemHasOneRow) {
  const Json rows =
      rows_of("proto3_paged", {"q_len=64 page_size=16 block_c=64 ms=1.1", "q_len=64 page_size=16 block_c=128 ms=1",
                               "q_len=64 page_size=24 block_c=24 ms=2"});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["options"], 2) << "pages of 16 count once";
  EXPECT_EQ(rows[0]["take"], "16");
  EXPECT_EQ(rows[0]["figure"], "1.00 ms");
}

TEST(DecisionTest, ACaseInWhichAnotherClaimSaysNoHasNoRow) {
  std::vector<std::string> results;
  for (const char* length : {"256", "1024"}) {
    for (const char* form : {"chunk=16 ms=1", "chunk=32 ms=2"})
      results.push_back(fmt::format("causal=1 q_len={} variant=fused scan=none {}", length, form));
  }
  const auto crossing = [](const char* subject) {
    return claim("crossover_256", "refuted", 900, 800, 1000, nullptr, subject,
                 "tokens from which on linear attention is faster");
  };
  const auto cases = [](const Json& rows) {
    std::set<std::string> found;
    for (const Json& row : rows) {
      if (row["options"] > 0) found.insert(row["case"].get<std::string>());
    }
    return found;
  };
  EXPECT_EQ(cases(rows_of("proto6_linear", results, {crossing("variant=fused chunk=16 causal=1")})),
            std::set<std::string>{"causal, 1024 tokens"});
  EXPECT_EQ(cases(rows_of("proto6_linear", results, {crossing("causal=0")})),
            std::set<std::string>{"causal, 256 to 1024 tokens"});
  EXPECT_TRUE(rows_of("proto2_stitching", {"form=noinline grain=row function=chain work=4 ms=1",
                                           "form=noinline grain=tile function=chain work=4 ms=2",
                                           "form=monolithic grain=element function=chain work=4 ms=1"})
                  .empty());
}

TEST(DecisionTest, ARowSaysOfWhichKernelsItIs) {
  const Tile a = {128, 128, 1}, c = {64, 64, 1.5};
  for (const bool today : {true, false}) {
    const Json table = Situation{.runs = {run({a, c})}, .today = today}.table();
    const auto column = std::ranges::find(table["heads"], "kernels of") - table["heads"].begin();
    EXPECT_EQ(table["rows"][0]["cells"][static_cast<size_t>(column)], today ? "today" : "2026-01-01");
    EXPECT_EQ(table["rows"][0]["today"], today);
    EXPECT_EQ(decisions_text(table, 200, 9).find("kernels of 2026-01-01") == std::string::npos, today);
  }
}

TEST(DecisionTest, AClaimAboutTwoWaysSaysWhichToTake) {
  struct Row {
    double value, low, high;
    std::string take, figure;
  };
  for (const Row& row : std::vector<Row>{{0.9, 0.85, 0.95, "hnd", "0.90x [0.85 to 0.95]"},
                                         {1.1, 1.05, 1.15, "nhd", "1.10x [1.05 to 1.15]"},
                                         {1.01, 0.99, 1.03, "either", "1.01x [0.99 to 1.03]"},
                                         {1.03, 1.01, 1.05, "either", "1.03x [1.01 to 1.05]"},
                                         {1.01, 0.01, 99, "either", "1.01x [0.010 to 99.0]"}}) {
    const Json found = Situation{.runs = {},
                                 .claims = {claim("cache_layout", "supported", row.value, row.low, row.high)},
                                 .experiment = "proto3_paged"}
                           .table()["rows"][0];
    EXPECT_EQ(found["take"], row.take);
    EXPECT_EQ(found["figure"], row.figure);
  }
}

TEST(DecisionTest, NeighbouringLengthsShareAClaimsRow) {
  const auto rows = [](const std::vector<std::pair<std::string, double>>& cases) {
    Situation given = {.runs = {}, .experiment = "proto7_variants"};
    for (const auto& [subject, value] : cases) {
      given.claims.push_back(claim("alibi", "supported", value, 0.99 * value, 1.01 * value, nullptr, subject,
                                   "time with the modifier / time without"));
    }
    std::vector<std::string> texts;
    const Json table = given.table();
    for (const Json& row : table["rows"]) {
      texts.push_back(row["case"].get<std::string>() + ": " + row["figure"].get<std::string>());
    }
    return texts;
  };

  EXPECT_EQ(rows({{"q_len=64", 1.05}, {"q_len=128", 1.06}}),
            (std::vector<std::string>{"64 to 128 tokens: 1.05x to 1.06x [1.04 to 1.07]"}));
  EXPECT_EQ(rows({{"q_len=64", 1.05}, {"q_len=128", 1.2}}).size(), 2u) << "the figures differ";
  EXPECT_EQ(rows({{"head_dim=64 q_len=64", 1.05}, {"head_dim=128 q_len=128", 1.06}}).size(), 2u);
}

TEST(DecisionTest, TimesHaveOneUnitAndDigitsThatAgree) {
  struct Row {
    std::string unit;
    double value, low, high;
    std::string text;
  };
  for (const Row& row : std::vector<Row>{{"us a call", 0.944, -0.1, 3.1, "944 [0 to 3100] ns"},
                                         {"ns per call", 1238, 1100, 1300, "1.24 [1.10 to 1.30] us"},
                                         {"ms", 84.94, 80, 92.74, "84.9 [80.0 to 92.7] ms"}}) {
    const Json found =
        Situation{.runs = {},
                  .claims = {claim("c_overhead", "supported", row.value, row.low, row.high, nullptr, "", row.unit)},
                  .experiment = "proto8_extension"}
            .table()["rows"][0];
    EXPECT_EQ(found["figure"], row.text);
  }
}

TEST(DecisionTest, TheTextFitsTheScreen) {
  Situation given;
  MadeRun& made = given.runs.emplace_back();
  for (int64_t batch = 1; batch <= 40; ++batch) {
    for (const auto& [rows, ms] : {std::pair{128, 1.0}, {64, 2.0}, {32, 3.0}})
      made.tiles.push_back({rows, 64, ms, 64, batch});
  }
  const Json table = given.table();
  ASSERT_EQ(table["rows"].size(), 40u);
  const std::string cut = decisions_text(table, 72, 12);
  EXPECT_LE(std::ranges::count(cut, '\n'), 12) << cut;
  EXPECT_NE(cut.find(" more rows"), std::string::npos) << cut;
  for (const size_t width : {50, 72, 100}) {
    std::istringstream lines(decisions_text(table, width, 100));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width) << line;
  }
  EXPECT_NE(decisions_text(Situation().table(), 100, 9).find("nothing"), std::string::npos);
}

TEST(DecisionTest, AnUnknownExperimentHasAllItsClaims) {
  const Json table =
      Situation{.runs = {}, .claims = {claim("mine", "supported", 2, 1.9, 2.1)}, .experiment = "mine"}.table();
  EXPECT_EQ(table["rows"][0]["what"], "mine");
  EXPECT_EQ(table["rows"][0]["figure"], "2.00x [1.90 to 2.10]");
}

TEST(DecisionTest, AFindingIsAClaimOfItsOwnFigure) {
  const Json config = {{"n", 1}, {"tile", 16}}, other = {{"n", 1}, {"tile", 32}};
  Json finding = {{"id", "f"},
                  {"data",
                   {{"experiment", "e"},
                    {"subject", "n=1"},
                    {"hypothesis", {{"id", "h"}, {"metric", "time of a / time of b"}}},
                    {"verdict", {{"state", "supported"}}},
                    {"estimate", {{"value", 1}}},
                    {"compare", nullptr},
                    {"cases", {other, config}},
                    {"values", {{"baseline", {{"n", 1}, {"tile", 16}, {"name", "16"}}}, {"contender", other}}}}}};
  EXPECT_EQ(claim_of(finding)["pair"], Json::array({config, other})) << "the baseline stands first";
  finding["data"]["values"] = Json::object();
  EXPECT_TRUE(pair_of(finding).is_null());
}

}  // namespace
}  // namespace attn
