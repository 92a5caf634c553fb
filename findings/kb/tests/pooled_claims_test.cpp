#include "findings/kb/pooled_claims.h"

#include <fmt/format.h>

#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

/// Returns a run's header and a finding of the run, with the advice that fits the finding's verdict. The run starts
/// `second` seconds after 12:00.
std::vector<Json> run_at(int second, const std::vector<double>& ratios, const std::string& machine = "m1",
                         const std::vector<std::string>& measurements = {},
                         const std::string& device = "A CPU, 2 units") {
  const std::string run = fmt::format("r{}", second);
  Json head = header(run);
  head["run"]["ts"] = fmt::format("2026-01-31T12:00:{:02}Z", second);
  head["session"]["machine"] = machine;
  Json told = finding(ratios, run, device, measurements);
  const Json& state = told["data"]["verdict"]["state"];
  if (state != "inconclusive") told["data"]["advice"] = state == "supported" ? "Measure." : "Take any.";
  return {with_id(head), with_id(told)};
}

Json pooled(const std::vector<std::vector<Json>>& runs) {
  std::vector<Json> lines;
  for (const auto& run : runs) lines.insert(lines.end(), run.begin(), run.end());
  const std::vector<Json> claims = pooled_claims(records_of(lines));
  EXPECT_EQ(claims.size(), 1u);
  return claims.at(0);
}

TEST(PooledClaims, AllRunsTakePart) {
  const Json one = pooled({run_at(1, {1.6, 1.6, 1.6})});
  EXPECT_EQ(one["verdict"]["state"], "supported");
  EXPECT_EQ(one["advice"], "Measure.");
  EXPECT_EQ(one["estimate"]["sessions"], 1);
  EXPECT_EQ(one["estimate"]["processes"], 3);
  EXPECT_EQ(one["confidence"], 0.8) << "one session";
  const Json two = pooled({run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.7, 1.7, 1.7})});
  EXPECT_NEAR(two["estimate"]["value"].get<double>(), std::sqrt(1.6 * 1.7), 1e-5);
  EXPECT_EQ(two["estimate"]["sessions"], 2);
  EXPECT_EQ(two["findings"].size(), 2u);
  EXPECT_EQ(two["title"], "The worst flash attention tile takes 1.65 times the best");
  EXPECT_LE(two["confidence"], 0.9) << "one machine";
  EXPECT_GT(two["estimate"]["next_hi"].get<double>() / two["estimate"]["next_lo"].get<double>(), 1.06)
      << "the runs lie 6 % apart";
  const Json machines = pooled({run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.61, 1.6, 1.6}, "m2")});
  EXPECT_EQ(machines["estimate"]["machines"], 2);
  EXPECT_GT(machines["confidence"], 0.9);
  std::vector<Json> unnamed = run_at(2, {1.61, 1.6, 1.6});
  unnamed[0]["session"]["machine"] = nullptr;
  const Json perhaps = pooled({run_at(1, {1.6, 1.6, 1.6}), {with_id(unnamed[0]), unnamed[1]}});
  EXPECT_EQ(perhaps["estimate"]["machines"], 1) << "the second run does not name its machine";
  EXPECT_LE(perhaps["confidence"], 0.9);
}

TEST(PooledClaims, RunsThatDisagreeAreInconclusive) {
  const Json claim = pooled({run_at(1, {1.6, 1.6, 1.6}), run_at(2, {1.0, 1.0, 1.0})});
  EXPECT_EQ(claim["verdict"]["state"], "inconclusive");
  EXPECT_EQ(claim["advice"], "");
  EXPECT_EQ(claim["confidence"], 0.5);
  EXPECT_EQ(claim["title"], "The choice of tile matters.") << "no run has a title for `inconclusive`";
}

TEST(PooledClaims, TheAdviceComesFromARunWithThePooledVerdict) {
  // The latest run refutes the claim. The pooled verdict supports the claim.
  const Json claim = pooled({run_at(1, {1.40, 1.40, 1.40}), run_at(2, {1.41, 1.41, 1.41}), run_at(3, {1.41, 1.4, 1.4}),
                             run_at(4, {1.39, 1.4, 1.4}), run_at(5, {1.26, 1.26, 1.27})});
  EXPECT_EQ(claim["verdict"]["state"], "supported");
  EXPECT_EQ(claim["advice"], "Measure.");
}

TEST(PooledClaims, ARunWithWarmCachesMakesTheClaimInconclusive) {
  std::vector<Json> warm = run_at(2, {1.6, 1.6, 1.6});
  warm[1]["data"]["estimate"]["warm"] = true;
  const Json claim = pooled({run_at(1, {1.6, 1.6, 1.6}), warm});
  EXPECT_EQ(claim["verdict"]["state"], "inconclusive");
  EXPECT_NE(claim["verdict"]["reason"].get<std::string>().find("warm caches"), std::string::npos);
}

