#include "findings/kb/tables.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/records/decisions.h"
#include "common/records/questions.h"
#include "findings/kb/verify.h"

namespace attn::kb {
namespace {

using Place = std::pair<std::string, std::string>;  // device, experiment

struct Known {
  std::map<std::string, MeasuredRun> runs;  // by id
  std::vector<Json> claims;
  size_t left_out = 0;  // measurements
};

/// Returns the claims without those that have a later definition.
std::vector<Json> latest_definitions(const std::vector<Json>& pooled) {
  std::map<std::tuple<std::string, std::string, std::string, std::string>, const Json*> latest;
  const auto text = [](const Json& claim, const char* field) { return claim.at(field).get<std::string>(); };
  for (const Json& claim : pooled) {
    const Json*& known =
        latest[{text(claim, "device"), text(claim, "experiment"), text(claim, "hypothesis"), text(claim, "subject")}];
    if (!known || text(*known, "ts") <= text(claim, "ts")) known = &claim;
  }
  std::vector<Json> claims;
  for (const auto& [key, claim] : latest) claims.push_back(*claim);
  return claims;
}

}  // namespace

std::vector<Json> decision_tables(const std::vector<Record>& records, const std::vector<Json>& pooled) {
  std::map<Place, Known> known;
  std::map<std::string, bool> today;  // of_today() by the measurement's id
  std::set<std::string> devices;
  const auto run_at = [&](const Record& record) -> MeasuredRun& {
    MeasuredRun& run = known[{record.device, record.experiment}].runs[record.run_id()];
    run.id = record.run_id();
    run.ts = std::max(run.ts, record.ts);
    return run;
  };
  std::set<std::string> loaded;  // runs on loaded machines
  for (const Record& record : records) {
    if (record.header && record.header->at("session").value("loaded", "") != "") loaded.insert(record.run_id());
  }
  for (const Record& record : records) {
    const bool of_loaded = loaded.contains(record.run_id());
    if (record.kind == "measurement") {
      const Json json = record.json();
      devices.insert(record.device);
      if (of_loaded || json.value("busy", "") != "") {
        ++known[{record.device, record.experiment}].left_out;
        continue;
      }
      today[record.id] = of_today(json);
      run_at(record).results.push_back(measurement_from_json(json));
    } else if (record.kind == "finding" && !of_loaded) {
      const Json compare = record.json().at("data").at("compare");
      if (!compare.is_null()) run_at(record).comparisons.push_back(comparison_from_json(compare));
    }
  }
  for (Json& claim : latest_definitions(pooled)) {
    const Place place = {claim.at("device"), claim.at("experiment")};
    known[place].claims.push_back(std::move(claim));
  }
  std::set<std::string> others;
  std::vector<std::string> asked;
  for (const Question& question : questions()) asked.push_back(question.experiment);
  for (const auto& [place, own] : known) {
    if (std::ranges::find(asked, place.second) == asked.end()) others.insert(place.second);
  }
  std::vector<Json> tables;
  for (const std::string& device : devices) {
    std::vector<std::string> experiments = asked;
    experiments.insert(experiments.end(), others.begin(), others.end());
    for (const std::string& experiment : experiments) {
      const auto own = known.find({device, experiment});
      DecisionInput input = {.experiment = experiment, .device = device};
      if (own != known.end()) {
        for (const auto& [id, run] : own->second.runs) input.runs.push_back(&run);
        std::ranges::stable_sort(input.runs, {}, &MeasuredRun::ts);
        input.claims = own->second.claims;
        input.today = [&](const Measurement& result) { return today.at(result.id); };
      }
      Json table = decisions(input);
      table["left_out"] = own == known.end() ? 0 : own->second.left_out;
      table["older"] = Json::array();
      for (const MeasuredRun* run : input.runs) {
        const bool older =
            std::ranges::any_of(run->results, [&](const Measurement& result) { return !today.at(result.id); });
        if (older) table["older"].push_back(run->id);
      }
      if (!table.at("rows").empty() || !others.contains(experiment)) tables.push_back(std::move(table));
    }
  }
  return tables;
}

}  // namespace attn::kb
