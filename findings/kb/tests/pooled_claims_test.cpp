#include "findings/kb/pooled_claims.h"

#include <fmt/format.h>

#include <cmath>

#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

/// Returns a run's header and a finding of the run. The run starts `second` seconds after 12:00. Without a machine, the
/// header names none.
std::vector<Json> run_at(int second, const std::vector<double>& ratios, const std::string& machine = "m1",
                         const std::vector<std::string>& measurements = {},
                         const std::string& device = "A CPU, 2 units") {
  const std::string run = fmt::format("r{}", second);
  const Json head = changed(header(run), {{"/run/ts", fmt::format("2026-01-31T12:00:{:02}Z", second)},
                                          {"/session/machine", machine.empty() ? Json() : Json(machine)}});
  return {head, finding(ratios, run, device, measurements)};
}

Json pooled(const std::vector<std::vector<Json>>& runs) {
  std::vector<Json> lines;
  for (const auto& run : runs) lines.insert(lines.end(), run.begin(), run.end());
  const std::vector<Json> claims = pooled_claims(records_of(lines));
  EXPECT_EQ(claims.size(), 1u);
  return claims.at(0);
}

struct PooledCase {
  std::vector<std::vector<Json>> runs;
  const char* state;
  int machines;
};

TEST(PooledClaims, AllRunsTakePart) {
  std::vector<Json> warm = run_at(2, {1.6, 1.6, 1.6});
  warm[1]["data"]["estimate"]["warm"] = true;
  for (const auto& [runs, state, machines] : std::vector<PooledCase>{
           {{run_at(1, {1.6, 1.6, 1.6})}, "supported", 1},  // one session
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.7, 1.7, 1.7})}, "supported", 1},
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.61, 1.6, 1.6}, "m2")}, "supported", 2},
           // The second run does not name its machine.
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.61, 1.6, 1.6}, "")}, "supported", 1},
           // Runs that disagree, and a run with warm caches.
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.0, 1.0, 1.0})}, "inconclusive", 1},
           {{run_at(1, {1.6, 1.6, 1.6}), warm}, "inconclusive", 1},
           // The latest run refutes the claim.
           {{run_at(1, {1.40, 1.40, 1.40}), run_at(2, {1.41, 1.41, 1.41}), run_at(3, {1.41, 1.4, 1.4}),
             run_at(4, {1.39, 1.4, 1.4}), run_at(5, {1.26, 1.26, 1.27})},
            "supported",
            1}}) {
    const Json claim = pooled(runs);
    EXPECT_EQ(claim["verdict"]["state"], state) << claim;
    EXPECT_EQ(claim["estimate"]["machines"], machines);
    EXPECT_EQ(claim["estimate"]["sessions"], runs.size());
    EXPECT_EQ(claim["estimate"]["processes"], 3 * runs.size());
    EXPECT_EQ(claim["findings"].size(), runs.size());
  }
  const Json two = pooled({run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.7, 1.7, 1.7})});
  EXPECT_NEAR(two["estimate"]["value"].get<double>(), std::sqrt(1.6 * 1.7), 1e-5);
  EXPECT_EQ(two["title"], "The worst flash attention tile takes 1.65 times the best");
  EXPECT_EQ(pooled({run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.0, 1.0, 1.0})})["title"], "The choice of tile matters.")
      << "no run has a title for `inconclusive`";
}

TEST(PooledClaims, OtherCodeIsNotPooled) {
  const Json kernel = measurement(shape(64), 1e-3), other = with_other_code(kernel);
  std::vector<Json> old = run_at(1, {1.6, 1.6, 1.6}, "m1", {kernel["id"]});
  std::vector<Json> today = run_at(2, {1.3, 1.3, 1.3}, "m1", {other["id"]});
  old.push_back(kernel), today.push_back(other);
  const Json claim = pooled({old, today});
  EXPECT_NEAR(claim["estimate"]["value"].get<double>(), 1.3, 1e-5);
  EXPECT_EQ(claim["others"], Json::array({old[1]["id"]}));
  EXPECT_EQ(claim["latest"], today[1]["id"]);
}

