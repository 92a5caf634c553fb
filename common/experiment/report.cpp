#include "common/experiment/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "common/base/text_table.h"
#include "common/experiment/options.h"

namespace attn {
namespace {

std::string percent(double part, double whole) { return whole > 0 ? fmt::format("{:.1f}", 100 * part / whole) : ""; }

std::string microseconds(double seconds) { return fmt::format("{:.{}f}", 1e6 * seconds, seconds < 10e-6 ? 3 : 1); }
std::string microseconds(const Timing* timing) { return timing ? microseconds(timing->median_s) : ""; }

double half_interval(const Timing& timing) { return (timing.ci_hi_s - timing.ci_lo_s) / 2; }

}  // namespace

std::string format_interval(const Timing& timing) {
  return fmt::format("{} us [{}, {}]", microseconds(timing.median_s), microseconds(timing.ci_lo_s),
                     microseconds(timing.ci_hi_s));
}

std::string summary(const Measurement& measurement) {
  std::string line = measurement.status;
  if (!measurement.reason.empty()) line += ": " + measurement.reason;
  if (const Timing* main = measurement.main_timing()) {
    line += fmt::format(", {} us +- {} %", microseconds(main), percent(half_interval(*main), main->median_s));
    if (main->scope == Scope::device_hot) line += fmt::format(", {:.4g} TFLOP/s", measurement.tflops());
  }
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
    const Json line = {{"experiment", experiment},
                       {"hypothesis", hypothesis.id},
                       {"text", hypothesis.text},
                       {"metric", hypothesis.metric},
                       {"op", hypothesis.op},
                       {"threshold", hypothesis.threshold},
                       {"origin", hypothesis.origin},
                       {"exact", claim.exact},
                       {"advice", {{"supported", claim.advice.holds}, {"refuted", claim.advice.refuted}}}};
    text += line.dump() + "\n";
  }
  return text;
}

namespace {

std::string kilobytes(size_t bytes) { return fmt::format("{:.4g} KB", static_cast<double>(bytes) / 1024); }

size_t most_threadgroup_bytes(const Plan& plan) {
  size_t most = 0;
  for (const Launch& launch : plan.launches) most = std::max(most, launch.threadgroup_bytes);
  return most;
}

/// The values that nearly all cases have. A list of cases says these values once.
class Usual {
 public:
  explicit Usual(const std::vector<Case>& cases) {
    constexpr double nearly_all = 0.75;
    std::map<std::string, std::map<std::string, size_t>> counts;  // by axis and value
    for (const Case& config : cases) {
      for (const auto& [axis, value] : config.axes()) {
        if (counts.try_emplace(axis).second) axes_.push_back(axis);
        ++counts[axis][to_string(value)];
      }
    }
    for (const auto& [axis, values] : counts) {
      const auto most = std::ranges::max_element(values, {}, [](const auto& entry) { return entry.second; });
      if (most->second == cases.size()) always_.insert(axis);
      if (cases.size() > 1 && most->second >= nearly_all * cases.size()) usual_[axis] = most->first;
    }
  }

  /// The axes in which a case differs from the usual values, and all axes without a usual value.
  std::string unlike(const Case& config) const {
    std::vector<std::string> named;
    for (const auto& [axis, value] : config.axes()) {
      const auto usual = usual_.find(axis);
      if (usual == usual_.end() || usual->second != to_string(value)) named.push_back(axis);
    }
    return named.empty() ? "(the usual values)" : config.key(named);
  }

  /// The usual values, in at most two paragraphs.
  std::string head(size_t width) const {
    std::string in_all, in_most;
    for (const std::string& axis : axes_) {
      const auto usual = usual_.find(axis);
      if (usual != usual_.end())
        (always_.contains(axis) ? in_all : in_most) += fmt::format(" {}={}", axis, usual->second);
    }
    return (in_all.empty() ? "" : wrapped("all cases:" + in_all, width, 2)) +
           (in_most.empty() ? "" : wrapped("usually, where a line does not say otherwise:" + in_most, width, 2));
  }

 private:
  std::vector<std::string> axes_;
  std::set<std::string> always_;
  std::map<std::string, std::string> usual_;
};

}  // namespace

std::string dry_run(const ExperimentSpec& spec, const Options& options, const std::vector<std::vector<Case>>& groups,
                    const DeviceInfo& info, const std::function<const Plan&(const Case&)>& plan) {
  std::string text;
  size_t runnable = 0;
  std::vector<Case> cases;
  for (const auto& group : groups) cases.insert(cases.end(), group.begin(), group.end());
  const Usual usual(cases);
  const size_t width = output_width();
  for (const Case& config : cases) {
    const Plan& planned = plan(config);
    const auto reason = skip_reason(planned, info);
    const size_t study = spec.study_bytes ? spec.study_bytes(config, info) : 0;
    const size_t ours = most_threadgroup_bytes(planned);
    runnable += !reason;
    if (options.json) {
      Json line = {{"case", config.json()}, {"runs", !reason}, {"reason", reason.value_or("")}};
      if (study > 0) line["threadgroup_bytes"] = {{"study", study}, {"ours", ours > 0 ? Json(ours) : Json()}};
      text += line.dump() + "\n";
    } else {
      std::string line = usual.unlike(config);
      if (study > 0) line += "  threadgroup memory: the study's kernel " + kilobytes(study);
      if (study > 0 && ours > 0) line += ", ours " + kilobytes(ours);
      text += wrapped(line + (reason ? "  skipped: " + *reason : ""), width, 4);
    }
  }
  if (options.json) return text;
  return usual.head(width) + text +
         wrapped(fmt::format("{} of {} in {} would run, in at most about {} of measuring", runnable,
                             counted(cases.size(), "case"), counted(groups.size(), "group"),
                             format_duration(options.budget(info))),
                 width, 2);
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
  lines.push_back(fmt::format(
      "{}: {}{}", text(hypothesis.at("metric")), text(data.at("verdict").at("reason")),
      is_exact(data.at("estimate")) ? "" : fmt::format("; confidence {:.2g}", finding.at("confidence").get<double>())));
  if (const std::string advice = text(data.at("advice")); !advice.empty()) lines.push_back("advice: " + advice);
  return fmt::format("{:<12} {}{}: {}\n", shown, text(hypothesis.at("id")),
                     subject.empty() ? "" : fmt::format(" ({})", subject),
                     fmt::join(lines, fmt::format("\n{:<12} ", "")));
}

}  // namespace attn
