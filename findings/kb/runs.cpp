#include "findings/kb/runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "common/records/fields.h"

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

double mean_log(const Session& session) {
  double sum = 0;
  for (const Part& part : session) sum += std::log(part.value);
  return sum / static_cast<double>(session.size());
}

double own_errors(const Session& session) {
  double sum = 0;
  for (const Part& part : session) sum += (part.error / part.value) * (part.error / part.value);
  return sum;
}

double log_likelihood(const std::vector<Distance>& distances, const Spread& spread) {
  const double nu = spread.freedom;
  const double front = std::lgamma((nu + 1) / 2) - std::lgamma(nu / 2) - std::log(nu * std::numbers::pi) / 2;
  double sum = 0;
  for (const Distance& distance : distances) {
    const double square = distance.weight * (spread.scale * spread.scale + distance.own);
    sum += front - std::log(square) / 2 - (nu + 1) / 2 * std::log1p(distance.z * distance.z / square / nu);
  }
  return sum;
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

Codes codes_of(const std::vector<Record>& records) {
  Codes codes;
  for (const Record& record : records) {
    if (record.kind == "measurement") codes[record.id] = code_of(record.json());
  }
  return codes;
}

Run run_of(const Record& finding, const Json& joined, const Codes& codes) {
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
  for (const Json& id : of_cases.empty() ? data.at("measurements") : Json::array()) {
    const auto known = codes.find(id.get<std::string>());
    if (known == codes.end()) {
      code.insert("measurement " + id.get<std::string>());
      continue;
    }
    has_kernels |= !known->second.empty();
    code.insert(known->second.begin(), known->second.end());
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
  run.unit = estimate.at("unit");
  if (run.session.empty()) run.session = {{.value = estimate.at("value")}};
  if (run.kind == FigureKind::absolute) run.relative = data.at("hypothesis").at("threshold").get<double>() > 0;
  for (const Part& part : run.session) run.relative &= part.value > 0;
  return run;
}

Fitted fit(const std::vector<Distance>& distances) {
  constexpr double least_scale = 1e-4, most_scale = 1, least_freedom = 1, most_freedom = 30;
  Fitted best{.spread = {}, .pairs = distances.size(), .likelihood = -std::numeric_limits<double>::infinity()};
  const auto try_grid = [&](Spread from, Spread to, double step_of_scale, double step_of_freedom) {
    from = {std::max(from.scale, least_scale), std::max(from.freedom, least_freedom)};
    to = {std::min(to.scale, most_scale), std::min(to.freedom, most_freedom)};
    for (double freedom = from.freedom;; freedom = std::min(freedom * step_of_freedom, to.freedom)) {
      for (double scale = from.scale;; scale = std::min(scale * step_of_scale, to.scale)) {
        const Spread spread{scale, freedom};
        const double likelihood = log_likelihood(distances, spread);
        if (likelihood > best.likelihood) best.spread = spread, best.likelihood = likelihood;
        if (scale >= to.scale) break;
      }
      if (freedom >= to.freedom) break;
    }
  };
  try_grid({least_scale, least_freedom}, {most_scale, most_freedom}, 1.2, 1.3);
  for (double step = 1.05; step > 1.002; step = std::sqrt(step)) {
    const double reach = std::pow(step, 5);
    const Spread around = best.spread;
    try_grid({around.scale / reach, around.freedom / reach}, {around.scale * reach, around.freedom * reach}, step,
             step);
  }
  return best;
}

Json fit_spreads(const std::vector<Record>& records) {
  const Codes codes = codes_of(records);
  // The runs of one figure with the same code and conditions.
  struct Figure {
    std::string device, experiment;
    std::map<std::string, Session> runs;  // by run id; the last finding of a run counts
  };
  std::map<std::string, Figure> figures;
  for (const Record& record : records) {
    if (record.kind != "finding") continue;
    const Json joined = record.joined();
    const Run run = run_of(record, joined, codes);
    if (run.exact || (run.kind != FigureKind::ratio && !run.relative)) continue;
    const Session& session = run.kind == FigureKind::ratio ? run.ratio : run.session;
    const bool positive = std::ranges::all_of(session, [](const Part& part) { return part.value > 0; });
    if (!positive || session.empty()) continue;
    Figure& figure = figures[fmt::format("{}\n{}\n{}\n{}", joined.at("claim_key").get<std::string>(), name(run.kind),
                                         run.conditions, run.code)];
    figure.device = record.device;
    figure.experiment = record.experiment + "\n" + name(run.kind);
    figure.runs[run.run_id] = session;
  }

  std::map<std::string, std::map<std::string, std::map<std::string, std::vector<Distance>>>> groups;
  for (const auto& [key, figure] : figures) {
    const size_t split = figure.experiment.find('\n');
    const std::string experiment = figure.experiment.substr(0, split), kind = figure.experiment.substr(split + 1);
    for (auto a = figure.runs.begin(); a != figure.runs.end(); ++a) {
      for (auto b = std::next(a); b != figure.runs.end(); ++b) {
        // Runs with the same figure to the last digit are probably one measurement: for example, the second run found a
        // compiled kernel in the cache.
        if (mean_log(a->second) == mean_log(b->second)) continue;
        const auto count_a = static_cast<double>(a->second.size()), count_b = static_cast<double>(b->second.size());
        // Each run predicts the other run's figure, and knows only its own errors.
        Distance distance{.z = mean_log(b->second) - mean_log(a->second),
                          .weight = 2 * Spread{}.between + 1 / count_a + 1 / count_b};
        for (const auto& [owner, experiment_or_all] : {std::pair{without_units(figure.device), experiment},
                                                       std::pair{without_units(figure.device), std::string("*")},
                                                       std::pair{kind_of_device(figure.device), std::string("*")}}) {
          for (const Session* const known : {&a->second, &b->second}) {
            distance.own = own_errors(*known) / static_cast<double>(known->size());
            groups[owner][experiment_or_all][kind].push_back(distance);
          }
        }
      }
    }
  }
  Json fitted = Json::object();
  for (const auto& [device, experiments] : groups) {
    for (const auto& [experiment, kinds] : experiments) {
      for (const auto& [kind, distances] : kinds) {
        const size_t pairs = distances.size() / 2;
        if (pairs < least_pairs) continue;
        const Fitted best = fit(distances);
        fitted[device][experiment][kind] = {
            {"scale", rounded(best.spread.scale, 3)}, {"freedom", rounded(best.spread.freedom, 3)}, {"pairs", pairs}};
      }
    }
  }
  return fitted;
}

}  // namespace attn::kb
