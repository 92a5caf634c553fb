// Answers (common/experiment/answer.h) about a made-up device.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/experiment/answer.h"

namespace attn::test {

/// Returns the answer of a run in which each case took seconds(case).
inline Json made_up_answer(const AnswerSpec& spec, const std::vector<Case>& cases,
                           const std::function<double(const Case&)>& seconds,
                           const std::function<void(Case&)>& complete = {}) {
  std::vector<Measurement> results;
  for (const Case& config : cases) {
    Measurement& result = results.emplace_back();
    result.id = fmt::format("{:016x}", results.size());
    result.config = config;
    const double time = seconds(config);
    result.time = {{Scope::device_hot, 10, 10, time, 0.999 * time, 1.001 * time, 0.01, time, "ci"}};
  }
  return answer({.spec = spec,
                 .claims = {},
                 .device = "made up",
                 .results = results,
                 .comparisons = {},
                 .findings = {},
                 .known = {},
                 .complete = complete});
}

/// Returns the options that the lines of an answer recommend, and "" if a line recommends none.
inline std::set<std::string> taken(const Json& answer) {
  std::set<std::string> options;
  for (const Json& line : answer.at("choices")) options.insert(line.at("take").is_null() ? "" : line["take"]);
  return options;
}

/// Returns the ids of `spec.claims` that no claim of `claims` has.
inline std::vector<std::string> unknown_claims(const AnswerSpec& spec, const std::vector<Claim>& claims) {
  std::vector<std::string> unknown = spec.claims;
  std::erase_if(unknown, [&](const std::string& id) {
    return std::ranges::any_of(claims, [&](const Claim& claim) { return claim.hypothesis.id == id; });
  });
  return unknown;
}

inline std::vector<Claim> both(std::vector<Claim> claims, const std::vector<Claim>& others) {
  claims.insert(claims.end(), others.begin(), others.end());
  return claims;
}

}  // namespace attn::test
