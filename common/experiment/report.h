// The texts that a run prints: results in one line, verdicts, --list and --dry-run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/progress.h"
#include "common/experiment/experiment.h"

namespace attn {

/// The median, and half its confidence interval in per cent, as in "123.4 us +-0.4%".
std::string format_time(const Timing& timing);

/// The median and its confidence interval, as in "123.4 us [122.9 us, 124.0 us]".
std::string format_interval(const Timing& timing);

/// The result of one measurement, in one line.
std::string summary(const Measurement& measurement);

/// The text of --list: axes, their values in these cases, and the hypotheses.
std::string list(const ExperimentSpec& spec, const Options& options, const std::vector<std::vector<Case>>& groups,
                 const std::vector<Hypothesis>& hypotheses);

/// The text of --list --json: one line per claim, with its hypothesis.
std::string claims_json(const std::string& experiment, const std::vector<Claim>& claims);

/// The text of --dry-run: a table of the cases, a line for each reason why cases would be skipped, and a line with the
/// totals. If the published study has a kernel for a case (ExperimentSpec::study_bytes), the table has the threadgroup
/// memory of this kernel, and the largest threadgroup memory of the case's own launches. With --json there is one line
/// a case, as JSON.
std::string dry_run(const ExperimentSpec& spec, const Options& options, const std::vector<std::vector<Case>>& groups,
                    const DeviceInfo& info, const std::function<const Plan&(const Case&)>& plan);

/// A finding in a few lines: verdict and title; metric, reason and the probability that the verdict is wrong. A claim
/// that is not supported is quoted first.
std::string verdict_text(const Json& finding);

}  // namespace attn
