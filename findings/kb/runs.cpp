#include "findings/kb/runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "common/records/claim.h"
#include "common/records/fields.h"
#include "common/records/pool.h"
#include "common/records/statistics.h"

namespace attn::kb {
namespace {

int least_rounds(const Json& compare) {
  int rounds = 0;
  for (const Json& time : compare.at("time")) {
    const int more = time.at("rounds");
    rounds = rounds == 0 ? more : std::min(rounds, more);
  }
  return rounds;
}

double square(double x) { return x * x; }

/// The logarithm of the likelihood of a scale, without the terms that do not depend on it.
double log_likelihood(const std::vector<Distance>& distances, double scale) {
  constexpr double freedom = Spread{}.freedom;
  double sum = 0;
  for (const Distance& distance : distances) {
    const double variance = distance.weight * (square(scale) + distance.own);
    sum -= std::log(variance) / 2 + (freedom + 1) / 2 * std::log1p(square(distance.z) / variance / freedom);
  }
  return sum;
}

/// A figure that several runs measured with the same code and under the same conditions.
struct Repeated {
  std::string device, experiment, hypothesis;
  FigureKind kind = FigureKind::share;
  double threshold = 0;
  bool relative = true;
  double unit = 0;
  std::map<std::string, Session> runs;  // by run id; the last finding of a run counts
  std::vector<std::string> order;       // the runs' ids by time

  /// The mean of the session's values: of their logarithms if relative, else in units of `unit`.
  double mean(const Session& session) const {
    double sum = 0;
    for (const Part& part : session) sum += relative ? std::log(part.value) : part.value / unit;
    return sum / static_cast<double>(session.size());
  }
  double own(const Session& session) const {
    double sum = 0;
    for (const Part& part : session) sum += square(part.error / (relative ? part.value : unit));
    return sum / static_cast<double>(session.size());
  }
};

std::vector<Repeated> figures_of(const std::vector<Record>& records) {
  const Rans rans = rans_of(records);
  std::map<std::string, std::vector<std::pair<std::string, Run>>> found;  // time and run
  std::map<std::string, Repeated> figures;
  for (const Record& record : records) {
    if (record.kind != "finding") continue;
    const Json joined = record.joined();
    Run run = run_of(record, joined, rans);
    if (run.exact || run.loaded) continue;
    const Json& hypothesis = joined.at("data").at("hypothesis");
    const std::string key = fmt::format("{}\n{}\n{}\n{}", joined.at("claim_key").get<std::string>(), name(run.kind),
                                        run.conditions, run.code);
    Repeated& figure = figures[key];
    figure.device = record.device;
    figure.experiment = record.experiment;
    figure.hypothesis = hypothesis.at("id");
    figure.threshold = hypothesis.at("threshold");
    figure.kind = run.kind;
    figure.relative &= run.relative;
    figure.unit = std::max(figure.unit, run.unit);
    found[key].emplace_back(record.ts, std::move(run));
  }
  std::vector<Repeated> several;
  for (auto& [key, figure] : figures) {
    std::ranges::stable_sort(found[key], {}, [](const auto& run) { return run.first; });
    for (auto& [ts, run] : found[key]) {
      if (figure.runs.insert_or_assign(run.run_id, run.session).second) figure.order.push_back(run.run_id);
    }
    if (figure.runs.size() > 1 && (figure.relative || figure.unit > 0)) several.push_back(std::move(figure));
  }
  return several;
}

/// The distances of a group of figures.
struct Topic {
  std::vector<Distance> distances;
  std::vector<std::pair<std::string, std::string>> runs;  // of each distance
  std::vector<std::string> devices;                       // of each distance
};
/// By device or kind of device, then by topic (see fit_spreads()), then by kind of figure.
using Topics = std::map<std::array<std::string, 3>, Topic>;

Topics topics_of(const std::vector<Repeated>& figures) {
  Topics groups;
  for (const Repeated& figure : figures) {
    const std::string device = without_units(figure.device), all = kind_of_device(device),
                      claim = figure.experiment + "/" + figure.hypothesis;
    for (auto a = figure.runs.begin(); a != figure.runs.end(); ++a) {
      for (auto b = std::next(a); b != figure.runs.end(); ++b) {
        // Runs with the same figure to the last digit are probably one measurement: for example, the second run found a
        // compiled kernel in the cache.
        const double z = figure.mean(b->second) - figure.mean(a->second);
        if (z == 0) continue;
        const double weight = 2 * Spread{}.between + 1.0 / static_cast<double>(a->second.size()) +
                              1.0 / static_cast<double>(b->second.size());
        for (const auto& [owner, topic] : {std::pair{device, claim}, std::pair{all, claim},
                                           std::pair{all, figure.experiment}, std::pair{all, std::string("*")}}) {
          Topic& group = groups[{owner, topic, name(figure.kind)}];
          for (const Session* const known : {&a->second, &b->second}) {  // each run predicts the other run's figure
            group.distances.push_back({.z = z, .weight = weight, .own = figure.own(*known)});
            group.runs.emplace_back(a->first, b->first);
            group.devices.push_back(device);
          }
        }
      }
    }
  }
  return groups;
}

/// What a fit knows about one topic.
struct Fitted {
  double scale = 0;
  size_t pairs = 0;
  bool few_devices = true;  // fewer than three, so that the scale says little about another one
};

/// Fits a group without the distances of a run (empty: with all). No result for too few pairs.
std::optional<Fitted> fit_topic(const Topic& topic, const std::string& without) {
  std::vector<Distance> distances;
  std::set<std::string> devices;
  for (size_t i = 0; i < topic.distances.size(); ++i) {
    if (topic.runs[i].first == without || topic.runs[i].second == without) continue;
    distances.push_back(topic.distances[i]);
    devices.insert(topic.devices[i]);
  }
  const size_t pairs = distances.size() / 2;
  if (pairs < least_pairs) return std::nullopt;
  return Fitted{fit(distances), pairs, devices.size() < 3};
}

/// The fits of all groups.
class Fits {
 public:
  explicit Fits(const std::vector<Repeated>& figures) : topics_(topics_of(figures)) {
    for (const auto& [key, group] : topics_) {
      all_[key] = fit_topic(group, "");
      for (const auto& [a, b] : group.runs) runs_[key].merge(std::set<std::string>{a, b});
    }
  }

