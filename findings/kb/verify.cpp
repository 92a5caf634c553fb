#include "findings/kb/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/records/fields.h"
#include "common/source/kernel_source.h"
#include "findings/kb/check.h"

namespace attn::kb {
namespace {

using Problems = std::vector<std::string>;

/// The largest relative difference that rounding may cause between a recorded figure and the figure computed again.
constexpr double rounding = 1e-9;

bool agree(double a, double b) { return std::abs(a - b) <= rounding * std::max(std::abs(a), std::abs(b)); }

void verify_interval(const Json& json, const std::string& path, const char* lo, const char* hi, Problems& problems) {
  const double low = json.at(lo), high = json.at(hi);
  if (!(low <= high))
    problems.push_back(fmt::format("{}: the interval [{:.6g}, {:.6g}] ends below its beginning", path, low, high));
}

void verify_times(const Json& times, const std::string& path, Problems& problems) {
  for (size_t i = 0; i < times.size(); ++i) {
    const std::string place = fmt::format("{}.{}", path, i);
    verify_interval(times[i], place, "ci_lo_s", "ci_hi_s", problems);
    if (times[i].at("min_s") > times[i].at("median_s")) problems.push_back(place + ": min_s is above median_s");
  }
}

const Json* time_of(const Json& record, const char* preferred, const char* otherwise) {
  for (const char* scope : {preferred, otherwise}) {
    for (const Json& time : record.at("time")) {
      if (time.at("scope") == scope) return &time;
    }
  }
  return nullptr;
}

void verify_rate(const Json& record, const char* rate, const char* work, double unit, const Json* time,
                 Problems& problems) {
  if (!time || record.at("work").is_null()) {
    problems.push_back(fmt::format("rate.{}: the record has no work or no device time for a rate", rate));
    return;
  }
  const double expected = record.at("work").at(work).get<double>() / time->at("median_s").get<double>() / unit;
  const double stated = record.at("rate").at(rate);
  if (!agree(stated, expected)) {
    problems.push_back(
        fmt::format("rate.{}: is {:.6g}, but work.{} / median_s is {:.6g}", rate, stated, work, expected));
  }
}

void verify_measurement(const Json& record, Problems& problems) {
  verify_times(record.at("time"), "time", problems);
  if (record.at("rate").is_null()) return;
  verify_rate(record, "tflops", "flops", 1e12, time_of(record, "device_hot", "device_cold"), problems);
  verify_rate(record, "gbps", "bytes", 1e9, time_of(record, "device_cold", "device_hot"), problems);
}

void expect(const std::string& what, const std::string& stated, const std::string& computed, Problems& problems) {
  if (stated != computed) problems.push_back(fmt::format("{}: is '{}', computed again '{}'", what, stated, computed));
}

void expect(const std::string& what, double stated, double computed, Problems& problems) {
  if (!agree(stated, computed))
    problems.push_back(fmt::format("{}: is {:.6g}, computed again {:.6g}", what, stated, computed));
}

void verify_texts(const Json& record, Problems& problems) {
  const Json& data = record.at("data");
  for (const char* field : {"title", "content"}) {
    try {
      expect(field, record.at(field), render(data.at("template").at(field), data), problems);
    } catch (const std::exception& error) {
      problems.push_back(fmt::format("{}: its template cannot be rendered: {}", field, error.what()));
    }
  }
}

void verify_verdict(const Json& data, const Verdict& verdict, Problems& problems) {
  expect("verdict", data.at("verdict").at("state"), std::string(name(verdict.state)), problems);
  expect("verdict.reason", data.at("verdict").at("reason"), verdict.reason, problems);
}

/// Checks a comparison, or the part of one process in a comparison.
void verify_compare(const Json& compare, const std::string& path, Problems& problems) {
  verify_interval(compare, path, "ci_lo", "ci_hi", problems);
  verify_interval(compare, path + " (A/A)", "aa_ci_lo", "aa_ci_hi", problems);
  verify_times(compare.at("time"), path + ".time", problems);
  Comparison again;
  again.aa = {compare.at("aa_ratio"), compare.at("aa_ci_lo"), compare.at("aa_ci_hi")};
  expect(path + ".aa_floor", compare.at("aa_floor"), again.aa_floor(), problems);
}

void verify_estimate(const Json& data, const Conclusion& stated, Problems& problems) {
  const Json& estimate = data.at("estimate");
  if (stated.exact) {
    for (const char* field : {"ci_lo", "ci_hi", "next_lo", "next_hi"}) {
      expect(fmt::format("estimate.{}", field), estimate.at(field), stated.estimate.value, problems);
    }
    for (const Part& part : stated.parts) {
      expect(fmt::format("parts: process {}", part.process), part.value, stated.estimate.value, problems);
    }
    return;
  }
  verify_interval(estimate, "estimate", "ci_lo", "ci_hi", problems);
  verify_interval(estimate, "estimate (next)", "next_lo", "next_hi", problems);
  if (stated.parts.empty()) {
    problems.emplace_back("parts: must not be empty for a figure that is not exact");
    return;
  }
  Conclusion computed = stated;
  computed.estimate = pool({&stated.parts, 1}, stated.prior, stated.relative, stated.relative ? 1 : stated.unit);
  const Json again = estimate_json(computed);
  for (const char* field :
       {"value", "ci_lo", "ci_hi", "next_lo", "next_hi", "tau", "freedom", "processes", "sessions"}) {
    expect(fmt::format("estimate.{}", field), estimate.at(field).get<double>(), again.at(field).get<double>(),
           problems);
  }
}

void verify_finding(const Json& record, Problems& problems) {
  verify_texts(record, problems);
  const Json& data = record.at("data");
  const Hypothesis hypothesis = data.at("hypothesis").get<Hypothesis>();
  const Conclusion conclusion = conclusion_of(data);
  try {
    verify_estimate(data, conclusion, problems);
  } catch (const std::invalid_argument& error) {
    problems.push_back(fmt::format("parts: {}", error.what()));
  }
  const Verdict verdict = judge(hypothesis, conclusion);
  verify_verdict(data, verdict, problems);
  if (record.contains("wrong"))  // older findings have no such field
    expect("wrong", record.at("wrong").get<double>(), wrong(hypothesis, conclusion), problems);
  const Json& compare = data.at("compare");
  expect("claim_key", record.at("claim_key"),
         claim_key(data.at("experiment"), hypothesis, data.at("device"), data.at("subject"),
                   text_at(compare, "/time/0/scope"), data.at("selection")),
         problems);
  if (compare.is_null()) return;
  verify_compare(compare, "compare", problems);
  Session ratios;
  for (const Json& part : compare.value("parts", Json::array())) {
    verify_compare(part, fmt::format("compare.parts.{}", ratios.size()), problems);
    Json whole = part;
    for (const char* known : {"baseline", "contender"}) whole[known] = compare.at(known);
    ratios.push_back(ratio_part(comparison_from_json(whole)));
  }
  if (ratios.empty()) return;
  const Spread prior = compare.contains("prior") ? compare.at("prior").get<Spread>() : conclusion.prior;
  const Pooled pooled = pool({&ratios, 1}, prior, true);
  expect("compare.ratio", compare.at("ratio"), pooled.value, problems);
  expect("compare.ci_lo", compare.at("ci_lo"), pooled.ci_lo, problems);
  expect("compare.ci_hi", compare.at("ci_hi"), pooled.ci_hi, problems);
}

/// The kernel sources of the tree (source_root()), read once.
class KernelTexts {
 public:
  KernelTexts() {
    for (const std::string& path : kernel_files()) files_.push_back({path, text_of(path)});
  }
  bool empty() const { return files_.empty(); }

