#include "findings/kb/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/text_table.h"
#include "common/records/case_table.h"
#include "common/records/spread.h"
#include "findings/kb/check.h"
#include "findings/kb/runs.h"

namespace attn::kb {
namespace {

/// The measurements of a configuration on one side.
struct Measured {
  std::string device;
  std::vector<std::pair<std::string, Json>> by_time;  // the time of each record, and the record
  const Json& latest() const { return by_time.back().second; }
};

std::optional<Part> time_of(const Json& measurement, const std::string& scope) {
  for (const Json& time : measurement.at("time")) {
    if (time.at("scope") == scope) return part_of(time, "median_s", "ci_lo_s", "ci_hi_s", time.at("rounds"), 1);
  }
  return std::nullopt;
}

/// Measurements with equal results of this function ran the same code under the same conditions.
std::string same_code_key(const Json& measurement, const std::string& scope) {
  const Code code = code_of(measurement);
  std::string key = fmt::format("{}", fmt::join(code, "\n"));
  for (const char* condition : {"/run/profile", "/run/threadgroup_memory_bytes", "/run/input", "/run/files"})
    key += "\n" + measurement.value(Json::json_pointer(condition), Json()).dump();
  if (scope == "host" || code.empty()) {
    for (const char* field : {"/run/commit", "/run/diff"})
      key += "\n" + measurement.value(Json::json_pointer(field), Json()).dump();
  }
  return key;
}

/// The runs from which the time of one side is pooled.
struct Pool {
  std::vector<Session> quiet, busy;
  std::string sign;  // how the latest busy run says that the machine was busy
};

Pool pool_of(const Measured& measured, const std::string& scope) {
  const std::string code = same_code_key(measured.latest(), scope);
  std::set<std::string> runs;  // of a run that measured twice, the later record counts
  Pool pool;
  for (const auto& [ts, json] : measured.by_time | std::views::reverse) {
    if (json.at("status") != "ok" || same_code_key(json, scope) != code) continue;
    const auto time = time_of(json, scope);
    if (!time || !runs.insert(json.at("run_id")).second) continue;
    const std::string sign = json.value("busy", "");
    (sign.empty() ? pool.quiet : pool.busy).push_back({*time});
    if (pool.sign.empty()) pool.sign = sign;
  }
  return pool;
}

std::set<std::string> devices(const Side& side) {
  std::set<std::string> names;
  for (const Record& record : side.records) {
    if (record.kind == "measurement") names.insert(record.device);
  }
  return names;
}

/// Returns the device for key_of(). The result "" lets configurations of different devices be compared.
std::string apart(const std::string& device, bool by_device) {
  return by_device || is_emulated(device) ? device : std::string();
}

/// Sorts the axes, because records may have them in any order.
std::string key_of(const std::string& experiment, const Json& config, const std::string& device) {
  std::map<std::string, std::string> axes;
  for (const auto& [axis, value] : config.items())
    axes[axis] = value.is_string() ? value.get<std::string>() : value.dump();
  std::string key = experiment;
  for (const auto& [axis, value] : axes) key += fmt::format("\n{}={}", axis, value);
  return key + "\n" + device;
}

std::map<std::string, Measured> measured_of(const Side& side, bool by_device) {
  std::map<std::string, Measured> measured;
  for (const Record& record : side.records) {
    if (record.kind != "measurement") continue;
    Json json = record.json();
    Measured& one = measured[key_of(record.experiment, json.at("case"), apart(record.device, by_device))];
    one.device = record.device;
    one.by_time.emplace_back(record.ts, std::move(json));
  }
  if (measured.empty()) throw BadInput(fmt::format("{}: there are no measurements to compare", side.label));
  for (auto& [key, one] : measured) {  // files of runs arrive in any order
    std::ranges::stable_sort(one.by_time, {}, &std::pair<std::string, Json>::first);
  }
  return measured;
}

/// The A/A floors of a side. A configuration that no finding of the side compares has the median of all floors.
class Floors {
 public:
  Floors(const Side& side, bool by_device) {
    std::vector<double> all;
    for (const Record& record : side.records) {
      if (record.kind != "finding") continue;
      const Json json = record.json();
      const Json& compared = json.at("data").at("compare");
      if (compared.is_null()) continue;
      const double floor = compared.at("aa_floor");
      all.push_back(floor);
      for (const char* part : {"baseline", "contender"}) {
        double& known = by_config_[key_of(record.experiment, compared.at(part), apart(record.device, by_device))];
        known = std::max(known, floor);
      }
    }
    if (!all.empty()) typical_ = median(std::move(all));
  }

