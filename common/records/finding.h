// What a run learned: a claim, its verdict and the figures behind it, as one record.
#pragma once

#include <optional>
#include <string>

#include "common/records/claim.h"

namespace attn {

/// Fills "{path.to.value:format}" from data; a missing path throws std::out_of_range, a bad format or a lone brace
/// std::invalid_argument. The format is fmt's; braces are written twice.
std::string render(const std::string& text, const Json& data);

/// One finding as a JSON object, all fields of docs/records.md. `run` and `env` come from the experiment. Throws as
/// render() does, and std::runtime_error for a number that is not finite.
Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, bool replicated, const Json& run, const Json& env);

/// The pair that a finding compared, as it was measured, and its hypothesis; nothing where it compared none. Throws as
/// timing_from_json() does.
std::optional<Comparison> comparison_of(const Json& finding);

/// Groups replications: experiment, hypothesis, device name and subject, but no figures.
std::string claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                      const std::string& subject);

/// Appends a finding to a findings file (emit_finding of the plan).
void emit_finding(RecordFile& file, const Json& finding);

}  // namespace attn
