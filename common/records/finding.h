// A finding: one record with a claim, its verdict and the figures that the verdict uses.
#pragma once

#include <optional>
#include <string>

#include "common/records/claim.h"

namespace attn {

/// Replaces "{path.to.value:format}" in a text by values of `data`. The format is fmt's; literal braces are written
/// twice. Throws std::out_of_range for a missing path, and std::invalid_argument for a bad format or a single brace.
std::string render(const std::string& text, const Json& data);

/// One finding as a JSON object, all fields of docs/records.md. `run` and `env` come from the experiment. Throws as
/// render() does, and std::runtime_error for a number that is not finite.
Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, bool replicated, const Json& run, const Json& env);

/// The comparison that a finding records, with its hypothesis; empty where the finding compared no pair. Throws as
/// timing_from_json() does.
std::optional<Comparison> comparison_of(const Json& finding);

/// The key that replications of a finding share: experiment, hypothesis, device name and subject, but no figures.
std::string claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                      const std::string& subject);

/// Appends a finding to a findings file.
void emit_finding(RecordFile& file, const Json& finding);

}  // namespace attn
