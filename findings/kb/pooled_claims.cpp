#include "findings/kb/pooled_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/records/decisions.h"
#include "common/records/fields.h"
#include "common/records/finding.h"
#include "findings/kb/published.h"
#include "findings/kb/verify.h"

namespace attn::kb {
namespace {

/// A finding and its run.
struct Told {
  const Record* record;
  Json data;  // `data` of Record::joined(), with `run` and `env`
  Run run;
};

/// `runs` is sorted by time.
Conclusion pooled_conclusion(const std::vector<const Told*>& runs) {
  const Told& latest = *runs.back();
  Conclusion conclusion;
  conclusion.prior = spread_of(latest.record->device, latest.record->experiment, latest.record->topic, latest.run.kind);
  conclusion.exact = true;
  conclusion.unit = 0;
  std::vector<Session> sessions;
  std::vector<double> floors;
  std::set<std::string> machines;
  for (const Told* told : runs) {
    sessions.push_back(told->run.session);
    conclusion.parts.insert(conclusion.parts.end(), told->run.session.begin(), told->run.session.end());
    const Json& estimate = told->data.at("estimate");
    floors.push_back(estimate.at("floor"));
    conclusion.exact &= told->run.exact;  // with an equal value: see Run::conditions
    conclusion.relative &= told->run.relative;
    conclusion.unit = std::max(conclusion.unit, told->run.unit);
    conclusion.correct &= told->data.at("correct").get<bool>();
    if (!told->data.at("correct")) conclusion.fault = told->data.value("fault", "");
    conclusion.power_capped |= told->run.power_capped;
    conclusion.unlike_throttling |= estimate.at("unlike_throttling").get<bool>();
    conclusion.warm |= estimate.at("warm").get<bool>();
    conclusion.cv = std::max(conclusion.cv, estimate.at("cv").get<double>());
    const Json machine =
        told->record->header ? told->record->header->value("/session/machine"_json_pointer, Json()) : Json();
    if (machine.is_string()) machines.insert(machine);
  }
  conclusion.floor = median(std::move(floors));
  if (conclusion.exact) {
    Pooled& exact = conclusion.estimate;
    exact.value = exact.ci_lo = exact.ci_hi = exact.next_lo = exact.next_hi = latest.data.at("estimate").at("value");
    exact.sessions = static_cast<int>(sessions.size());
    exact.processes = static_cast<int>(conclusion.parts.size());
  } else {
    conclusion.estimate = pool(sessions, conclusion.prior, conclusion.relative, conclusion.unit);
  }
  // A run that does not name its machine is not counted: it may have run on one of the named machines.
  conclusion.estimate.machines = std::max(1, static_cast<int>(machines.size()));
  return conclusion;
}

/// The fields of an estimate that readers of pooled claims need.
Json short_estimate(const Json& estimate) {
  Json result;
  for (const char* field : {"value", "ci_lo", "ci_hi", "next_lo", "next_hi", "tau"}) {
    result[field] = rounded(estimate.at(field), 6);
  }
  for (const char* field : {"processes", "sessions", "machines", "scale"}) result[field] = estimate.at(field);
  return result;
}

/// Returns the latest finding with this verdict, or null.
const Told* latest_with(const std::vector<const Told*>& runs, std::string_view state) {
  const auto found =
      std::find_if(runs.rbegin(), runs.rend(), [&](const Told* told) { return told->run.state == state; });
  return found == runs.rend() ? nullptr : *found;
}

/// Puts the pooled figures into a finding's title. A title is written for one verdict, so `told` must have the pooled
/// verdict. If no finding has that verdict, `told` is null, and the title is the text of the hypothesis.
std::string title_of(const Told* told, const Json& estimate, const Json& hypothesis) {
  if (!told) return hypothesis.at("text");
  Json data = told->data;
  if (!data.at("compare").is_null() && data.at("compare").at("ratio") == data.at("estimate").at("value")) {
    data["compare"]["ratio"] = estimate.at("value");
    data["compare"]["ci_lo"] = estimate.at("ci_lo");
    data["compare"]["ci_hi"] = estimate.at("ci_hi");
  }
  data["estimate"].update(estimate);
  return render(data.at("template").at("title"), data);
}

/// Whether the finding is of today's kernels. `today`: of_today() by the measurement's id. A finding whose
/// measurements are all lost is not of today's kernels.
bool is_of_today(const Json& data, const std::map<std::string, bool>& today) {
  size_t known = 0;
  for (const Json& id : data.at("measurements")) {
    const auto own = today.find(id.get<std::string>());
    if (own == today.end()) continue;
    ++known;
    if (!own->second) return false;
  }
  return known > 0 || data.at("measurements").empty();
}

/// `all` is sorted by time. Without a run of the wanted kind, loaded or quiet, there is no claim: null.
Json pooled_claim(const std::string& key, const std::vector<Told>& all, bool loaded,
                  const std::vector<Json>& statements, const std::map<std::string, bool>& today) {
  const auto wanted =
      std::find_if(all.rbegin(), all.rend(), [&](const Told& told) { return told.run.loaded == loaded; });
  if (wanted == all.rend()) return nullptr;
  const Told& latest = *wanted;
  std::vector<const Told*> runs;
  std::map<std::string, size_t> place;  // the index of each run in `runs`; the last finding of a run counts
  for (const Told& told : all) {
    if (told.run.code != latest.run.code || told.run.conditions != latest.run.conditions) continue;
    const auto [known, added] = place.try_emplace(told.run.run_id, runs.size());
    if (added) {
      runs.push_back(&told);
    } else {
      runs[known->second] = &told;
    }
  }
  const Hypothesis hypothesis = latest.data.at("hypothesis").get<Hypothesis>();
  const Conclusion conclusion = pooled_conclusion(runs);
  const Verdict verdict = judge(hypothesis, conclusion);
  const std::string state(name(verdict.state));
  const Json estimate = estimate_json(conclusion);
  const Told* told = latest_with(runs, state);
  Json ids = Json::array(), others = Json::array();
  for (const Told* run : runs) ids.push_back(run->record->id);
  for (const Told& each : all) {
    if (std::ranges::find(ids, Json(each.record->id)) == ids.end()) others.push_back(each.record->id);
  }
  return {{"schema", "pooled/1"},
          {"claim_key", key},
          {"experiment", latest.record->experiment},
          {"device", latest.record->device},
          {"subject", latest.data.at("subject")},
          {"hypothesis", hypothesis.id},
          {"metric", hypothesis.metric},
          {"op", hypothesis.op},
          {"threshold", hypothesis.threshold},
          {"title", title_of(told, estimate, latest.data.at("hypothesis"))},
          {"verdict", {{"state", state}, {"reason", verdict.reason}}},
          {"estimate", short_estimate(estimate)},
          {"latest", latest.record->id},
          {"ts", latest.record->ts},
          {"findings", ids},
          {"others", others},
          {"today", is_of_today(latest.data, today)},
          {"pair", pair_of(Json{{"data", latest.data}})},
          {"power_capped", conclusion.power_capped},
          {"wrong", rounded(wrong(hypothesis, conclusion), 6)},
          {"published", published_answers(statements, latest.record->experiment, hypothesis.id,
                                          latest.data.value("cases", Json::array()), conclusion)}};
}

}  // namespace

std::vector<Json> pooled_claims(const std::vector<Record>& records, bool loaded, const std::vector<Json>& statements) {
  const Rans rans = rans_of(records);
  std::map<std::string, std::vector<Told>> claims;
  std::map<std::string, bool> today;
  for (const Record& record : records) {
    if (record.kind == "measurement") today[record.id] = of_today(record.json());
    if (record.kind != "finding") continue;
    Json joined = record.joined();
    Run run = run_of(record, joined, rans);
    claims[record.claim_key].push_back({&record, std::move(joined.at("data")), std::move(run)});
  }
  std::vector<Json> pooled;
  for (auto& [key, all] : claims) {
    std::ranges::stable_sort(all, {}, [](const Told& told) { return told.record->ts; });
    Json claim = pooled_claim(key, all, loaded, statements, today);
    if (!claim.is_null()) pooled.push_back(std::move(claim));
  }
  return pooled;
}

}  // namespace attn::kb
