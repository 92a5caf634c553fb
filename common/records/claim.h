// What an experiment claims before it runs, and how code judges it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/records/measurement.h"

namespace attn {

/// Registered before anything runs. `metric` names the figure, e.g. "ratio of medians, worst tile / best tile".
struct Hypothesis {
  std::string id;  // short, e.g. "bc80"
  std::string text;
  std::string metric;
  std::string op;  // "<", "<=", ">" or ">="
  double threshold = 0;
  std::string origin;  // where the expectation comes from
};

enum class State { supported, refuted, inconclusive };
std::string_view name(State state);

struct Verdict {
  State state = State::inconclusive;
  std::string reason;
};

/// A baseline and a contender measured A B A' interleaved; A' is the baseline again, so that every comparison brings
/// its own noise floor.
struct Comparison {
  std::string hypothesis;  // id of the one that asked for it
  Case baseline, contender;
  Estimate ratio;            // contender / baseline, of device_hot time, or of host time where that is what is timed
  Estimate aa;               // baseline / baseline
  double aa_floor() const;   // largest distance of the A/A interval from 1
  double cv = 0;             // larger of the two
  std::vector<Timing> time;  // baseline, contender
};

/// What an experiment concludes for one hypothesis; the verdict is computed from it.
struct Conclusion {
  std::string hypothesis;  // id
  std::string subject;     // what this finding is about beside the hypothesis: "head_dim=64"; part of the claim_key
  std::string title;       // templates over data: "Bc=80 takes {compare.ratio:.3f} of the best power of two"
  std::string content;
  std::vector<std::string> tags;
  Estimate estimate;    // the metric's value
  double aa_floor = 0;  // 0 where the metric is no ratio of times
  double cv = 0;
  bool correct = true;  // every measurement behind it passed its check
  std::optional<Comparison> compare;
  Json values = Json::object();           // every other number the texts use
  std::vector<std::string> measurements;  // ids
};

/// supported or refuted where the interval lies on one side of the threshold and the estimate is farther from the
/// threshold than the A/A floor (docs/measuring.md). Throws std::invalid_argument for an unknown op.
Verdict judge(const Hypothesis& hypothesis, const Conclusion& conclusion);
/// 0 incorrect; 0.5 inconclusive; 0.6 CV >= 5 %; 0.8 clean; 0.95 once an independent run agrees.
double confidence(const Verdict& verdict, const Conclusion& conclusion, bool replicated);

}  // namespace attn
