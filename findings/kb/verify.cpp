#include "findings/kb/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/source/kernel_source.h"
#include "findings/kb/check.h"

namespace attn::kb {
namespace {

using Problems = std::vector<std::string>;

/// A recorded figure that follows from other figures may differ from the computed figure by rounding only.
constexpr double rounding = 1e-9;

bool agree(double a, double b) { return std::abs(a - b) <= rounding * std::max(std::abs(a), std::abs(b)); }

void verify_interval(const Json& json, const std::string& path, const char* lo, const char* hi, Problems& problems) {
  const double low = json.at(lo), high = json.at(hi);
  if (!(low <= high))
    problems.push_back(fmt::format("{}: the interval [{:.6g}, {:.6g}] runs backwards", path, low, high));
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
        fmt::format("rate.{}: {:.6g}, but work.{} over median_s is {:.6g}", rate, stated, work, expected));
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

void verify_finding(const Json& record, Problems& problems) {
  const Json& data = record.at("data");
  for (const char* field : {"title", "content"}) {
    try {
      expect(field, record.at(field), render(data.at("template").at(field), data), problems);
    } catch (const std::exception& error) {
      problems.push_back(fmt::format("{}: its template cannot be rendered: {}", field, error.what()));
    }
  }

  const Json& stated = data.at("hypothesis");
  const Json& estimate = data.at("estimate");
  const Hypothesis hypothesis{.id = stated.at("id"),
                              .text = stated.at("text"),
                              .metric = stated.at("metric"),
                              .op = stated.at("op"),
                              .threshold = stated.at("threshold"),
                              .origin = stated.at("origin")};
  Conclusion conclusion;
  conclusion.estimate = {estimate.at("value"), estimate.at("ci_lo"), estimate.at("ci_hi")};
  conclusion.aa_floor = estimate.at("aa_floor");
  conclusion.cv = estimate.at("cv");
  conclusion.correct = data.at("correct");
  const Verdict verdict = judge(hypothesis, conclusion);
  expect("verdict", data.at("verdict").at("state"), std::string(name(verdict.state)), problems);
  expect("verdict.reason", data.at("verdict").at("reason"), verdict.reason, problems);
  if (verdict.state == State::inconclusive) expect("advice", data.value("advice", ""), "", problems);
  const double sure = confidence(verdict, conclusion, data.at("replicated"));
  if (record.at("confidence") != sure) {
    problems.push_back(
        fmt::format("confidence: is {}, computed again {}", record.at("confidence").get<double>(), sure));
  }
  expect("claim_key", record.at("claim_key"),
         claim_key(data.at("experiment"), hypothesis.id, data.at("device"), data.at("subject")), problems);

  verify_interval(estimate, "estimate", "ci_lo", "ci_hi", problems);
  const Json& compare = data.at("compare");
  if (compare.is_null()) return;
  verify_interval(compare, "compare", "ci_lo", "ci_hi", problems);
  verify_interval(compare, "compare (A/A)", "aa_ci_lo", "aa_ci_hi", problems);
  verify_times(compare.at("time"), "compare.time", problems);
  const double floor =
      std::max(std::abs(compare.at("aa_ci_lo").get<double>() - 1), std::abs(compare.at("aa_ci_hi").get<double>() - 1));
  if (!agree(compare.at("aa_floor"), floor)) {
    problems.push_back(fmt::format("compare.aa_floor: is {:.6g}, by the A/A interval {:.6g}",
                                   compare.at("aa_floor").get<double>(), floor));
  }
}

}  // namespace

std::vector<std::string> verify_record(const Record& record) {
  const Json json = record.json();
  Problems problems = check_schema(json);
  if (!problems.empty()) return problems;  // the other checks rely on the schema
  problems = check_units(json);
  if (const std::string id = id_of_line(record.line, record.id); id != record.id) {
    problems.push_back(fmt::format("id: is {}, by its line {}", record.id, id));
  }
  if (record.kind == "measurement") verify_measurement(json, problems);
  if (record.kind == "finding") verify_finding(json, problems);
  return problems;
}

std::vector<SourceFile> kernel_texts() {
  std::vector<SourceFile> found;
  for (const std::string& path : kernel_files()) found.push_back({path, read_source({}, path)});
  return found;
}

namespace {

/// Finds the files of part number `at` and of the later parts. Part 0 is the source; part n is its fragment n - 1.
bool name_files_from(size_t at, KernelSource& source, const std::string& sha256,
                     const std::vector<SourceFile>& kernels) {
  if (at > source.fragments.size()) {
    try {
      return source_sha256(source) == sha256;
    } catch (const BadInput&) {
      return false;  // an included file is missing, so the record's source was made of other files
    }
  }
  KernelSource& part = at == 0 ? source : source.fragments[at - 1];
  return std::any_of(kernels.begin(), kernels.end(), [&](const SourceFile& file) {
    const std::string defined = part.entry + (is_machine_code(file.path) ? "" : "(");
    if (file.text.find(defined) == file.text.npos) return false;
    part.path = file.path;
    return name_files_from(at + 1, source, sha256, kernels);
  });
}

}  // namespace

bool name_files(KernelSource& source, const std::string& sha256, const std::vector<SourceFile>& kernels) {
  return name_files_from(0, source, sha256, kernels);
}

SameCode same_code() {
  SameCode found;
  std::istringstream lines(read_file(source_root() + "/findings/same_code.txt").value_or(""));
  std::string recorded, today;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("#") && std::istringstream(line) >> recorded >> today) found[recorded] = today;
  }
  return found;
}

