#include "common/records/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/base/error.h"
#include "common/records/fields.h"
#include "common/records/spread.h"

namespace attn {
namespace {

void append(Series& all, const Series& more) { all.insert(all.end(), more.begin(), more.end()); }

Series rounds_of(const Json& samples) {
  Series series;
  for (const Json& sample : samples) series.push_back({sample.get<double>()});
  return series;
}

/// Sets all figures that follow from the samples alone. The ratio does not: that of several processes is pooled.
void summarize_samples(Comparison& comparison, const PairSamples& samples, uint64_t seed) {
  comparison.aa = ratio(samples.baseline, samples.again, seed);
  comparison.time.clear();
  comparison.cv = 0;
  for (const Series* side : {&samples.baseline, &samples.contender}) {
    comparison.time.push_back(summarize(*side, samples.scope, samples.stop, seed));
    comparison.cv = std::max(comparison.cv, comparison.time.back().cv);
  }
}

}  // namespace

std::vector<double> rounded_samples(const Series& series) {
  std::vector<double> samples;
  for (const Round& round : series) {
    for (const double sample : round) samples.push_back(rounded(sample, 6));
  }
  return samples;
}

double Comparison::aa_floor() const { return std::max(std::abs(std::log(aa.ci_lo)), std::abs(std::log(aa.ci_hi))); }

Comparison compared(const Case& baseline, const Case& contender, const PairSamples& samples, uint64_t seed) {
  Comparison comparison;
  comparison.baseline = baseline;
  comparison.contender = contender;
  comparison.ratio = ratio(samples.baseline, samples.contender, seed);
  comparison.clocks = samples.clocks;
  summarize_samples(comparison, samples, seed);
  return comparison;
}

Comparison compared(std::span<const Comparison> parts, std::span<const PairSamples> samples, const Spread& prior,
                    uint64_t seed) {
  if (parts.empty() || parts.size() != samples.size())
    throw std::invalid_argument("compared: there must be parts, and samples for each part");
  PairSamples all = samples.front();
  for (const PairSamples& more : samples.subspan(1)) {
    append(all.baseline, more.baseline);
    append(all.contender, more.contender);
    append(all.again, more.again);
    if (more.stop != all.stop) all.stop = "budget";  // at least one process ended before its interval was narrow enough
  }
  Comparison pooled = parts.front();
  summarize_samples(pooled, all, seed);
  pooled.process = 1;
  pooled.parts.assign(parts.begin(), parts.end());
  pool_parts(pooled, prior);
  return pooled;
}

void pool_parts(Comparison& comparison, const Spread& prior) {
  if (comparison.parts.empty()) return;
  Session session;
  for (const Comparison& part : comparison.parts) session.push_back(ratio_part(part));
  const Pooled ratio = pool({&session, 1}, prior, true);
  comparison.ratio = {ratio.value, ratio.ci_lo, ratio.ci_hi};
  comparison.prior = prior;
}

Part ratio_part(const Comparison& comparison) {
  const auto& [value, lo, hi] = comparison.ratio;
  int rounds = comparison.time.empty() ? 0 : comparison.time.front().rounds;
  for (const Timing& time : comparison.time) rounds = std::min(rounds, time.rounds);
  return {.process = comparison.process, .value = value, .error = standard_error(lo, hi), .rounds = rounds};
}

Json to_json(const Comparison& comparison) {
  Json json = {{"process", comparison.process},
               {"baseline", comparison.baseline.json()},
               {"contender", comparison.contender.json()},
               {"ratio", comparison.ratio.value},
               {"ci_lo", comparison.ratio.ci_lo},
               {"ci_hi", comparison.ratio.ci_hi},
               {"aa_ratio", comparison.aa.value},
               {"aa_ci_lo", comparison.aa.ci_lo},
               {"aa_ci_hi", comparison.aa.ci_hi},
               {"aa_floor", comparison.aa_floor()},
               {"cv", comparison.cv},
               {"time", to_json(comparison.time)},
               {"clocks", comparison.clocks}};
  if (!comparison.parts.empty()) json["prior"] = comparison.prior;
  for (const Comparison& part : comparison.parts) {
    Json one = to_json(part);
    for (const char* known : {"baseline", "contender"}) one.erase(known);
    json["parts"].push_back(std::move(one));
  }
  return json;
}

Comparison comparison_from_json(const Json& json) {
  const auto estimate = [&](const char* value, const char* low, const char* high) {
    return Estimate{json.at(value), json.at(low), json.at(high)};
  };
  Comparison comparison;
  comparison.baseline = Case::from_json(json.at("baseline"));
  comparison.contender = Case::from_json(json.at("contender"));
  comparison.ratio = estimate("ratio", "ci_lo", "ci_hi");
  comparison.aa = estimate("aa_ratio", "aa_ci_lo", "aa_ci_hi");
  comparison.cv = json.at("cv");
  comparison.process = json.value("process", 1);
  json.at("time").get_to(comparison.time);
  comparison.clocks = json.at("clocks");
  if (json.contains("prior")) json.at("prior").get_to(comparison.prior);
  for (Json part : json.value("parts", Json::array())) {
    for (const char* known : {"baseline", "contender"}) part[known] = json.at(known);
    comparison.parts.push_back(comparison_from_json(part));
  }
  return comparison;
}

Json to_json(const PairSamples& samples) {
  return {{"scope", name(samples.scope)},
          {"stop", samples.stop},
          {"baseline_s", rounded_samples(samples.baseline)},
          {"contender_s", rounded_samples(samples.contender)},
          {"again_s", rounded_samples(samples.again)},
          {"clocks", samples.clocks}};
}

PairSamples samples_from_json(const Json& json) {
  return {.scope = parse_scope(json.at("scope")),
          .stop = json.at("stop"),
          .baseline = rounds_of(json.at("baseline_s")),
          .contender = rounds_of(json.at("contender_s")),
          .again = rounds_of(json.at("again_s")),
          .clocks = json.at("clocks")};
}

}  // namespace attn