TEST(PooledClaims, AClaimOfLostMeasurementsIsNotOfTodaysKernels) {
  EXPECT_EQ(pooled({run_at(1, {1.6, 1.6, 1.6})})["today"], true);  // no kernel ran
  EXPECT_EQ(pooled({run_at(1, {1.6, 1.6, 1.6}, "m1", {"0123456789abcdef"})})["today"], false);
}

TEST(PooledClaims, ARunOnALoadedMachineIsPooledByItself) {
  std::vector<Json> loaded = run_at(2, {1.3, 1.3, 1.3}), capped = run_at(3, {1.62, 1.6, 1.6});
  loaded[0] = changed(loaded[0], {{"/session/loaded", "other programs used 0.9 of 2 cores"}});
  capped[1] = changed(capped[1], {{"/data/compare/clocks", {{"throttle_reasons", {"software power cap"}}}}});
  const Json quiet = pooled({run_at(1, {1.6, 1.6, 1.6}), loaded});
  EXPECT_EQ(quiet["estimate"]["sessions"], 1);
  EXPECT_NEAR(quiet["estimate"]["value"].get<double>(), 1.6, 1e-5);
  EXPECT_EQ(quiet["others"], Json::array({loaded[1]["id"]}));
  EXPECT_EQ(quiet["power_capped"], false);
  EXPECT_EQ(pooled({run_at(1, {1.6, 1.6, 1.6}), loaded, capped})["power_capped"], true);
  EXPECT_TRUE(pooled_claims(records_of(loaded)).empty()) << "no page has a figure of a loaded machine";
  const std::vector<Json> apart = pooled_claims(records_of(loaded), true);
  ASSERT_EQ(apart.size(), 1u);
  EXPECT_NEAR(apart[0]["estimate"]["value"].get<double>(), 1.3, 1e-5);
}

// A count of another value has other inputs or other code.
TEST(PooledClaims, AnExactFigureIsTheLatest) {
  const auto run = [](int second, double value) {
    const std::string id = fmt::format("r{}", second);
    return std::vector{changed(header(id), {{"/run/ts", fmt::format("2026-01-31T12:00:{:02}Z", second)}}),
                       changed(exact_finding(value), {{"/data/run", id}})};
  };
  const Json claim = pooled({run(1, 3), run(2, 2), run(3, 2)});
  EXPECT_EQ(claim["estimate"]["scale"], "exact");
  EXPECT_EQ(claim["estimate"]["value"], 2);
  EXPECT_EQ(claim["estimate"]["sessions"], 2);
  EXPECT_EQ(claim["others"].size(), 1u);
  EXPECT_NE(claim["verdict"]["state"], "inconclusive");
}

TEST(PooledClaims, WrongFallsWithTheDistanceToTheThreshold) {
  double before = 1;
  for (const std::vector<double>& ratios :
       std::vector<std::vector<double>>{{1.3}, {1.3, 1.31, 1.3}, {1.6, 1.61, 1.6}}) {
    const double wrong = pooled_claims(records_of({header(), finding(ratios)})).at(0)["wrong"];
    EXPECT_LT(wrong, before);
    before = wrong;
  }
  EXPECT_LT(before, 0.01);
}

TEST(PooledClaims, AClaimAboutACountIsNeverWrong) {
  const Json claim = pooled_claims(records_of({header(), exact_finding(2)})).at(0);
  EXPECT_EQ(claim["wrong"], 0);
}

TEST(PooledClaims, APairNamesItsBaselineFirst) {
  const Json claim = pooled_claims(records_of({header(), finding(1.5)})).at(0);
  EXPECT_EQ(claim["pair"], Json::array({shape(64).json(), shape(64, "naive").json()}));
}

}  // namespace
}  // namespace attn::kb
