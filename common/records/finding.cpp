#include "common/records/finding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/base/sha256.h"
#include "common/records/fields.h"

namespace attn {
namespace {

/// The value at a dotted path, which names elements of arrays by index. Throws std::out_of_range.
const Json& at_path(const Json& data, std::string_view path) {
  std::string pointer = fmt::format("/{}", path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  try {
    return data.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    throw std::out_of_range(fmt::format("'{}' is not in the data", path));
  }
}

/// Renders one placeholder: "path" or "path:format".
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

Json estimate_json(const Conclusion& conclusion) {
  Json json = conclusion.estimate;
  json["scale"] = conclusion.exact ? "exact" : conclusion.relative ? "log" : "linear";
  to_json(json, conclusion);
  json["power_capped"] = conclusion.power_capped;
  return json;
}

Conclusion conclusion_of(const Json& data) {
  const Json& estimate = data.at("estimate");
  Conclusion conclusion;
  from_json(estimate, conclusion);
  estimate.get_to(conclusion.estimate);
  data.at("parts").get_to(conclusion.parts);
  conclusion.relative = estimate.at("scale") == "log";
  conclusion.exact = is_exact(estimate);
  conclusion.correct = data.at("correct");
  conclusion.fault = data.value("fault", "");
  conclusion.power_capped = estimate.value("power_capped", false) ||
                            at_power_limit(value_at(data, "/compare/clocks"));  // older findings have no such field
  return conclusion;
}

double wrong_of(const Json& data) {
  const Conclusion conclusion = conclusion_of(data);
  if (!conclusion.exact && !(conclusion.estimate.freedom > 0)) return 1;
  const double found = wrong(data.at("hypothesis").get<Hypothesis>(), conclusion);
  return found >= 0 && found <= 1 ? found : 1;
}

Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, const std::string& run) {
  const Verdict verdict = judge(hypothesis, conclusion);
  const bool supported = verdict.state == State::supported;
  const std::string& title =
      supported || conclusion.title_unless_supported.empty() ? conclusion.title : conclusion.title_unless_supported;
  Json data = {{"experiment", experiment},
               {"device", device},
               {"subject", conclusion.subject},
               {"selection", conclusion.selection},
               {"hypothesis", hypothesis},
               {"verdict", {{"state", name(verdict.state)}, {"reason", verdict.reason}}},
               {"estimate", estimate_json(conclusion)},
               {"parts", conclusion.parts},
               {"correct", conclusion.correct},
               {"fault", conclusion.fault},
               {"compare", conclusion.compare ? to_json(*conclusion.compare) : Json(nullptr)},
               {"values", conclusion.values},
               {"measurements", conclusion.measurements},
               {"run", run},
               {"template", {{"title", title}, {"content", conclusion.content}}}};
  require_finite(data, fmt::format("{}/{}: data", experiment, hypothesis.id));

  const std::string scope = conclusion.compare && !conclusion.compare->time.empty()
                                ? std::string(name(conclusion.compare->time[0].scope))
                                : "";
  Json finding = {
      {"domain", "attention_kernels"},
      {"title", render(title, data)},
      {"content", render(conclusion.content, data)},
      {"tags", conclusion.tags},
      {"wrong", wrong(hypothesis, conclusion)},
      {"source", "attention-proto/" + experiment},
      {"schema", "finding/2"},
      {"id", ""},
      {"claim_key", claim_key(experiment, hypothesis, device, conclusion.subject, scope, conclusion.selection)},
      {"data", std::move(data)}};
  finding["id"] = record_id(finding);
  return finding;
}

bool is_exact(const Json& estimate) { return estimate.at("scale") == "exact"; }

std::optional<Comparison> comparison_of(const Json& finding) {
  const Json& data = finding.at("data");
  const Json& compare = data.at("compare");
  if (compare.is_null()) return std::nullopt;
  Comparison comparison = comparison_from_json(compare);
  comparison.hypothesis = data.at("hypothesis").at("id");
  return comparison;
}

std::string claim_key(const std::string& experiment, const Hypothesis& hypothesis, const std::string& device,
                      const std::string& subject, const std::string& scope, const std::string& selection) {
  const std::string definition =
      sha256(hypothesis.metric + "\n" + scope + (selection.empty() ? "" : "\n" + selection)).substr(0, 8);
  return fmt::format("{}/{}/{}/{}{}{}", experiment, hypothesis.id, definition, device, subject.empty() ? "" : "/",
                     subject);
}

void join_runs(std::vector<Json>& records) {
  // Another program may have written the records, so any field may be missing.
  std::map<std::string, const Json*> headers;
  for (const Json& record : records) {
    const std::string id = text_at(record, "/run/id");
    if (text_at(record, "/schema") == "run/1" && !id.empty() && record.contains("env")) headers[id] = &record;
  }
  for (Json& record : records) {
    const auto header = headers.find(text_at(record, "/data/run"));
    if (header == headers.end() || text_at(record, "/schema") != "finding/2") continue;
    record["data"]["run"] = header->second->at("run");
    record["data"]["env"] = header->second->at("env");
  }
}

std::string measured_by(const Json& data) {
  const Json& run = data.at("run");
  const bool has_cases = data.contains("cases") && !data.at("cases").empty();
  std::set<std::string> parts;
  for (const Json& part : data.at(has_cases ? "cases" : "measurements")) parts.insert(part.dump());
  return sha256(fmt::format("{}\n{}\n{}", data.at("experiment").get<std::string>(),
                            (run.is_object() ? run.at("id") : run).get<std::string>(), fmt::join(parts, "\n")))
      .substr(0, 16);
}

double expected_wrong(const Doubts& doubts) {
  double wrong = 0;
  for (const auto& [measured, all] : doubts) {
    wrong += std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  }
  return wrong;
}

void emit_finding(RecordFile& file, const Json& finding) { file.append(finding); }

}  // namespace attn
