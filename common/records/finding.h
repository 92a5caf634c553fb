// A finding: one record with a claim, its verdict and the figures that the verdict uses.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Replaces "{path.to.value:format}" in a text by values of `data`. The format is fmt's; literal braces are written
/// twice. Throws std::out_of_range for a path that leads to no text, number or truth value, and std::invalid_argument
/// for a bad format or an unmatched brace.
std::string render(const std::string& text, const Json& data);

/// Returns a finding with the fields of docs/records.md except `cases` and `code`; who adds these fields has to set the
/// id anew. `run` is the id of the finding's run. Throws as render() does, and std::runtime_error for a number that is
/// not finite.
Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, const std::string& run);

/// The object `estimate` of a finding.
Json estimate_json(const Conclusion& conclusion);

/// Returns what judge() and wrong() need, from the field `data` of a finding. Throws Json::exception for a missing
/// field or a wrong type.
Conclusion conclusion_of(const Json& data);

/// wrong() of the finding whose field is `data`; 1 where it cannot be computed. Throws as conclusion_of() does.
double wrong_of(const Json& data);

/// Whether a figure is exact: a count or a number of bytes. `estimate` is the object of a finding or of a pooled claim.
bool is_exact(const Json& estimate);

/// The comparison that a finding records; empty where the finding compared no pair. Throws as comparison_from_json()
/// does.
std::optional<Comparison> comparison_of(const Json& finding);

/// Returns the claim_key of a finding. Findings with equal keys are about one figure and can be pooled. The key has the
/// experiment, the hypothesis, a short hash of the figure's definition (metric, scope and selection), the device name
/// and the subject, but no measured value. `scope` is the scope of the comparison; empty without a comparison.
std::string claim_key(const std::string& experiment, const Hypothesis& hypothesis, const std::string& device,
                      const std::string& subject, const std::string& scope, const std::string& selection);

/// In a finding, `run` is only the id of the run; the run's header (a record run/1) has the objects `run` and `env`.
/// Copies these objects from the headers among the records into `data` of the findings. A finding whose header is
/// missing keeps the id.
void join_runs(std::vector<Json>& records);

/// Returns a text that two findings share if they judge the same cases of the same run, for example with different
/// thresholds. `data` is the field `data` of a finding, before or after join_runs().
std::string measured_by(const Json& data);

/// By measured_by(), the doubts about the findings' verdicts. A doubt is wrong() of a decided verdict; a verdict on an
/// exact figure has no doubt.
using Doubts = std::map<std::string, std::vector<double>>;
/// Returns the expected number of wrong verdicts, where the verdicts under one key count as one: the sum of the means
/// of each key's doubts.
double expected_wrong(const Doubts& doubts);

void emit_finding(RecordFile& file, const Json& finding);

}  // namespace attn
