#include "findings/kb/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

namespace attn::kb {
namespace {

using Words = std::vector<std::string_view>;

constexpr double infinity = std::numeric_limits<double>::infinity();

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// An object of a record under inspection. Each call checks one required field and adds its problems to the list.
class Fields {
 public:
  Fields(const Json& object, std::string path, std::vector<std::string>& problems)
      : object_(object), path_(std::move(path)), problems_(problems) {}

  /// The field. Null, and one more problem, where the field is missing.
  const Json* get(const char* key) const {
    const auto field = object_.find(key);
    if (field != object_.end()) return &*field;
    say(key, "is missing");
    return nullptr;
  }

  void text(const char* key, bool may_be_empty = false) const {
    const Json* field = get(key);
    if (!field) return;
    if (!field->is_string()) return say(key, "must be a text");
    if (!may_be_empty && field->get_ref<const std::string&>().empty()) say(key, "must not be empty");
  }

  void hex(const char* key, size_t digits) const {
    const Json* field = get(key);
    if (field && !(field->is_string() && is_hex(field->get_ref<const std::string&>(), digits))) {
      say(key, fmt::format("must be {} hex digits", digits));
    }
  }

  void one_of(const char* key, const Words& allowed) const {
    const Json* field = get(key);
    if (!field) return;
    const bool known = field->is_string() &&
                       std::find(allowed.begin(), allowed.end(), field->get_ref<const std::string&>()) != allowed.end();
    if (!known) say(key, fmt::format("{} is not allowed; one of {}", shown(*field), fmt::join(allowed, ", ")));
  }

  void flag(const char* key) const {
    const Json* field = get(key);
    if (field && !field->is_boolean()) say(key, "must be true or false");
  }

  void number(const char* key, double min = -infinity, double max = infinity, bool may_be_null = false) const {
    const Json* field = get(key);
    if (!field || (may_be_null && field->is_null())) return;
    if (!field->is_number()) return say(key, "must be a number");
    const double value = field->get<double>();
    if (!(value >= min && value <= max)) say(key, fmt::format("{} is out of range", shown(*field)));
  }

  void positive(const char* key) const { number(key, std::numeric_limits<double>::denorm_min()); }

  void count(const char* key, double min = 0, bool may_be_null = false) const {
    const Json* field = get(key);
    if (!field || (may_be_null && field->is_null())) return;
    // JSON Schema takes 1.0 for an integer.
    const bool whole = field->is_number() && field->get<double>() == std::floor(field->get<double>());
    if (!whole || field->get<double>() < min) say(key, fmt::format("must be an integer of at least {}", min));
  }

  /// Calls `inspect` with an object field, or skips a null field that may be null.
  template <typename Inspect>
  void object(const char* key, bool may_be_null, Inspect inspect) const {
    const Json* field = get(key);
    if (!field || (may_be_null && field->is_null())) return;
    if (!field->is_object()) return say(key, may_be_null ? "must be an object or null" : "must be an object");
    inspect(Fields(*field, place(key), problems_));
  }

  /// Calls `inspect(element, path)` for each element of a list.
  template <typename Inspect>
  void list(const char* key, Inspect inspect) const {
    const Json* field = get(key);
    if (!field) return;
    if (!field->is_array()) return say(key, "must be a list");
    for (size_t i = 0; i < field->size(); ++i) inspect((*field)[i], fmt::format("{}.{}", place(key), i));
  }

  void texts(const char* key, bool may_be_empty = false) const {
    list(key, [&](const Json& element, const std::string& where) {
      if (!element.is_string() || (!may_be_empty && element.get_ref<const std::string&>().empty())) {
        problems_.push_back(where + ": must be a text");
      }
    });
  }

  bool has(const char* key) const { return object_.contains(key); }
  const Json& json() const { return object_; }
  const std::string& path() const { return path_; }
  std::vector<std::string>& problems() const { return problems_; }
  void say(const char* key, const std::string& what) const {
    problems_.push_back(fmt::format("{}: {}", place(key), what));
  }