TEST(PooledClaims, OtherCodeIsNotPooled) {
  const Json kernel = measurement(shape(64), 1e-3);
  Json changed = kernel;
  changed["pipeline"]["code_sha256"] = std::string(64, 'c');
  changed = with_id(changed);
  std::vector<Json> old = run_at(1, {1.6, 1.6, 1.6}, "m1", {kernel["id"]});
  old.push_back(kernel);
  std::vector<Json> today = run_at(2, {1.3, 1.3, 1.3}, "m1", {changed["id"]});
  today.push_back(changed);
  const Json claim = pooled({old, today});
  EXPECT_NEAR(claim["estimate"]["value"].get<double>(), 1.3, 1e-5);
  EXPECT_EQ(claim["others"], Json::array({old[1]["id"]}));
  EXPECT_EQ(claim["latest"], today[1]["id"]);
}

TEST(Discoveries, EndAtTheLastClaimWithinItsLimit) {
  using Kept = std::vector<bool>;
  const auto discoveries = [](const std::vector<double>& wrong, double share = 0.05) {
    return kb::discoveries(wrong, std::vector<double>(wrong.size(), 1), share);
  };
  EXPECT_EQ(discoveries({}), Kept{});
  EXPECT_EQ(discoveries({0.04}), Kept{true});
  EXPECT_EQ(discoveries({0.06}), Kept{false});
  // The limits for four claims, in rising order, are 0.0125, 0.025, 0.0375 and 0.05.
  EXPECT_EQ(discoveries({0.2, 0.036, 0.001, 0.03}), (Kept{false, true, true, true})) << "0.036 is within its limit";
  EXPECT_EQ(discoveries({0.2, 0.039, 0.001, 0.03}), (Kept{false, false, true, false}));
  EXPECT_EQ(discoveries({0.05, 0.05, 0.05, 0.05}), (Kept{true, true, true, true}));
  EXPECT_EQ(discoveries({0.2, 0.2}, 0.3), (Kept{true, true}));
}

// Three claims judge one measurement. So together they raise the limits of later claims as much as one claim.
TEST(Discoveries, CountAMeasurementOnce) {
  const std::vector<double> wrong = {0.001, 0.001, 0.001, 0.04, 0.2};
  using Kept = std::vector<bool>;
  EXPECT_EQ(discoveries(wrong, {1, 1, 1, 1, 1}), (Kept{true, true, true, true, false}));
  const double third = 1 / 3.;
  EXPECT_EQ(discoveries(wrong, {third, third, third, 1, 1}), (Kept{true, true, true, false, false}));
}

TEST(ExpectedWrong, CountsAMeasurementOnce) {
  const auto claim = [](const char* measured, double confidence) -> Json {
    return {{"verdict", {{"state", "refuted"}}},
            {"estimate", {{"scale", "log"}}},
            {"confidence", confidence},
            {"measured", measured}};
  };
  EXPECT_NEAR(expected_wrong({claim("a", 0.8), claim("a", 0.6), claim("b", 0.9)}), 0.3 + 0.1, 1e-9);
}

TEST(ExpectedWrong, SumsTheDoubtsOfDecidedClaims) {
  const auto claim = [](const char* state, double confidence, const char* measured, const char* scale) -> Json {
    return {{"verdict", {{"state", state}}},
            {"estimate", {{"scale", scale}}},
            {"confidence", confidence},
            {"measured", measured}};
  };
  EXPECT_NEAR(expected_wrong({claim("supported", 0.8, "a", "log"), claim("refuted", 0.7, "b", "log"),
                              claim("inconclusive", 0.5, "c", "log"), claim("supported", 1, "a", "exact")}),
              0.2 + 0.3, 1e-9)
      << "the inconclusive claim and the exact claim must count nothing";
}

TEST(PooledClaims, AdviceOfUncertainClaimsIsWithheld) {
  std::vector<Json> lines = run_at(1, {1.9, 1.9, 1.9, 1.9});
  const Json near = finding(1.27, "r1", "Another CPU");
  lines.push_back(near);
  const std::vector<Json> claims = pooled_claims(records_of(lines));
  ASSERT_EQ(claims.size(), 2u);
  for (const Json& claim : claims) EXPECT_EQ(claim["advised"], claim["device"] == "A CPU, 2 units") << claim.dump();
  EXPECT_NEAR(expected_wrong(claims), 0.2, 1e-9);
}

