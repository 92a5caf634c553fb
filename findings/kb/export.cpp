#include "findings/kb/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "common/base/error.h"
#include "common/base/number.h"
#include "common/base/shell.h"
#include "common/base/text_table.h"
#include "common/records/spread.h"

namespace attn::kb {
namespace {

struct Level {
  std::string_view word;
  double confidence;  // the least confidence with this word
};
constexpr Level levels[] = {{"verified", 0.95}, {"high", 0.8}, {"medium", 0.6}, {"low", 0.5}, {"unverified", 0}};

/// The types of sources that the study's knowledge base (to_gpu_forge()) accepts. It accepts `capped_types` with at
/// most the confidence "high".
constexpr std::string_view source_types[] = {"academic_paper", "apple_docs",          "wwdc_session", "github_repo",
                                             "benchmark",      "reverse_engineering", "patent",       "empirical_test",
                                             "book",           "blog_post",           "forum_post",   "other"};
constexpr std::string_view capped_types[] = {"blog_post", "forum_post", "other"};

template <typename List>
bool contains(const List& list, std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

std::string text_of(const Json& json, const char* pointer) {
  const Json value = json.value(Json::json_pointer(pointer), Json());
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::vector<std::string> tags_of(const Json& json) {
  return json.value("tags", Json::array()).get<std::vector<std::string>>();
}

bool has_confidence(const Record& record) { return record.kind == "finding" || record.kind == "note"; }

std::string interval(const Json& data) {
  const Json& estimate = data.at("estimate");
  return fmt::format("{:.4g} [{:.4g}, {:.4g}]", estimate.at("value").get<double>(), estimate.at("ci_lo").get<double>(),
                     estimate.at("ci_hi").get<double>());
}

std::string short_commit(const Json& data) {
  const std::string commit = text_of(data, "/env/git/commit").substr(0, 12);
  if (commit.empty()) return "unknown";
  return commit + (data.value("/env/git/dirty"_json_pointer, false) ? " (changed)" : "");
}

/// Escapes the characters that Markdown takes for markup.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : printable(text)) {
    if (std::string_view("\\`*_[]<>|#").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace

std::string citation(const Record& record) {
  const Json json = record.joined();
  if (record.kind == "finding") {
    const Json& data = json.at("data");
    const std::string replay = text_of(data, "/run/replay");
    return printable(fmt::format(
        "{}. {}: {}, {} {} {:g}: {}; confidence {}. {}, {}, {}, commit {}. attention-proto finding {}; replay: {}",
        record.title, data.at("hypothesis").at("metric").get<std::string>(), interval(data), record.state,
        data.at("hypothesis").at("op").get<std::string>(), data.at("hypothesis").at("threshold").get<double>(),
        text_of(data, "/verdict/reason"), confidence_text(record), record.experiment, with_one_unit(record.device),
        record.ts, short_commit(data), record.id,
        replay.empty() ? fmt::format("{} --replay {}", record.experiment, record.id) : replay));
  }
  if (record.kind == "note") {
    return printable(fmt::format("{}. {}{}; confidence {:g}. attention-proto note {}", record.title,
                                 text_of(json, "/source"),
                                 text_of(json, "/url").empty() ? "" : fmt::format(" <{}>", text_of(json, "/url")),
                                 record.confidence, record.id));
  }
  if (record.kind == "run") {
    return printable(fmt::format("{}, {}, {}, commit {}. attention-proto run {}; replay: {}", record.experiment,
                                 with_one_unit(record.device), record.ts, short_commit(json), record.run_id(),
                                 text_of(json, "/run/replay")));
  }
  return printable(fmt::format("{}: {}, {}, {}. attention-proto measurement {}; replay: {} --replay {}",
                               record.experiment, Case::from_json(json.at("case")).key(), with_one_unit(record.device),
                               record.ts, record.id, record.experiment, record.id));
}

std::string to_markdown(const std::vector<Record>& records) {
  // Sections in order of first appearance.
  std::vector<std::pair<std::string, std::string>> sections;
  std::map<std::string, size_t> places;
  for (const Record& record : records) {
    if (record.kind == "measurement" || record.kind == "run") continue;
    const Json json = record.json();
    const std::string where = record.experiment.empty() ? record.domain : record.experiment;
    const auto [place, added] = places.try_emplace(where + "\n" + record.topic, sections.size());
    if (added) {
      std::string head = fmt::format("## {}: {}\n\n", escaped(where), escaped(record.topic));
      if (record.kind == "finding") {
        const Json& hypothesis = json.at("data").at("hypothesis");
        head += fmt::format("{} Holds if: {} {} {:g}.\n\n", escaped(hypothesis.at("text")),
                            escaped(hypothesis.at("metric")), escaped(hypothesis.at("op")),
                            hypothesis.at("threshold").get<double>());
      }
      sections.emplace_back(std::move(head), "");
    }
    std::string& text = sections[place->second].second;
    if (record.kind == "finding") {
      text += fmt::format("- **{}** ({}, {}, confidence {}) {} {}, {}, `{}`\n", escaped(record.title), record.state,
                          interval(json.at("data")), confidence_text(record), escaped(text_of(json, "/content")),
                          escaped(with_one_unit(record.device)), record.ts, record.id);
    } else {
      text += fmt::format("- **{}** (confidence {:g}) {} {}, `{}`\n", escaped(record.title), record.confidence,
                          escaped(text_of(json, "/content")), escaped(text_of(json, "/source")), record.id);
    }
  }
  std::string text = "# Findings\n";
  for (const auto& [head, items] : sections) text += "\n" + head + items;
  return text;
}

std::string to_csv(const std::vector<Record>& records) {
  std::string text =
      "id,kind,domain,experiment,topic,device,subject,title,content,state,confidence,value,ci_lo,ci_hi,aa_floor,cv,ts,"
      "tags,source\r\n";
  for (const Record& record : records) {
    const Json json = record.json();
    const Json estimate = json.value("/data/estimate"_json_pointer, Json::object());
    const auto figure = [&](const char* key) { return estimate.contains(key) ? estimate[key].dump() : std::string(); };
    const std::string subject =
        record.kind == "measurement" ? Case::from_json(json.at("case")).key() : text_of(json, "/data/subject");
    const std::string confidence = has_confidence(record) ? fmt::format("{:.2g}", record.confidence) : "";
    std::vector<std::string> fields;
    for (const std::string& field :
         {record.id, record.kind, record.domain, record.experiment, record.topic, record.device, subject, record.title,
          text_of(json, "/content"), record.state, confidence, figure("value"), figure("ci_lo"), figure("ci_hi"),
          figure("floor"), figure("cv"), record.ts, fmt::format("{}", fmt::join(tags_of(json), " ")),
          text_of(json, "/source")}) {
      fields.push_back(csv_field(field));
    }
    text += fmt::format("{}\r\n", fmt::join(fields, ","));
  }
  return text;
}

std::string to_gpu_forge(const std::vector<Record>& records, const std::string& skill) {
  std::string text;
  for (const Record& record : records) {
    if (record.kind == "measurement" || record.kind == "run") continue;
    const Json json = record.json();
    const bool finding = record.kind == "finding";
    std::string type = finding ? "benchmark" : text_of(json, "/type");
    if (!contains(source_types, type)) type = "other";
    std::string_view word = std::find_if(std::begin(levels), std::end(levels), [&](const Level& level) {
                              return record.confidence >= level.confidence;
                            })->word;
    if (word == "verified" && contains(capped_types, type)) word = "high";
    // A finding's URL names its experiment and its id, so that a reader can replay the finding.
    const std::string url = finding ? fmt::format("{}#{}", text_of(json, "/source"), record.id) : text_of(json, "/url");
    const std::string title = finding ? fmt::format("attention-proto {}", record.experiment) : text_of(json, "/source");
    const std::string claim =
        finding ? fmt::format("{} ({}; {})", record.title, record.state, with_one_unit(record.device)) : record.title;
    const std::string evidence =
        finding ? fmt::format("{} {}", text_of(json, "/content"), citation(record)) : text_of(json, "/content");
    const std::string topic = finding ? fmt::format("{}/{}", record.experiment, record.topic) : record.topic;
    std::vector<std::string> words = {"kb",
                                      "add",
                                      skill,
                                      topic,
                                      claim,
                                      evidence,
                                      url,
                                      title,
                                      type,
                                      std::string(word),
                                      fmt::format("{}", fmt::join(tags_of(json), ","))};
    for (std::string& argument : words) argument = printable(std::move(argument));
    text += shell_command(words) + "\n";
  }
  return text;
}

std::string confidence_text(const Record& record) {
  if (!has_confidence(record)) return "";
  return record.exact() ? "exact" : fmt::format("{:.2g}", record.confidence);
}

double parse_confidence(const std::string& text) {
  for (const Level& level : levels) {
    if (text == level.word) return level.confidence;
  }
  const std::optional<double> value = to_number<double>(text);
  if (value && *value >= 0 && *value <= 1) return *value;
  throw BadInput(
      fmt::format("confidence '{}': not allowed; a number from 0 to 1, or one of verified, high, medium, "
                  "low, unverified",
                  text));
}

}  // namespace attn::kb
