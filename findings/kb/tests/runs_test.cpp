#include "findings/kb/runs.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

TEST(Fit, FindsTheSpreadThatMadeTheDistances) {
  for (const Spread truth : {Spread{0.02, 3}, Spread{0.1, 1.5}, Spread{0.004, 10}}) {
    std::mt19937 random(7);
    std::chi_squared_distribution<double> chi(truth.freedom);
    std::normal_distribution<double> normal;
    std::vector<Distance> distances;
    for (int i = 0; i < 4000; ++i) {
      const double weight = i % 2 == 0 ? 4 : 2 + 2.0 / 5, own = i % 3 == 0 ? truth.scale * truth.scale : 0;
      const double sigma = std::sqrt((truth.scale * truth.scale + own) * truth.freedom / chi(random));
      distances.push_back({.z = sigma * std::sqrt(weight) * normal(random), .weight = weight, .own = own});
    }
    const Fitted fitted = fit(distances);
    EXPECT_NEAR(fitted.spread.scale / truth.scale, 1, 0.07);
    EXPECT_NEAR(fitted.spread.freedom / truth.freedom, 1, 0.25);
    EXPECT_EQ(fitted.pairs, 4000u);
  }
}

TEST(Fit, StaysInItsBounds) {
  EXPECT_EQ(fit(std::vector<Distance>(20, Distance{.z = 0, .weight = 4, .own = 1e-6})).spread.scale, 1e-4);
  EXPECT_LE(fit(std::vector<Distance>(20, Distance{.z = 50, .weight = 4, .own = 0})).spread.scale, 1);
}

TEST(Fit, PairsAreOfOneClaimWithOneCode) {
  const Json kernel = measurement(shape(64), 1e-3), other = with_other_code(kernel);
  const std::string id = kernel["id"];
  std::vector<Json> lines = {kernel, other};
  for (int i = 0; i < 4; ++i) lines.push_back(finding(1.5 + 0.01 * i, fmt::format("r{}", i), "A CPU, 2 units", {id}));
  EXPECT_EQ(fit_spreads(records_of(lines)), Json::object()) << "fewer than ten pairs";
  // Each finding adds so many pairs to the 6 pairs of four runs.
  for (const auto& [added, pairs] : std::vector<std::pair<Json, int>>{
           {finding(1.54, "r4", "A CPU, 2 units", {id}), 10},
           {finding(1.9, "r9", "A CPU, 2 units", {other["id"]}), 10},  // other code
           {finding(1.9, "r8", "Another CPU", {id}), 10},              // another device
           {finding(1.6, "r4", "A CPU, 2 units", {id}), 10},           // a second finding of a run
           {finding({1.5, 1.52}, "r7", "A CPU, 2 units", {id}), 15},   // a run with two processes
           {finding(1.51, "r6", "A CPU, 2 units", {id}),
            20}}) {  // repeats r1's figure to the last digit: it was not measured again
    lines.push_back(added);
    const Json fitted = fit_spreads(records_of(lines));
    for (const char* group : {"/A CPU/proto1_flash/ratio/pairs", "/A CPU/*/ratio/pairs", "/cpu/*/ratio/pairs"})
      EXPECT_EQ(value_at(fitted, group), pairs) << group << added["data"]["run"];
    EXPECT_GT(fitted.at("/cpu/*/ratio/scale"_json_pointer).get<double>(), 0.001);
  }
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
