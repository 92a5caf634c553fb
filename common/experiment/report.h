// The texts that a run prints: results in one line, verdicts, --list and --dry-run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/progress.h"
#include "common/experiment/experiment.h"

namespace attn {

/// The median and its confidence interval, as in "123.4 us [122.9, 124.0]".
std::string format_interval(const Timing& timing);

/// The result of one measurement, in one line.
std::string summary(const Measurement& measurement);

/// The text of --list: axes, their values in these cases, and the hypotheses.
std::string list(const ExperimentSpec& spec, const Options& options, const std::vector<std::vector<Case>>& groups,
                 const std::vector<Hypothesis>& hypotheses);

/// The text of --list --json: one line per claim, with its hypothesis and its words of advice.
std::string claims_json(const std::string& experiment, const std::vector<Claim>& claims);

/// The text of --dry-run: the values that nearly all cases have, a line for each case with the case's other values, and
/// a last line with the totals. The line of a case says why the case would be skipped, if it would be. If the published
/// study has a kernel for the case (ExperimentSpec::study_bytes), the line has the threadgroup memory of this kernel,
/// and the largest threadgroup memory of the case's own launches. With --json there are only the lines of the cases, as
/// JSON.
std::string dry_run(const ExperimentSpec& spec, const Options& options, const std::vector<std::vector<Case>>& groups,
                    const DeviceInfo& info, const std::function<const Plan&(const Case&)>& plan);

/// A finding in a few lines: verdict and title; metric, reason and confidence; the advice if there is one. A claim that
/// is not supported is quoted first.
std::string verdict_text(const Json& finding);

}  // namespace attn
