#include "common/records/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace attn {
namespace {

Json to_json(const Comparison& comparison) {
  return {{"baseline", comparison.baseline.json()}, {"contender", comparison.contender.json()},
          {"ratio", comparison.ratio.value},        {"ci_lo", comparison.ratio.ci_lo},
          {"ci_hi", comparison.ratio.ci_hi},        {"aa_ratio", comparison.aa.value},
          {"aa_ci_lo", comparison.aa.ci_lo},        {"aa_ci_hi", comparison.aa.ci_hi},
          {"aa_floor", comparison.aa_floor()},      {"cv", comparison.cv},
          {"time", to_json(comparison.time)}};
}

/// The value at a dotted path; elements of arrays by index.
const Json& at_path(const Json& data, std::string_view path) {
  std::string pointer = fmt::format("/{}", path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  try {
    return data.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    throw std::out_of_range(fmt::format("'{}' is not in the data", path));
  }
}

/// One placeholder: "path" or "path:format".
std::string render_placeholder(std::string_view placeholder, const Json& data) {
  const size_t colon = placeholder.find(':');
  const Json& value = at_path(data, placeholder.substr(0, colon));
  const std::string spec(colon == placeholder.npos ? "" : placeholder.substr(colon + 1));
  const bool as_double = !spec.empty() && std::strchr("eEfFgG", spec.back());
  const auto format = [&](const auto& v) { return fmt::format(fmt::runtime("{:" + spec + "}"), v); };
  try {
    if (value.is_string()) return format(value.get_ref<const std::string&>());
    if (value.is_boolean()) return format(value.get<bool>());
    if (value.is_number_float() || (value.is_number() && as_double)) return format(value.get<double>());
    if (value.is_number_unsigned()) return format(value.get<uint64_t>());
    if (value.is_number_integer()) return format(value.get<int64_t>());
  } catch (const fmt::format_error& error) {
    throw std::invalid_argument(fmt::format("'{{{}}}': {}", placeholder, error.what()));
  }
  throw std::out_of_range(fmt::format("'{}' is no text, number or truth value in the data", placeholder));
}

}  // namespace

std::string render(const std::string& text, const Json& data) {
  std::string rendered;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') {
      rendered += c;
    } else if (i + 1 < text.size() && text[i + 1] == c) {
      rendered += c;
      ++i;
    } else {
      const size_t end = c == '{' ? text.find('}', i) : text.npos;
      if (end == text.npos)
        throw std::invalid_argument(fmt::format("unmatched '{}' in \"{}\"; write it twice", c, text));
      rendered += render_placeholder(std::string_view(text).substr(i + 1, end - i - 1), data);
      i = end;
    }
  }
  return rendered;
}

Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, bool replicated, const Json& run, const Json& env) {
  const Verdict verdict = judge(hypothesis, conclusion);
  const bool supported = verdict.state == State::supported;
  const std::string& title =
      supported || conclusion.title_unless_supported.empty() ? conclusion.title : conclusion.title_unless_supported;
  Json data = {{"experiment", experiment},
               {"device", device},
               {"subject", conclusion.subject},
               {"hypothesis",
                {{"id", hypothesis.id},
                 {"text", hypothesis.text},
                 {"metric", hypothesis.metric},
                 {"op", hypothesis.op},
                 {"threshold", hypothesis.threshold},
                 {"origin", hypothesis.origin}}},
               {"verdict", {{"state", name(verdict.state)}, {"reason", verdict.reason}}},
               {"advice", supported                         ? conclusion.advice.holds
                          : verdict.state == State::refuted ? conclusion.advice.refuted
                                                            : ""},
               {"estimate",
                {{"value", conclusion.estimate.value},
                 {"ci_lo", conclusion.estimate.ci_lo},
                 {"ci_hi", conclusion.estimate.ci_hi},
                 {"aa_floor", conclusion.aa_floor},
                 {"cv", conclusion.cv}}},
               {"correct", conclusion.correct},
               {"replicated", replicated},
               {"compare", conclusion.compare ? to_json(*conclusion.compare) : Json(nullptr)},
               {"values", conclusion.values},
               {"measurements", conclusion.measurements},
               {"run", run},
               {"env", env},
               {"template", {{"title", title}, {"content", conclusion.content}}}};
  require_finite(data, fmt::format("{}/{}: data", experiment, hypothesis.id));

  Json finding = {{"domain", "attention_kernels"},
                  {"title", render(title, data)},
                  {"content", render(conclusion.content, data)},
                  {"tags", conclusion.tags},
                  {"confidence", confidence(verdict, conclusion, replicated)},
                  {"source", "attention-proto/" + experiment},
                  {"schema", "finding/1"},
                  {"id", ""},
                  {"claim_key", claim_key(experiment, hypothesis.id, device, conclusion.subject)},
                  {"data", std::move(data)}};
  finding["id"] = record_id(finding);
  return finding;
}

std::optional<Comparison> comparison_of(const Json& finding) {
  const Json& data = finding.at("data");
  const Json& compare = data.at("compare");
  if (compare.is_null()) return std::nullopt;
  const auto estimate = [&](const char* value, const char* low, const char* high) {
    return Estimate{compare.at(value), compare.at(low), compare.at(high)};
  };
  Comparison comparison{.hypothesis = data.at("hypothesis").at("id"),
                        .baseline = Case::from_json(compare.at("baseline")),
                        .contender = Case::from_json(compare.at("contender")),
                        .ratio = estimate("ratio", "ci_lo", "ci_hi"),
                        .aa = estimate("aa_ratio", "aa_ci_lo", "aa_ci_hi"),
                        .cv = compare.at("cv"),
                        .time = {}};
  for (const Json& time : compare.at("time")) comparison.time.push_back(timing_from_json(time));
  return comparison;
}

std::string claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                      const std::string& subject) {
  return fmt::format("{}/{}/{}{}{}", experiment, hypothesis, device, subject.empty() ? "" : "/", subject);
}

void emit_finding(RecordFile& file, const Json& finding) { file.append(finding); }

}  // namespace attn
