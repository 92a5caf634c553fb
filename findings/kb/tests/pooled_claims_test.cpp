#include "findings/kb/pooled_claims.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

/// Returns a run's header and a finding of the run, with the advice that fits the finding's verdict. The run starts
/// `second` seconds after 12:00. Without a machine, the header names none.
std::vector<Json> run_at(int second, const std::vector<double>& ratios, const std::string& machine = "m1",
                         const std::vector<std::string>& measurements = {},
                         const std::string& device = "A CPU, 2 units") {
  const std::string run = fmt::format("r{}", second);
  const Json head = changed(header(run), {{"/run/ts", fmt::format("2026-01-31T12:00:{:02}Z", second)},
                                          {"/session/machine", machine.empty() ? Json() : Json(machine)}});
  Json told = finding(ratios, run, device, measurements);
  const Json& state = told["data"]["verdict"]["state"];
  if (state != "inconclusive") told["data"]["advice"] = state == "supported" ? "Measure." : "Take any.";
  return {head, with_id(told)};
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
  const char *state, *advice;
  int machines;
};

TEST(PooledClaims, AllRunsTakePart) {
  std::vector<Json> warm = run_at(2, {1.6, 1.6, 1.6});
  warm[1]["data"]["estimate"]["warm"] = true;
  for (const auto& [runs, state, advice, machines] : std::vector<PooledCase>{
           {{run_at(1, {1.6, 1.6, 1.6})}, "supported", "Measure.", 1},  // one session
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.7, 1.7, 1.7})}, "supported", "Measure.", 1},
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.61, 1.6, 1.6}, "m2")}, "supported", "Measure.", 2},
           // The second run does not name its machine.
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.61, 1.6, 1.6}, "")}, "supported", "Measure.", 1},
           // Runs that disagree, and a run with warm caches.
           {{run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.0, 1.0, 1.0})}, "inconclusive", "", 1},
           {{run_at(1, {1.6, 1.6, 1.6}), warm}, "inconclusive", "", 1},
           // The latest run refutes the claim. The advice comes from a run with the pooled verdict.
           {{run_at(1, {1.40, 1.40, 1.40}), run_at(2, {1.41, 1.41, 1.41}), run_at(3, {1.41, 1.4, 1.4}),
             run_at(4, {1.39, 1.4, 1.4}), run_at(5, {1.26, 1.26, 1.27})},
            "supported",
            "Measure.",
            1}}) {
    const Json claim = pooled(runs);
    EXPECT_EQ(claim["verdict"]["state"], state) << claim;
    EXPECT_EQ(claim["advice"], advice) << claim;
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

TEST(Discoveries, EndAtTheLastClaimWithinItsLimit) {
  using Kept = std::vector<bool>;
  constexpr double third = 1 / 3.;
  for (const auto& [wrong, weights, share, kept] :
       std::vector<std::tuple<std::vector<double>, std::vector<double>, double, Kept>>{
           {{}, {}, 0.05, {}},
           {{0.04}, {1}, 0.05, {true}},
           {{0.06}, {1}, 0.05, {false}},
           // The limits for four claims, in rising order, are 0.0125, 0.025, 0.0375 and 0.05.
           {{0.2, 0.036, 0.001, 0.03}, {1, 1, 1, 1}, 0.05, {false, true, true, true}},
           {{0.2, 0.039, 0.001, 0.03}, {1, 1, 1, 1}, 0.05, {false, false, true, false}},
           {{0.05, 0.05, 0.05, 0.05}, {1, 1, 1, 1}, 0.05, {true, true, true, true}},
           {{0.2, 0.2}, {1, 1}, 0.3, {true, true}},
           // Three claims that judge one measurement raise the limits of later claims as much as one claim.
           {{0.001, 0.001, 0.001, 0.04, 0.2}, {1, 1, 1, 1, 1}, 0.05, {true, true, true, true, false}},
           {{0.001, 0.001, 0.001, 0.04, 0.2}, {third, third, third, 1, 1}, 0.05, {true, true, true, false, false}}}) {
    EXPECT_EQ(discoveries(wrong, weights, share), kept) << testing::PrintToString(wrong);
  }
}

TEST(ExpectedWrong, SumsTheDoubtsOfDecidedClaimsAndCountsAMeasurementOnce) {
  const auto claim = [](const char* state, double wrong, const char* measured, const char* scale) -> Json {
    return {
        {"verdict", {{"state", state}}}, {"estimate", {{"scale", scale}}}, {"wrong", wrong}, {"measured", measured}};
  };
  EXPECT_NEAR(expected_wrong({claim("supported", 0.2, "a", "log"), claim("refuted", 0.4, "a", "log"),
                              claim("refuted", 0.1, "b", "log"), claim("inconclusive", 0.5, "c", "log"),
                              claim("supported", 0, "a", "exact")}),
              0.3 + 0.1, 1e-9);
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

// A claim about a count, such as a number of allocations, is exact, so it is never wrong. If discoveries() ranked the
// exact claim, the doubtful claim would be advised.
TEST(PooledClaims, AClaimAboutACountIsExactAndDoesNotRaiseTheLimits) {
  const std::vector<Json> claims =
      pooled_claims(records_of({header(), exact_finding(2), finding(1.27, "r1", "Another CPU")}));
  ASSERT_EQ(claims.size(), 2u);
  const Json& exact = claims[0]["estimate"]["scale"] == "exact" ? claims[0] : claims[1];
  EXPECT_EQ(exact["wrong"], 0);
  for (const Json& claim : claims) EXPECT_EQ(claim["advised"], claim == exact);
}

// If a claim is decided, the next run's figure lies on the other side of the threshold with a probability of at most
// 2.5 %. If many claims are tested, chance may decide one of them: then kb withholds the claim's advice, even if
// `--device` selects only the claim's device.
TEST_F(KbTest, UndecidedClaimsCountAsTestedWhateverTheDevice) {
  std::vector<Json> lines;
  Json claim;
  for (double ratio = 1.26; claim.is_null() || claim["advice"] == ""; ratio += 0.001) {
    lines = run_at(1, {ratio, ratio, ratio}, "m1", {}, "B CPU, 2 units");
    claim = pooled_claims(records_of(lines)).at(0);
  }
  ASSERT_GT(claim["wrong"], 0.05 / 41) << "the verdict must be decided, but not beyond all doubt";
  for (const char* wanted : {"claims that advise: 1; claims too uncertain to advise: 0",
                             "claims that advise: 0; claims too uncertain to advise: 1"}) {
    const std::string db = path(fmt::format("{}.sqlite", lines.size()));
    ASSERT_EQ(run({"--db", db, "ingest", write("lines", lines)}).status, 0);
    expect_has(run({"--db", db, "advice", "--device", "b cpu", "--proto", "proto1"}).out, {wanted});
    for (int i = 0; i < 40; ++i) lines.push_back(finding({1.25, 1.25}, "r1", fmt::format("C{} CPU, 2 units", i)));
  }
}

}  // namespace
}  // namespace attn::kb
