#include "common/experiment/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/text_table.h"
#include "common/experiment/options.h"
#include "common/records/case_table.h"
#include "common/records/finding.h"

namespace attn {
std::string format_time(const Timing& timing) {
  return fmt::format("{} +-{:.1f}%", format_seconds(timing.median_s),
                     50 * (timing.ci_hi_s - timing.ci_lo_s) / timing.median_s);
}

std::string format_interval(const Timing& timing) {
  return fmt::format("{} [{}, {}]", format_seconds(timing.median_s), format_seconds(timing.ci_lo_s),
                     format_seconds(timing.ci_hi_s));
}

std::string summary(const Measurement& measurement) {
  std::string line = measurement.status;
  if (!measurement.reason.empty()) line += ": " + measurement.reason;
  const Timing* const main = measurement.main_timing();
  if (main) line += ", " + format_time(*main);
  if (main && main->scope == Scope::device_hot) line += fmt::format(", {:.4g} TFLOP/s", measurement.tflops());
  return line;
}

std::string list(const ExperimentSpec& spec, const Options& options, const std::vector<std::vector<Case>>& groups,
                 const std::vector<Hypothesis>& hypotheses) {
  const size_t width = output_width();
  std::string text =
      wrapped(fmt::format("{}: {}", spec.name, spec.summary), width, 2) + "\n" +
      wrapped(fmt::format("Axes, and their values in the selected cases ({} profile):", options.profile), width, 2);
  const auto entry = [&](const std::string& name, const std::string& about,
                         const std::vector<std::pair<std::string, std::string>>& facts) {
    constexpr size_t column = 15;
    std::string lines = wrapped(fmt::format("  {:<12} {}", name, about), width, column);
    for (const auto& [what, fact] : facts) {
      lines += wrapped(std::string(column + 2, ' ') + what + fact, width, column + 2 + what.size());
    }
    return lines;
  };
  for (const AxisInfo& axis : spec.axes) {
    std::vector<AxisValue> values;
    for (const auto& group : groups) {
      for (const Case& config : group) {
        for (const auto& [name, value] : config.axes()) {
          if (name == axis.name && std::find(values.begin(), values.end(), value) == values.end()) {
            values.push_back(value);
          }
        }
      }
    }
    std::sort(values.begin(), values.end());
    std::vector<std::string> shown;
    for (const AxisValue& value : values) shown.push_back(to_string(value));
    const std::string allowed = !axis.choices.empty() ? fmt::format("{}", fmt::join(axis.choices, " "))
                                : axis.multiple_of > 1
                                    ? fmt::format("{}..{} by {}", axis.min, axis.max, axis.multiple_of)
                                    : fmt::format("{}..{}", axis.min, axis.max);
    text +=
        entry(axis.name, axis.help,
              {{"allowed: ", allowed}, {"here:    ", shown.empty() ? "-" : fmt::format("{}", fmt::join(shown, ", "))}});
  }
  text += "\nHypotheses:\n";
  for (const Hypothesis& hypothesis : hypotheses) {
    text += entry(hypothesis.id, hypothesis.text,
                  {{"holds if: ", fmt::format("{} {} {}", hypothesis.metric, hypothesis.op, hypothesis.threshold)},
                   {"origin:   ", hypothesis.origin}});
  }
  return text;
}

std::string claims_json(const std::string& experiment, const std::vector<Claim>& claims) {
  std::string text;
  for (const Claim& claim : claims) {
    const Hypothesis& hypothesis = claim.hypothesis;
    const Json line = {{"experiment", experiment},    {"hypothesis", hypothesis.id},
                       {"text", hypothesis.text},     {"metric", hypothesis.metric},
                       {"op", hypothesis.op},         {"threshold", hypothesis.threshold},
                       {"origin", hypothesis.origin}, {"exact", claim.exact}};
    text += line.dump() + "\n";
  }
  return text;
}

std::string dry_run(const ExperimentSpec& spec, const Options& options, const std::vector<std::vector<Case>>& groups,
                    const DeviceInfo& info, const std::function<const Plan&(const Case&)>& plan) {
  const auto kilobytes = [](size_t bytes) { return fmt::format("{:.4g}", static_cast<double>(bytes) / 1024); };
  std::string lines;
  std::vector<Case> cases;
  std::vector<CaseReason> reasons;
  CaseTable table = {.heads = {"", "the study's KB", "our KB"}, .rows = {}, .width = output_width(), .remedy = ""};
  for (const auto& group : groups) cases.insert(cases.end(), group.begin(), group.end());
  for (const Case& config : cases) {
    const Plan& planned = plan(config);
    const auto reason = skip_reason(planned, info);
    const size_t study = spec.study_bytes ? spec.study_bytes(config, info) : 0;
    size_t ours = 0;
    for (const Launch& launch : planned.launches) ours = std::max(ours, launch.threadgroup_bytes);
    if (reason) reasons.push_back({"skipped", *reason, config});
    table.rows.push_back(
        {config,
         {reason ? "skipped" : "", study > 0 ? kilobytes(study) : "", study > 0 && ours > 0 ? kilobytes(ours) : ""}});
    Json line = {{"case", config.json()}, {"runs", !reason}, {"reason", reason.value_or("")}};
    if (study > 0) line["threadgroup_bytes"] = {{"study", study}, {"ours", ours > 0 ? Json(ours) : Json()}};
    lines += line.dump() + "\n";
  }
  if (options.json) return lines;
  return (cases.empty() ? "" : case_table(table)) + reasons_text(reasons, varying_axes(cases), output_width()) +
         wrapped(fmt::format("{} of {} in {} would run, in at most about {} of measuring",
                             cases.size() - reasons.size(), counted(cases.size(), "case"),
                             counted(groups.size(), "group"), format_duration(options.budget(info))),
                 output_width(), 2);
}

std::string verdict_text(const Json& finding) {
  const Json& data = finding.at("data");
  const Json& hypothesis = data.at("hypothesis");
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  const std::string state = text(data.at("verdict").at("state")), subject = text(data.at("subject"));
  std::string shown = state;
  std::transform(shown.begin(), shown.end(), shown.begin(), [](unsigned char c) { return std::toupper(c); });
  std::vector<std::string> lines;
  // A claim that is not supported is quoted as a claim: without the word "claimed", the statement after the verdict
  // would read as a fact.
  if (state != name(State::supported)) lines.push_back(fmt::format("claimed: \"{}\"", text(hypothesis.at("text"))));
  lines.push_back(text(finding.at("title")));
  lines.push_back(
      fmt::format("{}: {}{}", text(hypothesis.at("metric")), text(data.at("verdict").at("reason")),
                  is_exact(data.at("estimate")) ? "" : fmt::format("; wrong with probability {:.2g}", wrong_of(data))));
  return fmt::format("{:<12} {}{}: {}\n", shown, text(hypothesis.at("id")),
                     subject.empty() ? "" : fmt::format(" ({})", subject),
                     fmt::join(lines, fmt::format("\n{:<12} ", "")));
}

}  // namespace attn