Freshness freshness(const Json& pipeline, const SameCode& same) {
  static const std::vector<SourceFile> kernels = kernel_texts();
  std::optional<KernelSource> source = parse_key(pipeline.at("key").get<std::string>());
  if (!source || kernels.empty()) return Freshness::unknown;
  const std::string sha256 = pipeline.at("source_sha256");
  const auto today = same.find(sha256);
  const bool found =
      name_files(*source, sha256, kernels) || (today != same.end() && name_files(*source, today->second, kernels));
  return found ? Freshness::current : Freshness::changed;
}

std::vector<Json> kernels_of(const Json& measurement) {
  std::vector<Json> found;
  for (const Json& phase : measurement.value("phases", Json::array())) found.push_back(phase.value("pipeline", Json()));
  if (found.empty()) found.push_back(measurement.value("pipeline", Json()));
  std::erase_if(found, [](const Json& pipeline) { return !pipeline.is_object(); });
  return found;
}

Verification verify(const Store& store) {
  Verification result;
  std::map<std::string, std::vector<Json>> kernels;  // kernels of each measurement, by the measurement's id
  std::map<std::pair<std::string, std::string>, Freshness> known;  // by key and hash; measurements share kernels
  const std::vector<Record> records = store.list({});
  std::map<std::string, std::vector<Record>> claims;
  const SameCode same = same_code();
  for (const Record& record : records) {
    ++result.records;
    for (std::string& text : verify_record(record)) result.problems.push_back({record.id, std::move(text)});
    if (record.kind == "measurement") kernels[record.id] = kernels_of(record.json());
    if (record.kind == "finding") claims[record.claim_key].push_back(record);
  }

  for (auto& [key, findings] : claims) {
    const auto has = [&](const char* state) {
      return std::any_of(findings.begin(), findings.end(), [&](const Record& one) { return one.state == state; });
    };
    if (has("supported") && has("refuted")) result.contradictions.push_back({key, findings});
  }

  for (const Record& record : records) {
    if (record.kind != "finding") continue;
    bool current = false;
    std::string changed;
    for (const Json& id : record.json().value("/data/measurements"_json_pointer, Json::array())) {
      for (const Json& pipeline : kernels[id.get<std::string>()]) {
        const std::string key = pipeline.at("key");
        const auto [place, added] =
            known.try_emplace({key, pipeline.at("source_sha256").get<std::string>()}, Freshness::unknown);
        if (added) place->second = freshness(pipeline, same);
        current |= place->second == Freshness::current;
        if (place->second == Freshness::changed) changed = key;
      }
    }
    if (!changed.empty()) {
      result.stale.push_back(
          {record.id, fmt::format("{} ({}): {} has other source code today", record.title, record.device, changed)});
    } else {
      ++(current ? result.fresh : result.unknown);
    }
  }
  return result;
}

}  // namespace attn::kb
