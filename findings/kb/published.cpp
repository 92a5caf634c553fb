#include "findings/kb/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/base/error.h"

namespace attn::kb {
namespace {

bool fulfils(const Json& config, const Json& where) {
  for (const auto& [axis, wanted] : where.items()) {
    if (wanted.is_null() || !config.contains(axis)) continue;
    const Json& value = config.at(axis);
    if (wanted.is_array() && value == 0) continue;
    if (wanted.is_array() ? value < wanted.at(0) || value > wanted.at(1) : value != wanted) return false;
  }
  return true;
}

}  // namespace

std::vector<Json> published_statements(const std::string& source_tree) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(source_tree + "/findings/published", none)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<Json> statements;
  for (const std::filesystem::path& file : files) {
    try {
      std::ifstream stream(file);
      Json study = Json::parse(stream);
      for (Json& statement : study.at("claims")) {
        statement["id"] = fmt::format("{}/{}", file.stem().string(), statement.at("id").get<std::string>());
        Json where = study.value("where", Json::object());
        where.update(statement.value("where", Json::object()));
        statement["where"] = std::move(where);
        statements.push_back(std::move(statement));
      }
    } catch (const Json::exception& error) {
      throw BadInput(fmt::format("{}: {}", file.string(), error.what()));
    }
  }
  return statements;
}

std::string published_answer(const Json& statement, const Conclusion& conclusion) {
  const auto at_end = [&](size_t end, const char* op) {
    const Json& value = statement.at("range").at(end);
    if (value.is_null()) return State::supported;
    return judge({.id = {}, .text = {}, .metric = {}, .op = op, .threshold = value.get<double>(), .origin = {}},
                 conclusion)
        .state;
  };
  const State from_low = at_end(0, ">="), to_high = at_end(1, "<=");
  const bool low_is_better = statement.at("better") == "lower";
  if (from_low == State::refuted) return low_is_better ? "better" : "worse";
  if (to_high == State::refuted) return low_is_better ? "worse" : "better";
  return from_low == State::supported && to_high == State::supported ? "within" : "undecided";
}

Json published_answers(const std::vector<Json>& statements, const std::string& experiment,
                       const std::string& hypothesis, const Json& cases, const Conclusion& conclusion) {
  Json answers = Json::object();
  for (const Json& statement : statements) {
    if (statement.value("hypothesis", "") != hypothesis || statement.at("experiment") != experiment) continue;
    const Json& where = statement.at("where");
    if (!std::ranges::all_of(cases, [&](const Json& config) { return fulfils(config, where); })) continue;
    answers[statement.at("id").get<std::string>()] = published_answer(statement, conclusion);
  }
  return answers;
}

}  // namespace attn::kb
