#include "findings/kb/runs.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

TEST(Fit, FindsTheSpreadThatMadeTheDistances) {
  constexpr double freedom = Spread{}.freedom;
  for (const double scale : {0.02, 0.1, 0.004}) {
    std::mt19937 random(7);
    std::chi_squared_distribution<double> chi(freedom);
    std::normal_distribution<double> normal;
    std::vector<Distance> distances;
    for (int i = 0; i < 4000; ++i) {
      const double weight = i % 2 == 0 ? 4 : 2 + 2.0 / 5, own = i % 3 == 0 ? scale * scale : 0;
      const double sigma = std::sqrt((scale * scale + own) * freedom / chi(random));
      distances.push_back({.z = sigma * std::sqrt(weight) * normal(random), .weight = weight, .own = own});
    }
    EXPECT_NEAR(fit(distances) / scale, 1, 0.05);
  }
}

TEST(Fit, FindsTheMaximumAndStaysInItsBounds) {
  // The likelihood of one distance z without errors is the highest where its variance is z^2: at z / sqrt(weight). The
  // other value is from a minimisation by another program, scipy's.
  EXPECT_NEAR(fit({{.z = 0.02, .weight = 4, .own = 0}}), 0.01, 1e-5);
  EXPECT_NEAR(
      fit({{.z = 0.02, .weight = 6, .own = 1e-6}, {.z = 0.05, .weight = 5, .own = 1e-5}, {.z = -0.01, .weight = 6}}),
      0.0107735, 1e-6);
  EXPECT_NEAR(fit(std::vector<Distance>(20, Distance{.z = 0, .weight = 4, .own = 1e-6})), 1e-4, 1e-6);
  EXPECT_NEAR(fit(std::vector<Distance>(20, Distance{.z = 50, .weight = 4, .own = 0})), 1, 1e-2);
}

TEST(Fit, PairsAreOfOneClaimWithOneCode) {
  const Json kernel = measurement(shape(64), 1e-3), other = with_other_code(kernel);
  const std::string id = kernel["id"];
  std::vector<Json> lines = {kernel, other};
  for (int i = 0; i < 4; ++i) lines.push_back(finding(1.5 + 0.01 * i, fmt::format("r{}", i), "A CPU, 2 units", {id}));
  EXPECT_EQ(fit_spreads(records_of(lines))["spread"], Json::object()) << "fewer than ten pairs";
  const Json loaded = changed(header("r6"), {{"/session/loaded", "other programs used 0.9 of 2 cores"}});
  // Each finding adds so many pairs to the 6 pairs of four runs.
  for (const auto& [added, pairs] : std::vector<std::pair<Json, int>>{
           {finding(1.54, "r4", "A CPU, 2 units", {id}), 10},
           {finding(1.9, "r9", "A CPU, 2 units", {other["id"]}), 10},  // other code
           {finding(1.9, "r8", "Another CPU", {id}), 10},              // another device
           {finding(1.6, "r4", "A CPU, 2 units", {id}), 10},           // a second finding of a run
           {finding({1.5, 1.52}, "r7", "A CPU, 2 units", {id}), 15},   // a run with two processes
           {finding(1.51, "r6", "A CPU, 2 units", {id}),
            20},             // repeats r1's figure to the last digit: it was not measured again
           {loaded, 15}}) {  // r6 was measured on a loaded machine
    lines.push_back(added);
    const Json fitted = fit_spreads(records_of(lines))["spread"];
    for (const char* group :
         {"/A CPU/proto1_flash~1worst_tile", "/cpu/proto1_flash~1worst_tile", "/cpu/proto1_flash", "/cpu/*"}) {
      EXPECT_EQ(value_at(fitted, fmt::format("{}/ratio/pairs", group).c_str()), pairs) << group << added;
    }
    EXPECT_GT(fitted.at("/cpu/*/ratio/scale"_json_pointer).get<double>(), 0.001);
  }
}