// If a claim is decided, the next run's figure lies on the other side of the threshold with a probability of at most
// 2.5 %. If many claims are tested, chance may decide one of them.
TEST(PooledClaims, UndecidedClaimsCountAsTested) {
  std::vector<Json> lines;
  Json claim;
  for (double ratio = 1.26; claim.is_null() || claim["verdict"]["state"] == "inconclusive"; ratio += 0.001) {
    lines = {header(), finding({ratio, ratio, ratio})};
    claim = pooled_claims(records_of(lines)).at(0);
  }
  EXPECT_GT(claim["wrong"], 0.01);
  EXPECT_EQ(claim["advised"], true);
  for (int i = 0; i < 9; ++i) lines.push_back(finding({1.25, 1.25}, "r1", fmt::format("CPU {}", i)));
  const std::vector<Json> claims = pooled_claims(records_of(lines));
  EXPECT_EQ(claims.size(), 10u);
  for (const Json& other : claims) EXPECT_EQ(other["advised"], false) << other.dump();
}

TEST(PooledClaims, WrongFallsWithTheDistanceToTheThreshold) {
  const auto wrong = [](const Json& finding) {
    return pooled_claims(records_of({header(), finding})).at(0)["wrong"].get<double>();
  };
  EXPECT_LT(wrong(finding({1.6, 1.61, 1.6})), 0.01);
  EXPECT_LT(wrong(finding({1.6, 1.61, 1.6})), wrong(finding({1.3, 1.31, 1.3})));
  EXPECT_LT(wrong(finding({1.3, 1.3, 1.3, 1.3, 1.3})), wrong(finding(1.3)));
  EXPECT_GT(wrong(finding(1.3)), 0);
}

TEST(PooledClaims, AClaimAboutACountIsExact) {
  const std::vector<Json> claims = pooled_claims(records_of({header(), exact_finding(2)}));
  ASSERT_EQ(claims.size(), 1u);
  EXPECT_EQ(claims[0]["estimate"]["scale"], "exact");
  EXPECT_EQ(claims[0]["confidence"], 1);
  EXPECT_EQ(claims[0]["wrong"], 0);
  EXPECT_EQ(claims[0]["advised"], true);
}

// A claim about a count, such as a number of allocations, is exact, so it is never wrong. If discoveries() ranked the
// exact claim, the doubtful claim would be advised.
TEST(PooledClaims, AClaimAboutACountDoesNotRaiseTheLimits) {
  const Json doubtful = finding(1.27, "r1", "Another CPU");
  const auto advised = [](const std::vector<Json>& lines) {
    int count = 0;
    for (const Json& claim : pooled_claims(records_of(lines))) count += claim["advised"] == true;
    return count;
  };
  EXPECT_EQ(advised({header(), doubtful}), 0);
  EXPECT_EQ(advised({header(), doubtful, exact_finding(2)}), 1);
}

class AdviceTest : public KbTest {};

// If kb has only one claim, it gives the claim's advice. If kb also has many undecided claims about other devices, it
// withholds the advice, even if `--device` selects only the claim's device.
TEST_F(AdviceTest, TheOptionDeviceDoesNotChangeWhichClaimsMayAdvise) {
  std::vector<Json> one;
  double wrong = 0;
  for (double ratio = 1.2; ratio < 2; ratio += 0.002) {
    one = run_at(1, {ratio, ratio, ratio}, "m1", {}, "B CPU, 2 units");
    const Json claim = pooled_claims(records_of(one)).at(0);
    wrong = claim["wrong"];
    if (!claim["advice"].get<std::string>().empty()) break;
  }
  ASSERT_GT(wrong, 1e-3) << "the verdict must be decided, but not beyond all doubt";
  std::vector<Json> all = one;
  for (int i = 0; i < 0.05 / wrong + 1; ++i) {
    const std::vector<Json> open = run_at(2 + i, {1.1, 1.2, 1.3}, "m1", {}, fmt::format("C{} CPU, 2 units", i));
    all.insert(all.end(), open.begin(), open.end());
  }
  const auto advice = [&](const std::string& name, const std::vector<Json>& records) {
    const std::string db = path(name + ".sqlite");
    EXPECT_EQ(run({"--db", db, "ingest", write(name, records)}).status, 0);
    return run({"--db", db, "advice", "--device", "b cpu", "--proto", "proto1"}).out;
  };
  EXPECT_NE(advice("one", one).find("claims that advise: 1; claims too uncertain to advise: 0"), std::string::npos)
      << advice("one", one);
  EXPECT_EQ(advice("all", all),
            "claims that advise: 0; claims too uncertain to advise: 1; wrong verdicts to expect in this advice: 0.0\n");
}

}  // namespace
}  // namespace attn::kb