  double of(const std::string& key) const {
    const auto known = by_config_.find(key);
    return known == by_config_.end() ? typical_ : known->second;
  }

 private:
  std::map<std::string, double> by_config_;
  double typical_ = 0;
};

/// The machines on which a side measured one device, and the device's ceilings by name ("TFLOP/s of bf16"). A
/// measurement with a rate gives a ceiling: the rate / the recorded share of the ceiling.
struct Machines {
  std::set<std::string> ids;
  std::map<std::string, std::vector<double>> ceilings;
};

/// By the device's name. Leaves out measurements that name no machine.
std::map<std::string, Machines> machines_of(const Side& side) {
  std::map<std::string, Machines> machines;
  for (const Record& record : side.records) {
    if (record.kind != "measurement") continue;
    const Json json = record.json();
    const Json id = json.value("/run/machine"_json_pointer, Json());
    if (!id.is_string()) continue;
    Machines& known = machines[record.device];
    known.ids.insert(id.get<std::string>());
    const Json& rate = json.at("rate");
    const auto add = [&](const std::string& what, const char* figure, const char* percent) {
      if (!rate.is_object() || !rate.value(percent, Json()).is_number()) return;
      const double share = rate.at(percent).get<double>() / 100;
      if (share > 0) known.ceilings[what].push_back(rate.at(figure).get<double>() / share);
    };
    add("TFLOP/s of " + json.value("dtype", "no type"), "tflops", "pct_matrix_best");
    add("GB/s of a copy", "gbps", "pct_copy_ceiling");
  }
  return machines;
}

std::vector<std::string> notes_about_machines(const Side& a, const Side& b) {
  std::vector<std::string> notes;
  const auto of_a = machines_of(a), of_b = machines_of(b);
  for (const auto& [device, one] : of_a) {
    const auto found = of_b.find(device);
    if (found == of_b.end() || found->second.ids == one.ids) continue;
    std::string note = fmt::format(
        "A and B were measured on two machines with the name {} (or on one machine before and after a restart)",
        device);
    std::string separator = "; ceilings of A and B: ";
    for (const auto& [what, rates] : one.ceilings) {
      const auto other = found->second.ceilings.find(what);
      if (other == found->second.ceilings.end()) continue;
      note += fmt::format("{}{:.3g} and {:.3g} {}", separator, median(rates), median(other->second), what);
      separator = ", ";
    }
    notes.push_back(std::move(note));
  }
  return notes;
}

/// Of two devices, the larger spread counts.
Spread spread_between(const Compared& pair) {
  const auto of = [&](const std::string& device) {
    return spread_of(device, pair.experiment, "", FigureKind::absolute);
  };
  const Spread a = of(pair.device_a), b = of(pair.device_b);
  return a.scale < b.scale ? b : a;
}

/// Judges a configuration that both sides have.
void judge_pair(const Measured& of_a, const Measured& of_b, Compared& result) {
  const Json &a = of_a.latest(), &b = of_b.latest();
  const std::string status_a = a.at("status"), status_b = b.at("status");
  if (status_a != "ok" || status_b != "ok") {
    const auto side = [](const char* label, const std::string& status, const Json& json) {
      return status == "ok" ? fmt::format("{} is ok", label)
                            : fmt::format("{} is {}: {}", label, status, json.at("reason").get<std::string>());
    };
    result.reason = fmt::format("{}; {}", side("A", status_a, a), side("B", status_b, b));
    result.regression = status_a == "ok" && status_b != "skipped";
    return;
  }
  for (const char* scope : {"device_hot", "device_cold", "host"}) {
    if (!time_of(a, scope) || !time_of(b, scope)) continue;
    result.scope = scope;
    const Pool pool_a = pool_of(of_a, scope), pool_b = pool_of(of_b, scope);
    const auto& runs_a = pool_a.quiet.empty() ? pool_a.busy : pool_a.quiet;
    const auto& runs_b = pool_b.quiet.empty() ? pool_b.busy : pool_b.quiet;
    result.runs_a = runs_a.size();
    result.runs_b = runs_b.size();
    result.ratio = pooled_ratio(runs_a, runs_b, spread_between(result));
    result.change = judge_change(*result.ratio, result.floor, result.reason);
    for (const auto& [name, pool, busy] : {std::tuple("A", &pool_a, &result.busy_a), {"B", &pool_b, &result.busy_b}}) {
      if (!pool->quiet.empty()) continue;
      *busy = pool->sign;
      result.change = Change::unclear;
      result.reason = fmt::format("the machine was busy while {} was measured: {}", name, pool->sign);
    }
    result.regression = result.change == Change::slower;
    return;
  }
  result.reason = "no scope was timed on both sides";
}

}  // namespace

std::string_view name(Change change) {
  constexpr std::string_view names[] = {"FASTER", "SLOWER", "UNCLEAR", "SAME"};
  return names[static_cast<size_t>(change)];
}

Change judge_change(const Estimate& estimate, double floor, std::string& reason) {
  const auto [ratio, lo, hi] = estimate;
  const std::string figures = fmt::format("{:.4g} [{:.4g}, {:.4g}] of the time", ratio, lo, hi);
  if (lo >= 1 - floor && hi <= 1 + floor) {
    reason = fmt::format("{} is within the floor of {:.2g}", figures, floor);
    return Change::same;
  }
  if (lo <= 1 && hi >= 1) {
    reason = fmt::format("the interval of {} contains 1 and is wider than the floor of {:.2g}", figures, floor);
    return Change::unclear;
  }
  if (std::abs(ratio - 1) <= floor) {
    reason = fmt::format("{} is closer to 1 than the floor of {:.2g}", figures, floor);
    return Change::unclear;
  }
  reason = fmt::format("{} is beyond the floor of {:.2g}", figures, floor);
  return ratio < 1 ? Change::faster : Change::slower;
}

Comparisons compare(const Side& a, const Side& b, double min_floor) {
  const bool by_device = devices(a).size() > 1 || devices(b).size() > 1;
  const auto measured_a = measured_of(a, by_device), measured_b = measured_of(b, by_device);
  const Floors floors_a(a, by_device), floors_b(b, by_device);

  Comparisons result;
  result.notes = notes_about_machines(a, b);
  const auto add = [&](const std::string& key, const Measured* one, const Measured* other) {
    const Json& any = (one ? one : other)->latest();
    Compared compared;
    compared.experiment = any.at("experiment");
    compared.config = Case::from_json(any.at("case"));
    if (one) compared.device_a = one->device, compared.id_a = one->latest().at("id");
    if (other) compared.device_b = other->device, compared.id_b = other->latest().at("id");
    compared.floor = std::max({floors_a.of(key), floors_b.of(key), min_floor});
    if (!one || !other) {
      compared.reason = one ? "only A has this configuration" : "only B has this configuration";
      ++(one ? result.only_a : result.only_b);
    } else {
      judge_pair(*one, *other, compared);
      result.faster += compared.change == Change::faster;
      result.slower += compared.change == Change::slower;
      result.same += compared.change == Change::same;
      result.unclear += compared.change == Change::unclear && !compared.regression;
      result.broken += compared.change == Change::unclear && compared.regression;
    }
    result.configurations.push_back(std::move(compared));
  };
  for (const auto& [key, one] : measured_a) {
    const auto other = measured_b.find(key);
    add(key, &one, other == measured_b.end() ? nullptr : &other->second);
  }
  for (const auto& [key, other] : measured_b) {
    if (!measured_a.contains(key)) add(key, nullptr, &other);
  }
  for (const auto& [name, busy] : {std::pair("A", &Compared::busy_a), {"B", &Compared::busy_b}}) {
    std::string sign;
    size_t disturbed = 0;
    for (const Compared& one : result.configurations) {
      if (!(one.*busy).empty()) sign = one.*busy, ++disturbed;
    }
    if (disturbed == 0) continue;
    result.notes.push_back(
        fmt::format("the machine was busy while {} measured {} ({}): the comparison is UNCLEAR; "
                    "measure again when it is quiet",
                    name, counted(disturbed, "configuration"), sign));
  }
  if (std::ssize(result.configurations) == result.only_a + result.only_b)
    throw BadInput(fmt::format("{} and {} have no configuration in common", a.label, b.label));
  std::ranges::stable_sort(result.configurations, {}, [](const Compared& one) {
    const bool both = !one.id_a.empty() && !one.id_b.empty();
    return std::tuple(!one.regression, !both, one.regression ? Change::slower : one.change);
  });
  return result;
}

Json to_json(const Compared& one) {
  const auto figure = [&](double Estimate::* value) { return one.ratio ? Json((*one.ratio).*value) : Json(nullptr); };
  return {{"change", name(one.change)},
          {"regression", one.regression},
          {"experiment", one.experiment},
          {"config", one.config.key()},
          {"scope", one.scope},
          {"ratio", figure(&Estimate::value)},
          {"ci_lo", figure(&Estimate::ci_lo)},
          {"ci_hi", figure(&Estimate::ci_hi)},
          {"floor", one.floor},
          {"reason", one.reason},
          {"a", {{"id", one.id_a}, {"device", one.device_a}, {"runs", one.runs_a}}},
          {"b", {{"id", one.id_b}, {"device", one.device_b}, {"runs", one.runs_b}}}};
}

std::string printed(const std::vector<Compared>& configurations) {
  using Group = std::pair<std::string, std::vector<const Compared*>>;
  std::vector<Group> experiments;  // in order of first appearance
  for (const Compared& one : configurations) {
    auto place = std::ranges::find(experiments, one.experiment, &Group::first);
    if (place == experiments.end()) place = experiments.insert(place, {one.experiment, {}});
    place->second.push_back(&one);
  }
  std::string text;
  for (const auto& [experiment, all] : experiments) {
    CaseTable table = {.heads = {"B, and B/A of time", "device", "floor"},
                       .rows = {},
                       .width = output_width(),
                       .remedy = "--json prints them"};
    std::vector<CaseReason> reasons;
    std::vector<Case> cases;
    std::set<std::string> devices;
    for (const Compared* one : all) {
      cases.push_back(one->config);
      if (one->ratio) devices.insert(one->device_a);
    }
    for (const Compared* one : all) {
      const std::string change(name(one->change));
      if (!one->ratio) {
        const bool both = !one->id_a.empty() && !one->id_b.empty();
        reasons.push_back({both ? change : "not compared", one->reason, one->config, both});
        continue;
      }
      const std::string figures =
          fmt::format("{} {:.4g} [{:.4g}, {:.4g}]", change, one->ratio->value, one->ratio->ci_lo, one->ratio->ci_hi);
      table.rows.push_back(
          {one->config, {figures, devices.size() > 1 ? one->device_a : "", fmt::format("{:.2g}", one->floor)}});
    }
    text += fmt::format("{}{}\n{}{}\n", text.empty() ? "" : "\n", experiment, case_table(std::move(table)),
                        reasons_text(reasons, varying_axes(cases), output_width()));
  }
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) result += printable(with_one_unit(line)) + "\n";
  return result;
}

std::vector<Record> of_commit(const std::vector<Record>& records, const std::string& commit) {
  if (commit.size() < 6 || commit.find_first_not_of("0123456789abcdef") != commit.npos) {
    throw BadInput(fmt::format("'{}' is no commit; give at least 6 hex digits", commit));
  }
  std::set<std::string> runs, commits;
  for (const Record& record : records) {
    if (record.kind != "run") continue;
    const Json full = record.json().value("/env/git/commit"_json_pointer, Json());
    if (!full.is_string() || !full.get<std::string>().starts_with(commit)) continue;
    commits.insert(full.get<std::string>());
    runs.insert(record.run_id());
  }
  if (commits.empty()) throw BadInput(fmt::format("{}: no run names that commit", commit));
  if (commits.size() > 1)
    throw BadInput(fmt::format("{}: several commits begin with these digits; give more digits", commit));
  std::vector<Record> selected;
  for (const Record& record : records) {
    if (runs.contains(record.run_id())) selected.push_back(record);
  }
  return selected;
}

}  // namespace attn::kb