  /// Sets the paths of a source and of its fragments, which a record's key does not name, to files with which the
  /// source has the hash `sha256`. Returns false if there are no such files. `at`: the first part without a file; part
  /// 0 is the source, part n its fragment n - 1.
  bool name_files(KernelSource& source, const std::string& sha256, size_t at = 0) {
    if (at > source.fragments.size()) {
      try {
        return source_sha256(source, [this](const KernelSource& part) { return text_once(part); }) == sha256;
      } catch (const BadInput&) {
        return false;  // an included file is missing, so the record's source was made of other files
      }
    }
    KernelSource& part = at == 0 ? source : source.fragments[at - 1];
    return std::ranges::any_of(files_, [&](const SourceFile& file) {
      part.path = file.path;
      return defines(file, part.entry) && name_files(source, sha256, at + 1);
    });
  }

 private:
  /// A header may define an entry. A kernel that includes a header which exists only as a replaced text has its own
  /// entry.
  static std::string text_of(const std::string& path) {
    try {
      return expanded_text({.path = path, .entry = ""});
    } catch (const BadInput&) {
      return read_source({}, path);
    }
  }
  static bool defines(const SourceFile& file, const std::string& entry) {
    return file.text.find(is_machine_code(file.path) ? entry : entry + "(") != file.text.npos;
  }
  /// identifying_text(), once for each file and its replaced headers.
  std::string text_once(const KernelSource& source) {
    const auto place = texts_.find({source.path, source.includes});
    if (place != texts_.end()) return place->second;
    return texts_.emplace(std::pair(source.path, source.includes), identifying_text(source)).first->second;
  }

