// A finding: one record with a claim, its verdict and the figures that the verdict uses.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Replaces "{path.to.value:format}" in a text by values of `data`. The format is fmt's; literal braces are written
/// twice. Throws std::out_of_range for a missing path, and std::invalid_argument for a bad format or a single brace.
std::string render(const std::string& text, const Json& data);

/// Returns one finding as a JSON object with the fields of docs/records.md. Only `cases` and `code` are missing; the
/// experiment adds them. `run` is the id of the finding's run. Throws as render() does, and std::runtime_error for a
/// number that is not finite.
Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, const std::string& run);

/// The object `estimate` of a finding.
Json estimate_json(const Conclusion& conclusion);

/// The comparison that a finding records, with its hypothesis; empty where the finding compared no pair. Throws as
/// timing_from_json() does.
std::optional<Comparison> comparison_of(const Json& finding);

/// The key of the findings that are pooled: experiment, hypothesis, device name and subject, and 8 hex digits of the
/// hash of the figure's definition (metric, scope and selection). No measured value is part of the key. `scope` is the
/// scope of the comparison, or empty. `selection` is Conclusion::selection.
std::string claim_key(const std::string& experiment, const Hypothesis& hypothesis, const std::string& device,
                      const std::string& subject, const std::string& scope, const std::string& selection);

/// Findings in the first format, finding/1, have the fields `run` and `env`. Findings in the second format, finding/2,
/// have only the id of their run, and the header of the run (run/1) has the fields. This function copies the fields
/// from the headers among the records into the findings. A finding whose header is missing keeps the id.
void join_runs(std::vector<Json>& records);

/// Returns a text that two findings share if they judge the same cases of the same run. `data` is Json of a finding's
/// data, with or without join_runs(). Claims with different thresholds often judge one measurement.
std::string measured_by(const Json& data);

/// For each decided verdict that is not exact: 1 - its confidence. The key is measured_by() of the finding.
using Doubts = std::map<std::string, std::vector<double>>;
/// Returns the number of wrong verdicts to expect, where each measurement counts once: the sum over the measurements of
/// their verdicts' mean doubt.
double expected_wrong(const Doubts& doubts);

/// Appends a finding to a findings file.
void emit_finding(RecordFile& file, const Json& finding);

}  // namespace attn
