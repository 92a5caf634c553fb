#include "common/records/finding.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/base/sha256.h"

namespace attn {
namespace {

constexpr double ceiling_slack = 1.05;  // two measurements of the same rate differ by a few per cent
constexpr double clean_cv = 0.05;

/// The text of a record: one line without its end. Bytes that are not UTF-8 (of a compiler's message, say) are
/// replaced.
std::string line_of(const Json& record) { return record.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// nlohmann would write NaN and infinity as null without a word. Throws std::runtime_error with the path of the first.
void require_finite(const Json& json, const std::string& path) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) {
    throw std::runtime_error(fmt::format("{} is not a finite number and cannot be recorded", path));
  }
  if (json.is_structured()) {
    for (const auto& [key, value] : json.items()) require_finite(value, path + "." + key);
  }
}

Json to_json(const Check& check) {
  return {{"ok", check.ok},
          {"max_abs", check.max_abs},
          {"max_rel", check.max_rel},
          {"rows_checked", check.rows_checked},
          {"worst", check.worst}};
}

Check check_from_json(const Json& json) {
  return {.ok = json.at("ok"),
          .max_abs = json.at("max_abs"),
          .max_rel = json.at("max_rel"),
          .rows_checked = json.at("rows_checked"),
          .worst = json.at("worst")};
}

Json to_json(const Timing& timing) {
  return {{"scope", name(timing.scope)},
          {"n", timing.n},
          {"rounds", timing.rounds},
          {"median_s", timing.median_s},
          {"ci_lo_s", timing.ci_lo_s},
          {"ci_hi_s", timing.ci_hi_s},
          {"cv", timing.cv},
          {"min_s", timing.min_s},
          {"stop", timing.stop}};
}

Scope parse_scope(const std::string& text) {
  for (const Scope scope : {Scope::device_hot, Scope::device_cold, Scope::host}) {
    if (text == name(scope)) return scope;
  }
  throw BadInput(fmt::format("scope '{}' is not allowed; one of device_hot, device_cold, host", text));
}

Timing timing_from_json(const Json& json) {
  return {.scope = parse_scope(json.at("scope")),
          .n = json.at("n"),
          .rounds = json.at("rounds"),
          .median_s = json.at("median_s"),
          .ci_lo_s = json.at("ci_lo_s"),
          .ci_hi_s = json.at("ci_hi_s"),
          .cv = json.at("cv"),
          .min_s = json.at("min_s"),
          .stop = json.at("stop")};
}

/// Times as a list; a scope that was interrupted before its first round has nothing to say.
Json to_json(const std::vector<Timing>& times) {
  Json list = Json::array();
  for (const Timing& timing : times) {
    if (timing.n > 0) list.push_back(to_json(timing));
  }
  return list;
}

/// `rate` as a share of `ceiling` in per cent; null where there is no ceiling.
Json percent(double rate, double ceiling) { return ceiling > 0 ? Json(100 * rate / ceiling) : Json(nullptr); }

void require_below(double rate, double ceiling, const char* unit) {
  if (!(ceiling > 0) || rate <= ceiling_slack * ceiling) return;
  throw std::runtime_error(
      fmt::format("{:.4g} {} is above the ceiling of {:.4g} measured in this run", rate, unit, ceiling));
}

const Timing* timing_of(const Measurement& measurement, Scope preferred, Scope otherwise) {
  const Timing* timing = measurement.timing(preferred);
  return timing ? timing : measurement.timing(otherwise);
}

Json rate_of(const Measurement& measurement, const Ceilings& ceilings) {
  const bool timed = timing_of(measurement, Scope::device_hot, Scope::device_cold);
  if (measurement.status != "ok" || !measurement.work || !timed) return nullptr;
  const double matrix_ceiling = ceilings.matrix_tflops(measurement.dtype);
  require_below(measurement.tflops(), matrix_ceiling, "TFLOP/s");
  // Hot data may come from caches, which copy faster than memory does; cold data may not.
  if (measurement.timing(Scope::device_cold)) {
    require_below(measurement.gbps(), ceilings.copy_gbps, "GB/s");
  }
  Json rate = {{"tflops", measurement.tflops()}, {"gbps", measurement.gbps()},
               {"pct_matrix_ceiling", nullptr},  {"pct_matrix_ci_lo", nullptr},
               {"pct_matrix_ci_hi", nullptr},    {"pct_copy_ceiling", percent(measurement.gbps(), ceilings.copy_gbps)}};
  if (const auto& pct = measurement.matrix_pct) {
    rate["pct_matrix_ceiling"] = pct->value;
    rate["pct_matrix_ci_lo"] = pct->ci_lo;
    rate["pct_matrix_ci_hi"] = pct->ci_hi;
  }
  return rate;
}

Json to_json(const Comparison& comparison) {
  return {{"baseline", comparison.baseline.json()}, {"contender", comparison.contender.json()},
          {"ratio", comparison.ratio.value},        {"ci_lo", comparison.ratio.ci_lo},
          {"ci_hi", comparison.ratio.ci_hi},        {"aa_ratio", comparison.aa.value},
          {"aa_ci_lo", comparison.aa.ci_lo},        {"aa_ci_hi", comparison.aa.ci_hi},
          {"aa_floor", comparison.aa_floor()},      {"cv", comparison.cv},
          {"time", to_json(comparison.time)}};
}

/// The value at a dotted path; elements of arrays by index.
const Json& at_path(const Json& data, std::string_view path) {
  std::string pointer = fmt::format("/{}", path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  try {
    return data.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    throw std::out_of_range(fmt::format("'{}' is not in the data", path));
  }
}

/// One placeholder: "path" or "path:format".
std::string render_placeholder(std::string_view placeholder, const Json& data) {
  const size_t colon = placeholder.find(':');
  const Json& value = at_path(data, placeholder.substr(0, colon));
  const std::string spec(colon == placeholder.npos ? "" : placeholder.substr(colon + 1));
  const bool as_double = !spec.empty() && std::strchr("eEfFgG", spec.back());
  const auto format = [&](const auto& v) { return fmt::format(fmt::runtime("{:" + spec + "}"), v); };
  try {
    if (value.is_string()) return format(value.get_ref<const std::string&>());
    if (value.is_boolean()) return format(value.get<bool>());
    if (value.is_number_float() || (value.is_number() && as_double)) return format(value.get<double>());
    if (value.is_number_unsigned()) return format(value.get<uint64_t>());
    if (value.is_number_integer()) return format(value.get<int64_t>());
  } catch (const fmt::format_error& error) {
    throw std::invalid_argument(fmt::format("'{{{}}}': {}", placeholder, error.what()));
  }
  throw std::out_of_range(fmt::format("'{}' is no text, number or truth value in the data", placeholder));
}

bool holds(double value, const std::string& op, double threshold) {
  if (op == "<") return value < threshold;
  if (op == "<=") return value <= threshold;
  if (op == ">") return value > threshold;
  if (op == ">=") return value >= threshold;
  throw std::invalid_argument(fmt::format("'{}' is not allowed; one of <, <=, >, >=", op));
}

/// An exclusive lock on an open file, for as long as this lives. Where the file system has none, appends still go to
/// the end of the file; only the repair of a torn line could then meet another process.
class FileLock {
 public:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {
    while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { flock(descriptor_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

double Ceilings::matrix_tflops(DType dtype) const {
  switch (dtype) {
    case DType::f32:
      return std::max(f32_tflops, tf32_tflops / tf32_of_f32);
    case DType::f16:
      return f16_tflops;
    case DType::bf16:
      return bf16_tflops;
  }
  throw std::logic_error("matrix_tflops: no such dtype");
}

Json Ceilings::json() const {
  return {{"copy_gbps", copy_gbps},
          {"f32_tflops", f32_tflops},
          {"f16_tflops", f16_tflops},
          {"bf16_tflops", bf16_tflops},
          {"tf32_tflops", tf32_tflops}};
}

const Timing* Measurement::timing(Scope scope) const {
  const auto found =
      std::find_if(time.begin(), time.end(), [&](const Timing& t) { return t.scope == scope && t.n > 0; });
  return found == time.end() ? nullptr : &*found;
}

const Timing* Measurement::main_timing() const { return timing_of(*this, Scope::device_hot, Scope::host); }

double Measurement::tflops() const {
  const Timing* timed = timing_of(*this, Scope::device_hot, Scope::device_cold);
  return timed && work ? work->flops / timed->median_s / 1e12 : 0;
}

double Measurement::gbps() const {
  const Timing* timed = timing_of(*this, Scope::device_cold, Scope::device_hot);
  return timed && work ? work->bytes / timed->median_s / 1e9 : 0;
}

std::map<std::string, Results> grouped(const Results& results, const std::set<std::string>& free) {
  std::map<std::string, Results> groups;
  for (const Measurement* result : results) groups[result->config.key_without(free)].push_back(result);
  return groups;
}

Json to_json(const Measurement& measurement, const Ceilings& ceilings) {
  Json record = {{"schema", "measurement/1"},
                 {"id", ""},
                 {"run_id", measurement.run_id},
                 {"experiment", measurement.experiment},
                 {"device", measurement.device},
                 {"case", measurement.config.json()},
                 {"dtype", name(measurement.dtype)},
                 {"status", measurement.status},
                 {"reason", measurement.reason},
                 {"check", measurement.check ? to_json(*measurement.check) : Json(nullptr)},
                 {"work", nullptr},
                 {"time", to_json(measurement.time)},
                 {"rate", rate_of(measurement, ceilings)},
                 {"pipeline", measurement.pipeline},
                 {"clocks", measurement.clocks},
                 {"values", measurement.values}};
  if (measurement.work) record["work"] = {{"flops", measurement.work->flops}, {"bytes", measurement.work->bytes}};
  require_finite(record, "measurement");
  record["id"] = record_id(record);
  return record;
}

Measurement measurement_from_json(const Json& json) {
  if (json.at("schema") != "measurement/1") throw BadInput("the record is no measurement/1");
  Measurement measurement;
  measurement.id = json.at("id");
  measurement.run_id = json.at("run_id");
  measurement.experiment = json.at("experiment");
  measurement.device = json.at("device");
  measurement.config = Case::from_json(json.at("case"));
  measurement.dtype = parse_dtype(json.at("dtype").get<std::string>());
  measurement.status = json.at("status");
  measurement.reason = json.at("reason");
  if (!json.at("check").is_null()) measurement.check = check_from_json(json.at("check"));
  if (const Json& work = json.at("work"); !work.is_null()) measurement.work = Work{work.at("flops"), work.at("bytes")};
  for (const Json& timing : json.at("time")) measurement.time.push_back(timing_from_json(timing));
  if (const Json& rate = json.at("rate"); rate.is_object() && rate.value("pct_matrix_ci_lo", Json()).is_number()) {
    measurement.matrix_pct = {rate.at("pct_matrix_ceiling"), rate.at("pct_matrix_ci_lo"), rate.at("pct_matrix_ci_hi")};
  }
  measurement.pipeline = json.at("pipeline");
  measurement.clocks = json.at("clocks");
  if (json.contains("values")) measurement.values = json["values"];
  return measurement;
}

std::string_view name(State state) {
  switch (state) {
    case State::supported:
      return "supported";
    case State::refuted:
      return "refuted";
    case State::inconclusive:
      return "inconclusive";
  }
  throw std::logic_error("name(State): no such state");
}

double Comparison::aa_floor() const { return std::max(std::abs(aa.ci_lo - 1), std::abs(aa.ci_hi - 1)); }

Verdict judge(const Hypothesis& hypothesis, const Conclusion& conclusion) {
  const auto& [value, ci_lo, ci_hi] = conclusion.estimate;
  const double threshold = hypothesis.threshold;
  if (!conclusion.correct) return {State::inconclusive, "a result behind it failed its check"};

  const std::string interval = fmt::format("{:.4g} [{:.4g}, {:.4g}]", value, ci_lo, ci_hi);
  const bool lo_holds = holds(ci_lo, hypothesis.op, threshold);
  if (!(ci_lo <= ci_hi) || lo_holds != holds(ci_hi, hypothesis.op, threshold)) {
    return {State::inconclusive, fmt::format("the interval of {} crosses {:.4g}", interval, threshold)};
  }
  // What matters is the distance to the threshold, not to 1: no effect at all soundly refutes "10 % slower". The floor
  // is relative to the time, and so grows with a threshold above 1.
  const double floor = conclusion.aa_floor * std::max(1.0, std::abs(threshold));
  if (std::abs(value - threshold) < floor) {
    return {State::inconclusive,
            fmt::format("{} is closer to {:.4g} than the noise floor of {:.2g}", interval, threshold, floor)};
  }
  return {lo_holds ? State::supported : State::refuted,
          fmt::format("{} {} {} {:.4g}", interval, lo_holds ? "is" : "is not", hypothesis.op, threshold)};
}

double confidence(const Verdict& verdict, const Conclusion& conclusion, bool replicated) {
  if (!conclusion.correct) return 0;
  if (verdict.state == State::inconclusive) return 0.5;
  if (!(conclusion.cv < clean_cv)) return 0.6;
  return replicated ? 0.95 : 0.8;
}

std::string render(const std::string& text, const Json& data) {
  std::string rendered;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') {
      rendered += c;
    } else if (i + 1 < text.size() && text[i + 1] == c) {
      rendered += c;
      ++i;
    } else {
      const size_t end = c == '{' ? text.find('}', i) : text.npos;
      if (end == text.npos)
        throw std::invalid_argument(fmt::format("unmatched '{}' in \"{}\"; write it twice", c, text));
      rendered += render_placeholder(std::string_view(text).substr(i + 1, end - i - 1), data);
      i = end;
    }
  }
  return rendered;
}

Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, bool replicated, const Json& run, const Json& env) {
  const Verdict verdict = judge(hypothesis, conclusion);
  Json data = {{"experiment", experiment},
               {"device", device},
               {"subject", conclusion.subject},
               {"hypothesis",
                {{"id", hypothesis.id},
                 {"text", hypothesis.text},
                 {"metric", hypothesis.metric},
                 {"op", hypothesis.op},
                 {"threshold", hypothesis.threshold},
                 {"origin", hypothesis.origin}}},
               {"verdict", {{"state", name(verdict.state)}, {"reason", verdict.reason}}},
               {"estimate",
                {{"value", conclusion.estimate.value},
                 {"ci_lo", conclusion.estimate.ci_lo},
                 {"ci_hi", conclusion.estimate.ci_hi},
                 {"aa_floor", conclusion.aa_floor},
                 {"cv", conclusion.cv}}},
               {"correct", conclusion.correct},
               {"replicated", replicated},
               {"compare", conclusion.compare ? to_json(*conclusion.compare) : Json(nullptr)},
               {"values", conclusion.values},
               {"measurements", conclusion.measurements},
               {"run", run},
               {"env", env},
               {"template", {{"title", conclusion.title}, {"content", conclusion.content}}}};
  require_finite(data, fmt::format("{}/{}: data", experiment, hypothesis.id));

  Json finding = {{"domain", "attention_kernels"},
                  {"title", render(conclusion.title, data)},
                  {"content", render(conclusion.content, data)},
                  {"tags", conclusion.tags},
                  {"confidence", confidence(verdict, conclusion, replicated)},
                  {"source", "attention-proto/" + experiment},
                  {"schema", "finding/1"},
                  {"id", ""},
                  {"claim_key", claim_key(experiment, hypothesis.id, device, conclusion.subject)},
                  {"data", std::move(data)}};
  finding["id"] = record_id(finding);
  return finding;
}

std::string record_id(const Json& record) {
  Json content = record;
  content.erase("id");
  return sha256(line_of(content)).substr(0, 16);
}

std::string claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                      const std::string& subject) {
  return fmt::format("{}/{}/{}{}{}", experiment, hypothesis, device, subject.empty() ? "" : "/", subject);
}

RecordFile::RecordFile(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    throw BadInput(fmt::format("cannot append to '{}': {}; name a file that can be written", path_, strerror(errno)));
  }
}

RecordFile::~RecordFile() { close(descriptor_); }

void RecordFile::append(const Json& record) {
  std::string line = line_of(record) + '\n';
  const FileLock lock(descriptor_);
  struct stat status{};
  fstat(descriptor_, &status);
  const bool regular = S_ISREG(status.st_mode);
  char last = '\n';
  if (regular && status.st_size > 0 && pread(descriptor_, &last, 1, status.st_size - 1) == 1 && last != '\n') {
    line.insert(line.begin(), '\n');  // ends a line that a crash left torn
  }

  ssize_t written;
  do {
    written = write(descriptor_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  const int error = written < 0 ? errno : ENOSPC;  // a file takes less than it is given where the room ends
  const bool whole = !regular || ftruncate(descriptor_, status.st_size) == 0;
  throw std::runtime_error(
      fmt::format("cannot append to '{}': {}{}", path_, strerror(error), whole ? "" : "; its last line is torn"));
}

void emit_finding(RecordFile& file, const Json& finding) { file.append(finding); }

std::vector<Json> read_records(const std::string& path, std::vector<std::string>& problems) {
  if (!std::filesystem::exists(path)) return {};
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) throw BadInput(fmt::format("cannot read '{}'", path));
  std::vector<Json> records;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    Json record = Json::parse(line, nullptr, false);
    if (record.is_object()) {
      records.push_back(std::move(record));
    } else {
      problems.push_back(fmt::format("line {}: {}, skipped", number,
                                     file.eof() ? "torn (the run that wrote it ended early)" : "no JSON object"));
    }
  }
  return records;
}

}  // namespace attn