  std::vector<SourceFile> files_;
  std::map<std::pair<std::string, std::map<std::string, std::string>>, std::string> texts_;
};

/// Whether some of the findings or runs are supported and others refuted.
bool opposed(const auto& all) {
  const auto has = [&](State state) {
    return std::ranges::any_of(all, [&](const auto& one) { return one.state == name(state); });
  };
  return has(State::supported) && has(State::refuted);
}

/// Why some of these findings of one claim are supported and others refuted.
Opposition opposition(const std::vector<Record>& findings, const Rans& rans) {
  std::map<std::string, std::vector<Run>> alike;  // runs with the same code and conditions
  for (const Record& finding : findings) {
    Run run = run_of(finding, finding.joined(), rans);
    alike[run.conditions + "\n" + run.code].push_back(std::move(run));
  }
  bool same = false;
  for (const auto& [code, runs] : alike) {
    if (!opposed(runs)) continue;
    same = true;
    const Record& any = findings.front();
    std::vector<Session> sessions;
    bool relative = true;
    double unit = 0;
    for (const Run& run : runs) {
      sessions.push_back(run.session);
      relative &= run.relative;
      unit = std::max(unit, run.unit);
    }
    const Pooled pooled =
        pool(sessions, spread_of(any.device, any.experiment, any.topic, runs.front().kind), relative, unit);
    for (const Session& session : sessions) {
      const double value = pool({&session, 1}, {}, relative, unit).value;
      if (value < pooled.next_lo || value > pooled.next_hi) return Opposition::contradiction;
    }
  }
  return same ? Opposition::spread : Opposition::changed;
}

}  // namespace

std::vector<std::string> verify_record(const Record& record, const Json& json) {
  Problems problems = check_schema(json);
  if (!problems.empty()) return problems;  // the other checks rely on the schema
  problems = check_units(json);
  if (const std::string id = id_of_line(record.line, record.id); id != record.id) {
    problems.push_back(fmt::format("id: is {}, computed again from the record's line {}", record.id, id));
  }
  if (record.kind == "measurement") verify_measurement(json, problems);
  if (record.kind == "finding") verify_finding(json, problems);
  return problems;
}

Freshness freshness(const Json& pipeline) {
  static KernelTexts kernels;
  static std::map<std::array<Json, 3>, Freshness> known;  // measurements share kernels
  const auto [place, added] = known.try_emplace(
      {pipeline.at("key"), pipeline.at("source_sha256"), pipeline.value("hooks", Json())}, Freshness::unknown);
  if (!added) return place->second;
  std::vector<SourceFile> hooks;
  for (const Json& hook : pipeline.value("hooks", Json::array())) hooks.push_back({hook.at("file"), hook.at("text")});
  std::optional<KernelSource> source = parse_key(pipeline.at("key").get<std::string>(), hooks);
  if (source && !kernels.empty()) {
    const bool same = kernels.name_files(*source, pipeline.at("source_sha256"));
    place->second = same ? Freshness::current : Freshness::changed;
  }
  return place->second;
}

std::pair<Freshness, std::string> age_of(const Json& measurement) {
  std::pair<Freshness, std::string> worst = {Freshness::current, ""};
  for (const Json& pipeline : kernels_of(measurement)) {
    if (const Freshness state = freshness(pipeline); state >= worst.first) worst = {state, pipeline.at("key")};
  }
  if (worst.second.empty()) worst.first = Freshness::unknown;
  return worst;
}

bool of_today(const Json& measurement) {
  const auto [state, kernel] = age_of(measurement);
  return kernel.empty() || state == Freshness::current;
}

int64_t Verification::count(Opposition why) const { return std::ranges::count(opposed, why, &OpposedClaim::why); }

Verification verify(const Store& store) {
  Verification result;
  std::map<std::string, std::pair<Freshness, std::string>> ages;  // by the measurement's id
  Rans rans;
  std::map<std::string, std::vector<Record>> claims;             // by claim_key
  std::map<std::string, std::vector<std::string>> measurements;  // their ids, by the id of the finding
  for (Record& record : store.list({})) {
    ++result.records;
    const Json json = record.json();
    for (std::string& text : verify_record(record, json)) result.problems.push_back({record.id, std::move(text)});
    if (record.kind == "measurement") {
      ages[record.id] = age_of(json);
      rans[record.id] = ran(json);
    }
    if (record.kind == "finding") {
      measurements[record.id] = json.at("data").at("measurements").get<std::vector<std::string>>();
      claims[record.claim_key].push_back(std::move(record));
    }
  }

  for (auto& [key, findings] : claims) {
    if (!opposed(findings)) continue;
    result.opposed.push_back({key, findings, opposition(findings, rans)});
  }

  /// The worst state of the finding's kernels, and the key of the last kernel in this state.
  const auto oldest = [&](const Record& finding) {
    std::pair<Freshness, std::string> worst = {Freshness::current, ""};
    for (const std::string& id : measurements.at(finding.id)) {
      const auto own = ages.find(id);
      if (own != ages.end() && !own->second.second.empty() && own->second.first >= worst.first) worst = own->second;
    }
    if (worst.second.empty()) worst.first = Freshness::unknown;  // no kernel is known
    return worst;
  };
  for (const auto& [key, findings] : claims) {
    std::string latest_fresh;  // time of the latest finding that counts as fresh
    std::vector<std::pair<Freshness, std::string>> found;
    for (const Record& finding : findings) {
      found.push_back(oldest(finding));
      if (found.back().first == Freshness::current) latest_fresh = std::max(latest_fresh, finding.ts);
    }
    for (size_t i = 0; i < findings.size(); ++i) {
      const Record& finding = findings[i];
      if (found[i].first != Freshness::changed) {
        ++(found[i].first == Freshness::current ? result.fresh : result.unknown);
      } else if (!latest_fresh.empty() && finding.ts <= latest_fresh) {
        ++result.superseded;
      } else {
        result.stale.push_back({finding.id, fmt::format("{} ({}): {} has other source code today", finding.title,
                                                        finding.device, found[i].second)});
      }
    }
  }
  return result;
}

}  // namespace attn::kb