  /// The object `spread` of spread.json, fitted without a run.
  Json spread(const std::string& without) const {
    std::map<std::array<std::string, 3>, std::optional<Fitted>> fits = all_;
    for (auto& [key, fitted] : fits) {
      if (runs_.at(key).contains(without)) fitted = fit_topic(topics_.at(key), without);
    }
    // The wider groups come first: "*" is less than a letter, and an experiment than its hypotheses.
    Json spread = Json::object();
    for (auto& [key, fitted] : fits) {
      if (!fitted) continue;
      const auto& [owner, topic, kind] = key;
      const size_t slash = topic.find('/');
      const bool of_kind = owner == "cpu" || owner == "cuda";
      if (of_kind && topic != "*" && fitted->few_devices) {
        const auto& wider = fits.at({owner, slash == topic.npos ? "*" : topic.substr(0, slash), kind});
        fitted->scale = std::max(fitted->scale, wider->scale);
      }
      spread[owner][topic][kind] = {{"scale", rounded(fitted->scale, 3)}, {"pairs", fitted->pairs}};
    }
    return spread;
  }

 private:
  Topics topics_;
  std::map<std::array<std::string, 3>, std::optional<Fitted>> all_;
  std::map<std::array<std::string, 3>, std::set<std::string>> runs_;
};

/// One row of the table of coverage.
struct Coverage {
  int64_t pairs = 0, inside = 0, decided = 0, turned = 0;
  double wrong = 0;
  std::vector<double> half_widths;
};

/// Predicts each run's figure from the other runs of the figure.
void add_figure(const Repeated& figure, const std::map<std::string, Json>& without,
                std::map<std::pair<std::string, std::string>, Coverage>& table) {
  for (const std::string& left : figure.order) {
    const Session& session = figure.runs.at(left);
    std::vector<Session> others;
    bool repeated = false;  // see topics_of()
    for (const std::string& run : figure.order) {
      if (run == left) continue;
      others.push_back(figure.runs.at(run));
      repeated |= figure.mean(others.back()) == figure.mean(session);
    }
    if (repeated) continue;
    const Spread prior =
        spread_in({{"spread", without.at(left)}}, figure.device, figure.experiment, figure.hypothesis, figure.kind);
    const Pooled pooled = pool(others, prior, figure.relative, figure.unit);
    const double value = figure.relative ? std::exp(figure.mean(session)) : figure.mean(session) * figure.unit;
    const bool inside = pooled.next_lo <= value && value <= pooled.next_hi;
    const double threshold = figure.threshold;
    const bool decided = (pooled.next_lo < threshold) == (pooled.next_hi < threshold);
    const std::string device = without_units(figure.device), kind = name(figure.kind);
    for (const auto& row : {std::pair{device, kind}, {device, "all"}, {"all", kind}, {"all", "all"}}) {
      Coverage& cell = table[row];
      ++cell.pairs;
      cell.inside += inside;
      cell.half_widths.push_back(figure.relative ? pooled.next_hi / pooled.value - 1 : pooled.next_hi - pooled.value);
      if (!decided) continue;
      ++cell.decided;
      cell.wrong += 1 - same_side(pooled, threshold, figure.relative);
      cell.turned += (value < threshold) != (pooled.value < threshold);
    }
  }
}

Json coverage_of(const std::vector<Repeated>& figures, const Fits& fits) {
  std::map<std::string, Json> without;  // the spreads, by the run that is left out
  for (const Repeated& figure : figures) {
    for (const std::string& run : figure.order) {
      if (!without.contains(run)) without[run] = fits.spread(run);
    }
  }
  std::map<std::pair<std::string, std::string>, Coverage> table;
  for (const Repeated& figure : figures) add_figure(figure, without, table);
  Json rows = Json::array();
  for (auto& [row, cell] : table) {
    const auto [low, high] = share_interval(cell.inside, cell.pairs);
    std::ranges::sort(cell.half_widths);
    Json quartiles = Json::array();
    for (const double share : {0.25, 0.5, 0.75}) {
      const auto last = static_cast<double>(cell.half_widths.size() - 1);
      quartiles.push_back(rounded(cell.half_widths[static_cast<size_t>(std::lround(share * last))], 3));
    }
    rows.push_back({{"device", row.first},
                    {"kind", row.second},
                    {"pairs", cell.pairs},
                    {"inside", cell.inside},
                    {"ci_lo", rounded(low, 3)},
                    {"ci_hi", rounded(high, 3)},
                    {"half_width", quartiles},
                    {"decided", cell.decided},
                    {"wrong", rounded(cell.wrong, 3)},
                    {"turned", cell.turned}});
  }
  return rows;
}

}  // namespace

Part part_of(const Json& json, const char* value, const char* lo, const char* hi, int rounds, int process) {
  return {
      .process = process, .value = json.at(value), .error = standard_error(json.at(lo), json.at(hi)), .rounds = rounds};
}

std::vector<Json> kernels_of(const Json& measurement) {
  std::vector<Json> found;
  for (const Json& phase : measurement.value("phases", Json::array())) found.push_back(phase.at("pipeline"));
  if (const Json& only = measurement.at("pipeline"); found.empty() && !only.is_null()) found.push_back(only);
  return found;
}

Code code_of(const Json& measurement) {
  Code code;
  for (const Json& pipeline : kernels_of(measurement)) code.push_back(pipeline.at("code_sha256"));
  return code;
}

Ran ran(const Json& measurement) {
  return {.code = code_of(measurement), .power_capped = at_power_limit(measurement.value("clocks", Json()))};
}

Rans rans_of(const std::vector<Record>& records) {
  Rans rans;
  for (const Record& record : records) {
    if (record.kind == "measurement") rans[record.id] = ran(record.json());
  }
  return rans;
}

Run run_of(const Record& finding, const Json& joined, const Rans& rans) {
  const Json &data = joined.at("data"), &estimate = data.at("estimate"), &compare = data.at("compare");
  Run run;
  run.id = finding.id;
  run.run_id = run_id_of(joined, finding.kind);
  run.state = finding.state;

  std::set<std::string> code;
  bool has_kernels = false;
  const Json of_cases = data.value("code", Json::array());
  for (const Json& kernels : of_cases) {
    has_kernels |= !kernels.empty();
    for (const Json& kernel : kernels) code.insert(kernel.get<std::string>());
  }
  run.power_capped = estimate.value("power_capped", false) || at_power_limit(value_at(compare, "/clocks"));
  for (const Json& id : data.at("measurements")) {
    const auto known = rans.find(id.get<std::string>());
    if (known != rans.end()) run.power_capped |= known->second.power_capped;
    if (!of_cases.empty()) continue;
    if (known == rans.end()) {
      code.insert("measurement " + id.get<std::string>());
      continue;
    }
    has_kernels |= !known->second.code.empty();
    code.insert(known->second.code.begin(), known->second.code.end());
  }
  run.code = fmt::format("{}", fmt::join(code, "\n"));

  for (const char* field : {"/run/profile", "/run/threadgroup_memory_bytes", "/run/input", "/run/files",
                            "/env/device/toolchain", "/hypothesis/metric", "/hypothesis/threshold"}) {
    run.conditions += value_at(data, field).dump() + "\n";
  }
  const bool of_host = value_at(compare, "/time/0/scope") == "host" || !has_kernels;
  if (of_host) {
    run.conditions += value_at(data, "/env/git/commit").dump() + value_at(data, "/env/host_compiler").dump();
    run.conditions += value_at(finding.header ? *finding.header : Json(), "/session/diff").dump();
  }
  run.loaded = finding.header && !text_at(*finding.header, "/session/loaded").empty();
  if (run.loaded) run.conditions += "loaded";

  run.kind = kind_of(!compare.is_null(), data.at("hypothesis").at("metric"));
  if (!compare.is_null()) {
    const Json parts = compare.value("parts", Json::array());
    for (const Json& part : parts) {
      run.ratio.push_back(
          part_of(part, "ratio", "ci_lo", "ci_hi", least_rounds(part), static_cast<int>(run.ratio.size()) + 1));
    }
    if (parts.empty()) run.ratio = {part_of(compare, "ratio", "ci_lo", "ci_hi", least_rounds(compare), 1)};
  }
  data.at("parts").get_to(run.session);
  run.relative = estimate.at("scale") == "log";
  run.exact = estimate.at("scale") == "exact";
  if (run.exact) run.conditions += estimate.at("value").dump();
  run.unit = estimate.at("unit");
  if (run.session.empty()) run.session = {{.value = estimate.at("value")}};
  if (run.kind == FigureKind::absolute) run.relative = data.at("hypothesis").at("threshold").get<double>() > 0;
  for (const Part& part : run.session) run.relative &= part.value > 0;
  return run;
}

double fit(const std::vector<Distance>& distances) {
  // The likelihood may have several maxima. So a grid finds the highest, and a golden section its place.
  constexpr double least = 1e-4, most = 1, step = 1.15, golden = 0.6180339887498949;
  const auto likelihood = [&](double logarithm) { return log_likelihood(distances, std::exp(logarithm)); };
  double best = std::log(least), highest = likelihood(best);
  for (double at = best + std::log(step); at < std::log(most); at += std::log(step)) {
    if (const double here = likelihood(at); here > highest) best = at, highest = here;
  }
  double low = std::max(best - std::log(step), std::log(least)), high = std::min(best + std::log(step), std::log(most));
  for (int i = 0; i < 20; ++i) {
    const double inner = high - golden * (high - low), outer = low + golden * (high - low);
    if (likelihood(inner) < likelihood(outer)) {
      low = inner;
    } else {
      high = outer;
    }
  }
  return std::exp((low + high) / 2);
}

Json fit_spreads(const std::vector<Record>& records) {
  const std::vector<Repeated> figures = figures_of(records);
  const Fits fits(figures);
  return {{"coverage", coverage_of(figures, fits)}, {"spread", fits.spread("")}};
}

std::string spread_text(const Json& fitted) {
  std::vector<std::string> rows, owners;
  for (const Json& row : fitted.at("coverage")) rows.push_back("    " + row.dump());
  for (const auto& [owner, topics] : fitted.at("spread").items()) {
    std::vector<std::string> lines;
    for (const auto& [topic, kinds] : topics.items())
      lines.push_back(fmt::format("      {}: {}", Json(topic).dump(), kinds.dump()));
    owners.push_back(fmt::format("    {}: {{\n{}\n    }}", Json(owner).dump(), fmt::join(lines, ",\n")));
  }
  return fmt::format("{{\n  \"coverage\": [\n{}\n  ],\n  \"spread\": {{\n{}\n  }}\n}}\n", fmt::join(rows, ",\n"),
                     fmt::join(owners, ",\n"));
}

}  // namespace attn::kb
