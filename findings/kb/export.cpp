#include "findings/kb/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "common/base/shell.h"
#include "common/base/text_table.h"
#include "common/records/spread.h"

namespace attn::kb {
namespace {

struct Level {
  std::string_view word;
  double wrong;  // the largest probability of a wrong verdict with this word
};
constexpr Level levels[] = {{"verified", 0.01}, {"high", 0.05}, {"medium", 0.2}, {"low", 0.5}, {"unverified", 1}};

std::vector<std::string> tags_of(const Json& json) {
  return json.value("tags", Json::array()).get<std::vector<std::string>>();
}

std::string interval(const Json& data) {
  const Json& estimate = data.at("estimate");
  return fmt::format("{:.4g} [{:.4g}, {:.4g}]", estimate.at("value").get<double>(), estimate.at("ci_lo").get<double>(),
                     estimate.at("ci_hi").get<double>());
}

std::string short_commit(const Json& data) {
  const std::string commit = text_at(data, "/env/git/commit").substr(0, 12);
  if (commit.empty()) return "unknown";
  return commit + (value_at(data, "/env/git/dirty") == true ? " (changed)" : "");
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

/// Returns one line that cites a finding, with the command that measures the result again. `json` is
/// Record::joined().
std::string citation(const Record& record, const Json& json) {
  const Json& data = json.at("data");
  const std::string replay = text_at(data, "/run/replay");
  return printable(fmt::format(
      "{}. {}: {}, {} {} {:g}: {}; wrong with probability {}. {}, {}, {}, commit {}. attention-proto finding {}; "
      "replay: {}",
      record.title, text_at(data, "/hypothesis/metric"), interval(data), record.state, text_at(data, "/hypothesis/op"),
      data.at("hypothesis").at("threshold").get<double>(), text_at(data, "/verdict/reason"), wrong_text(record),
      record.experiment, with_one_unit(record.device), record.ts, short_commit(data), record.id,
      replay.empty() ? fmt::format("{} --replay {}", record.experiment, record.id) : replay));
}

}  // namespace

std::string to_markdown(const std::vector<Record>& records) {
  // Sections in order of first appearance.
  std::vector<std::pair<std::string, std::string>> sections;
  std::map<std::string, size_t> places;
  for (const Record& record : records) {
    if (record.kind != "finding") continue;
    const Json json = record.json();
    const auto [place, added] = places.try_emplace(record.experiment + "\n" + record.topic, sections.size());
    if (added) {
      const Json& hypothesis = json.at("data").at("hypothesis");
      sections.emplace_back(
          fmt::format("## {}: {}\n\n{} Holds if: {} {} {:g}.\n\n", escaped(record.experiment), escaped(record.topic),
                      escaped(hypothesis.at("text")), escaped(hypothesis.at("metric")), escaped(hypothesis.at("op")),
                      hypothesis.at("threshold").get<double>()),
          "");
    }
    sections[place->second].second +=
        fmt::format("- **{}** ({}, {}, wrong with probability {}) {} {}, {}, `{}`\n", escaped(record.title),
                    record.state, interval(json.at("data")), wrong_text(record), escaped(text_at(json, "/content")),
                    escaped(with_one_unit(record.device)), record.ts, record.id);
  }
  std::string text = "# Findings\n";
  for (const auto& [head, items] : sections) text += "\n" + head + items;
  return text;
}

std::string to_csv(const std::vector<Record>& records) {
  std::string text =
      "id,kind,domain,experiment,topic,device,subject,title,content,state,wrong,value,ci_lo,ci_hi,aa_floor,cv,ts,"
      "tags,source\r\n";
  for (const Record& record : records) {
    const Json json = record.json();
    const Json estimate = json.value("/data/estimate"_json_pointer, Json::object());
    const auto figure = [&](const char* key) { return estimate.contains(key) ? estimate[key].dump() : std::string(); };
    const std::string subject =
        record.kind == "measurement" ? Case::from_json(json.at("case")).key() : text_at(json, "/data/subject");
    const std::string wrong = record.kind == "finding" ? fmt::format("{:.2g}", record.wrong) : "";
    std::vector<std::string> fields;
    for (const std::string& field :
         {record.id, record.kind, text_at(json, "/domain"), record.experiment, record.topic, record.device, subject,
          record.title, text_at(json, "/content"), record.state, wrong, figure("value"), figure("ci_lo"),
          figure("ci_hi"), figure("floor"), figure("cv"), record.ts, fmt::format("{}", fmt::join(tags_of(json), " ")),
          text_at(json, "/source")}) {
      fields.push_back(csv_field(field));
    }
    text += fmt::format("{}\r\n", fmt::join(fields, ","));
  }
  return text;
}

std::string to_gpu_forge(const std::vector<Record>& records, const std::string& skill) {
  std::string text;
  for (const Record& record : records) {
    if (record.kind != "finding") continue;
    const Json json = record.joined();
    const auto level = std::ranges::find_if(levels, [&](const Level& one) { return record.wrong <= one.wrong; });
    // The URL names the finding's experiment and its id, so that a reader can replay the finding.
    std::vector<std::string> words = {
        "kb",
        "add",
        skill,
        fmt::format("{}/{}", record.experiment, record.topic),
        fmt::format("{} ({}; {})", record.title, record.state, with_one_unit(record.device)),
        fmt::format("{} {}", text_at(json, "/content"), citation(record, json)),
        fmt::format("{}#{}", text_at(json, "/source"), record.id),
        fmt::format("attention-proto {}", record.experiment),
        "benchmark",
        std::string(level->word),
        fmt::format("{}", fmt::join(tags_of(json), ","))};
    for (std::string& argument : words) argument = printable(std::move(argument));
    text += shell_command(words) + "\n";
  }
  return text;
}

std::string wrong_text(const Record& record) {
  if (record.kind != "finding") return "";
  return record.exact() ? "exact" : fmt::format("{:.2g}", record.wrong);
}

}  // namespace attn::kb