 private:
  static std::string shown(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
  }
  std::string place(const char* key) const { return path_.empty() ? key : path_ + "." + key; }

  const Json& object_;
  std::string path_;
  std::vector<std::string>& problems_;
};

void check_case(const Fields& fields) {
  for (const auto& [axis, value] : fields.json().items()) {
    if (axis.empty() || axis.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != axis.npos || axis[0] < 'a' ||
        axis[0] > 'z') {
      fields.say(axis.c_str(), "is no name of an axis");
    }
    if (!value.is_number_integer() && !value.is_string()) fields.say(axis.c_str(), "must be an integer or a text");
  }
}

void check_timing(const Json& json, const std::string& path, std::vector<std::string>& problems) {
  if (!json.is_object()) {
    problems.push_back(path + ": must be an object");
    return;
  }
  const Fields timing(json, path, problems);
  timing.one_of("scope", {"device_hot", "device_cold", "host"});
  timing.count("n", 1);
  timing.count("rounds", 1);
  for (const char* key : {"median_s", "ci_lo_s", "ci_hi_s", "min_s"}) timing.positive(key);
  timing.number("cv", 0);
  timing.one_of("stop", {"ci", "max", "budget", "interrupted"});
}

void check_timings(const Fields& fields, const char* key) {
  fields.list(key, [&](const Json& timing, const std::string& path) { check_timing(timing, path, fields.problems()); });
}

void check_pipeline(const Fields& pipeline) {
  pipeline.text("key");
  pipeline.hex("source_sha256", 64);
  pipeline.hex("code_sha256", 64);
  pipeline.count("registers", 0, true);
  pipeline.count("spill_bytes", 0, true);
  pipeline.count("threadgroup_bytes");
  if (pipeline.has("code_bytes")) pipeline.count("code_bytes", 0, true);
  pipeline.number("compile_s", 0);
  pipeline.one_of("cache", {"compiled", "disk", "archive"});
  for (const char* counts : {"instructions", "classes", "loop"}) {
    if (!pipeline.has(counts)) continue;
    pipeline.object(counts, true, [](const Fields& instructions) {
      for (const auto& item : instructions.json().items()) instructions.count(item.key().c_str(), 1);
    });
  }
}

void check_clocks(const Fields& clocks) {
  for (const char* key : {"core_mhz", "core_min_mhz", "memory_mhz", "power_w"}) {
    if (clocks.has(key)) clocks.number(key, 0, infinity, true);
  }
  if (clocks.has("temperature_c")) clocks.number("temperature_c", -100, 200, true);
  if (clocks.has("throttle_reasons")) clocks.texts("throttle_reasons");
  if (clocks.has("readings")) clocks.count("readings");
}

void check_measurement(const Fields& record) {
  record.hex("id", 16);
  for (const char* key : {"run_id", "experiment", "device"}) record.text(key);
  record.object("case", false, check_case);
  record.one_of("dtype", {"f32", "f16", "bf16"});
  record.one_of("status", {"ok", "skipped", "wrong", "failed", "timeout", "oom"});
  const bool ok = record.json().value("/status"_json_pointer, Json()) == "ok";
  record.text("reason", ok);
  record.object("check", !ok, [&](const Fields& check) {
    check.flag("ok");
    check.number("max_abs", 0);
    check.number("max_rel", 0);
    check.count("rows_checked");
    const bool passed = check.json().value("/ok"_json_pointer, Json()) == true;
    check.text("worst", passed);
    if (ok && !passed) check.say("ok", "must be true where the status is ok");
  });
  record.object("work", true, [](const Fields& work) {
    work.number("flops", 0);
    work.number("bytes", 0);
    if (work.has("bound")) work.one_of("bound", {"matrix", "memory"});
  });
  check_timings(record, "time");
  record.object("rate", true, [&](const Fields& rate) {
    if (!ok) rate.problems().emplace_back("rate: must be null where the status is not ok");
    rate.number("tflops", 0);
    rate.number("gbps", 0);
    rate.number("pct_matrix_ceiling", 0, infinity, true);
    rate.number("pct_copy_ceiling", 0, infinity, true);
    for (const char* key : {"pct_matrix_ci_lo", "pct_matrix_ci_hi", "pct_copy_ci_lo", "pct_copy_ci_hi",
                            "pct_read_ceiling", "pct_read_ci_lo", "pct_read_ci_hi"}) {
      if (rate.has(key)) rate.number(key, 0, infinity, true);
    }
    for (const char* key : {"gbps_ci_lo", "gbps_ci_hi"}) {
      if (rate.has(key)) rate.number(key, 0);
    }
  });
  record.object("pipeline", true, check_pipeline);
  if (record.has("log")) record.text("log");
  if (record.has("phases")) {
    record.list("phases", [&](const Json& phase, const std::string& path) {
      if (!phase.is_object()) return record.problems().push_back(path + ": must be an object");
      const Fields fields(phase, path, record.problems());
      fields.text("phase");
      fields.object("pipeline", false, check_pipeline);
      const Json& time = phase.value("/time"_json_pointer, Json());
      if (!time.is_null()) check_timing(time, path + ".time", record.problems());
    });
  }
  record.object("clocks", true, check_clocks);
  if (record.has("values")) record.object("values", true, [](const Fields&) {});
}

void check_compare(const Fields& compare) {
  compare.object("baseline", false, check_case);
  compare.object("contender", false, check_case);
  for (const char* key : {"ratio", "ci_lo", "ci_hi", "aa_ratio", "aa_ci_lo", "aa_ci_hi"}) compare.positive(key);
  compare.number("aa_floor", 0);
  compare.number("cv", 0);
  check_timings(compare, "time");
}

void check_run(const Fields& run) {
  run.text("id");
  run.text("ts");
  if (const Json* field = run.get("ts"); field && field->is_string()) {
    constexpr std::string_view pattern = "dddd-dd-ddTdd:dd:ddZ";
    const std::string& ts = field->get_ref<const std::string&>();
    const bool matches = std::equal(ts.begin(), ts.end(), pattern.begin(), pattern.end(), [](char c, char wanted) {
      return wanted == 'd' ? c >= '0' && c <= '9' : c == wanted;
    });
    if (!matches) run.say("ts", "must be like 2025-01-31T12:00:00Z");
  }
  run.texts("argv", true);
  if (const Json* argv = run.get("argv"); argv && argv->empty()) run.say("argv", "must not be empty");
  run.count("seed");
  run.text("replay");
}

void check_data(const Fields& data) {
  data.text("experiment");
  data.text("device");
  data.text("subject", true);
  data.object("hypothesis", false, [](const Fields& hypothesis) {
    for (const char* key : {"id", "text", "metric", "origin"}) hypothesis.text(key);
    hypothesis.one_of("op", {"<", "<=", ">", ">="});
    hypothesis.number("threshold");
  });
  data.object("verdict", false, [](const Fields& verdict) {
    verdict.one_of("state", {"supported", "refuted", "inconclusive"});
    verdict.text("reason");
  });
  if (data.has("advice")) data.text("advice", true);
  data.object("estimate", false, [](const Fields& estimate) {
    for (const char* key : {"value", "ci_lo", "ci_hi"}) estimate.number(key);
    estimate.number("aa_floor", 0);
    estimate.number("cv", 0);
  });
  data.flag("correct");
  data.flag("replicated");
  data.object("compare", true, check_compare);
  data.object("values", false, [](const Fields&) {});
  data.list("measurements", [&](const Json& id, const std::string& path) {
    if (!id.is_string() || !is_hex(id.get_ref<const std::string&>(), 16)) {
      data.problems().push_back(path + ": must be 16 hex digits");
    }
  });
  data.object("run", false, check_run);
  data.object("env", false, [](const Fields& env) {
    if (env.json().empty()) env.problems().push_back(env.path() + ": must not be empty");
  });
  data.object("template", false, [](const Fields& texts) {
    texts.text("title");
    texts.text("content");
  });
}

/// The fields that findings and notes share.
void check_knowledge(const Fields& record) {
  for (const char* key : {"domain", "title", "content", "source"}) record.text(key);
  record.texts("tags");
  if (const Json* tags = record.get("tags"); tags && std::set<Json>(tags->begin(), tags->end()).size() < tags->size()) {
    record.say("tags", "must not have a tag twice");
  }
  record.hex("id", 16);
}

void check_finding(const Fields& record) {
  check_knowledge(record);
  record.one_of("domain", {"attention_kernels"});
  const Json* confidence = record.get("confidence");
  if (confidence && *confidence != 0 && *confidence != 0.5 && *confidence != 0.6 && *confidence != 0.8 &&
      *confidence != 0.95) {
    record.say("confidence", "must be 0, 0.5, 0.6, 0.8 or 0.95");
  }
  record.text("claim_key");
  record.object("data", false, check_data);
}

void check_note(const Fields& record) {
  check_knowledge(record);
  record.number("confidence", 0, 1);
  record.text("topic");
  for (const char* key : {"url", "source_title", "type"}) record.text(key, true);
}

}  // namespace

std::vector<std::string> check_schema(const Json& record) {
  std::vector<std::string> problems;
  if (!record.is_object()) return {"no JSON object"};
  const Fields fields(record, "", problems);
  const Json schema = record.value("schema", Json());
  if (schema == "measurement/1") {
    check_measurement(fields);
  } else if (schema == "finding/1") {
    check_finding(fields);
  } else if (schema == "note/1") {
    check_note(fields);
  } else {
    fields.one_of("schema", {"finding/1", "measurement/1", "note/1"});
  }
  return problems;
}

namespace {

/// Words that make a name the name of a quantity, and the words with which such a name must end: units, and words for
/// figures without a unit.
const std::set<std::string_view> quantities = {"time",  "duration", "latency",   "bandwidth", "throughput",
                                               "power", "memory",   "frequency", "clock",     "temperature"};
const std::set<std::string_view> endings = {"s",     "ms",  "us",      "ns",       "bytes", "mhz",
                                            "w",     "c",   "gbps",    "tflops",   "flops", "ratio",
                                            "share", "pct", "percent", "exponent", "factor"};

std::vector<std::string_view> words(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = name.find('_')) != name.npos; name.remove_prefix(end + 1)) {
    parts.push_back(name.substr(0, end));
  }
  parts.push_back(name);
  return parts;
}

void walk_units(const Json& json, const std::string& path, std::vector<std::string>& problems) {
  for (const auto& [key, value] : json.items()) {
    const std::string place = path.empty() ? key : path + "." + key;
    if (value.is_structured()) {
      // Axes are counts and names, instructions are counts.
      if (key == "case" || key == "cases" || key == "baseline" || key == "contender" || key == "instructions") continue;
      walk_units(value, place, problems);
    } else if (value.is_number() && json.is_object()) {
      const auto parts = words(key);
      const bool quantity =
          std::any_of(parts.begin(), parts.end(), [](auto part) { return quantities.contains(part); });
      if (quantity && !endings.contains(parts.back())) {
        problems.push_back(place +
                           ": a quantity without a unit; its name must end in _s, _bytes, _mhz, _w, _c, _gbps "
                           "or the like");
      }
    }
  }
}

}  // namespace

std::vector<std::string> check_units(const Json& record) {
  std::vector<std::string> problems;
  walk_units(record, "", problems);
  return problems;
}

}  // namespace attn::kb