// The runs of one device say little about another device's. So they do not narrow the spread of all devices.
TEST(Fit, AnEntryThatOneDeviceMadeIsAtLeastAsWideAsTheWiderEntry) {
  std::vector<Json> lines;
  for (int i = 0; i < 8; ++i) {
    lines.push_back(finding(1.5 + 0.001 * (i % 3), fmt::format("a{}", i), "A CPU, 2 units"));
    lines.push_back(changed(finding(1.5 + 0.1 * (i % 3), fmt::format("b{}", i), "B CPU, 2 units"),
                            {{"/data/hypothesis/id", "layout"}, {"/claim_key", "another"}}));
  }
  const Json spread = fit_spreads(records_of(lines))["spread"];
  const auto scale = [&](const char* group) {
    return value_at(spread, fmt::format("{}/ratio/scale", group).c_str()).get<double>();
  };
  EXPECT_LT(scale("/A CPU/proto1_flash~1worst_tile"), scale("/cpu/proto1_flash"));
  EXPECT_EQ(scale("/cpu/proto1_flash~1worst_tile"), scale("/cpu/proto1_flash"));
  EXPECT_GT(scale("/cpu/proto1_flash~1layout"), scale("/cpu/proto1_flash"));
}

// Runs that follow the model: about 95 % of the figures lie in the intervals of the other runs, and the spread is
// found.
TEST(Fit, CoverageCountsFiguresInTheIntervalsOfTheOtherRuns) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::chi_squared_distribution<double> chi(Spread{}.freedom);
  std::vector<Json> lines;
  for (int claim = 0; claim < 150; ++claim) {
    const double sigma = 0.02 * std::sqrt(Spread{}.freedom / chi(random));
    for (int run = 0; run < 3; ++run) {
      const double session = sigma * std::sqrt(Spread{}.between) * normal(random);
      std::vector<double> ratios;
      for (int process = 0; process < 2; ++process) ratios.push_back(1.5 * std::exp(session + sigma * normal(random)));
      lines.push_back(
          changed(finding(ratios, fmt::format("r{}", run)), {{"/claim_key", fmt::format("claim {}", claim)}}));
    }
  }
  const Json fitted = fit_spreads(records_of(lines));
  EXPECT_NEAR(fitted["spread"]["A CPU"]["proto1_flash/worst_tile"]["ratio"]["scale"].get<double>(), 0.02, 0.004);
  ASSERT_EQ(fitted["coverage"].size(), 4u);
  for (const Json& row : fitted["coverage"]) {
    EXPECT_EQ(row["pairs"], 450) << row;
    EXPECT_NEAR(row["inside"].get<double>() / 450, 0.95, 0.03) << row;
    EXPECT_LE(row["ci_lo"].get<double>(), row["inside"].get<double>() / 450);
    EXPECT_GT(row["half_width"][2], row["half_width"][0]);
  }
  EXPECT_EQ(parse_json(spread_text(fitted)), fitted);
}

TEST(Runs, AFindingIsARun) {
  const auto records = records_of({header(), finding({1.5, 1.6}), exact_finding(2)});
  const auto run = run_of(records[1], records[1].joined(), {}), exact = run_of(records[2], records[2].joined(), {});
  ASSERT_EQ(run.session.size(), 2u);
  EXPECT_EQ(run.session[1].value, 1.6);
  EXPECT_NEAR(run.session[0].error, 0.02 / 3.92, 1e-12);
  EXPECT_EQ(run.ratio.size(), 2u);
  EXPECT_EQ(run.run_id, "r1");
  EXPECT_TRUE(run.relative);
  EXPECT_FALSE(run.exact);
  EXPECT_TRUE(exact.exact);
  EXPECT_EQ(exact.kind, FigureKind::share);
}

TEST(Runs, UncommittedChangesAreAConditionOfHostTimesOnly) {
  const Json host = changed(finding(1.5), {{"/data/compare/time/0/scope", "host"}}),
             dirty = changed(header(), {{"/session/diff", "0123456789abcdef"}});
  const Json kernel = changed(finding(1.5), {{"/data/code", {{std::string(64, 'b')}, {std::string(64, 'c')}}}});
  const auto conditions = [](const Json& head, const Json& told) {
    const Record record = records_of({head, told}).at(1);
    return run_of(record, record.joined(), {}).conditions;
  };
  EXPECT_NE(conditions(dirty, host), conditions(header(), host));
  EXPECT_EQ(conditions(dirty, kernel), conditions(header(), kernel)) << "the hash of the kernel's code says the rest";
}

}  // namespace
}  // namespace attn::kb
