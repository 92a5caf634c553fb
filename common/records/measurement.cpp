#include "common/records/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "common/base/error.h"
#include "common/records/fields.h"

namespace attn {
namespace {

constexpr double ceiling_slack = 1.05;  // two measurements of one rate may differ by a few per cent

/// `rate` as a share of `ceiling` in per cent; null where there is no ceiling.
Json percent(double rate, double ceiling) { return ceiling > 0 ? Json(100 * rate / ceiling) : Json(nullptr); }

/// percent(), but null above 100: the measured ceiling is too low, for example because another program used the device.
Json percent_below(double rate, double ceiling) { return rate <= ceiling ? percent(rate, ceiling) : Json(nullptr); }

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
  // Hot data may come from caches, which copy faster than memory does. Cold data come from memory.
  if (measurement.timing(Scope::device_cold)) {
    require_below(measurement.gbps(), ceilings.copy_gbps, "GB/s");
  }
  Json rate = {{"tflops", measurement.tflops()},
               {"gbps", measurement.gbps()},
               {"pct_matrix_ceiling", nullptr},
               {"pct_matrix_ci_lo", nullptr},
               {"pct_matrix_ci_hi", nullptr},
               {"pct_matrix_best", percent_below(measurement.tflops(), matrix_ceiling)},
               {"pct_matrix_peak", percent(measurement.tflops(), ceilings.peak_tflops(measurement.dtype))},
               {"pct_copy_ceiling", measurement.timing(Scope::device_cold)
                                        ? percent_below(measurement.gbps(), ceilings.copy_gbps)
                                        : percent(measurement.gbps(), ceilings.copy_gbps)}};
  if (measurement.work->bound == Bound::memory) {
    const Estimate gbps = measurement.gbps_interval();
    rate["gbps_ci_lo"] = gbps.ci_lo;
    rate["gbps_ci_hi"] = gbps.ci_hi;
  }
  for (const auto& [ceiling, pct] : {std::pair{"copy", &measurement.copy_pct},
                                     {"read", &measurement.read_pct},
                                     {"matrix", &measurement.matrix_pct}}) {
    if (!*pct) continue;
    rate[fmt::format("pct_{}_ceiling", ceiling)] = (*pct)->value;
    rate[fmt::format("pct_{}_ci_lo", ceiling)] = (*pct)->ci_lo;
    rate[fmt::format("pct_{}_ci_hi", ceiling)] = (*pct)->ci_hi;
  }
  return rate;
}

}  // namespace

double Ceilings::matrix_tflops(DType dtype) const {
  switch (dtype) {
    case DType::f32:
      return std::max(f32_tflops, tf32_tflops / tf32_of_f32);
    case DType::f16:
      return f16_tflops;
    case DType::bf16:
      return bf16_tflops;
    case DType::e4m3:
    case DType::int8:
      break;  // no experiment multiplies these types
  }
  throw std::logic_error("matrix_tflops: no such dtype");
}

double Ceilings::peak_tflops(DType dtype) const {
  return dtype == DType::f32 ? peak_16_bit_tflops / 2 / tf32_of_f32 : peak_16_bit_tflops;
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

const Timing* Measurement::main_timing() const {
  const bool by_memory = work && work->bound == Bound::memory && timing(Scope::device_cold);
  return by_memory ? timing(Scope::device_cold) : timing_of(*this, Scope::device_hot, Scope::host);
}

std::vector<Json> Measurement::kernels() const {
  if (phases.empty()) return pipeline.is_null() ? std::vector<Json>() : std::vector<Json>{pipeline};
  std::vector<Json> all;
  for (const Phase& phase : phases) all.push_back(phase.pipeline);
  return all;
}

double Measurement::tflops() const {
  const Timing* timed = timing_of(*this, Scope::device_hot, Scope::device_cold);
  return timed && work ? work->flops / timed->median_s / 1e12 : 0;
}

double Measurement::gbps() const { return gbps_interval().value; }

Estimate Measurement::gbps_interval() const {
  const Timing* timed = timing_of(*this, Scope::device_cold, Scope::device_hot);
  if (!timed || !work) return {};
  const auto rate = [&](double seconds) { return work->bytes / seconds / 1e9; };
  return {rate(timed->median_s), rate(timed->ci_hi_s), rate(timed->ci_lo_s)};
}

std::map<std::string, Results> group_results(const Results& results, const std::set<std::string>& free) {
  std::map<std::string, Results> groups;
  for (const Measurement* result : results) groups[result->config.key_without(free)].push_back(result);
  return groups;
}

Json to_json(const std::vector<Timing>& times) {
  Json list = Json::array();
  for (const Timing& timing : times) {
    if (timing.n > 0) list.push_back(timing);
  }
  return list;
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
                 {"check", measurement.check ? Json(*measurement.check) : Json(nullptr)},
                 {"work", nullptr},
                 {"time", to_json(measurement.time)},
                 {"rate", rate_of(measurement, ceilings)},
                 {"pipeline", measurement.pipeline},
                 {"clocks", measurement.clocks},
                 {"values", measurement.values}};
  if (const auto& work = measurement.work) {
    record["work"] = {{"flops", work->flops}, {"bytes", work->bytes}, {"bound", name(work->bound)}};
  }
  if (!measurement.log.empty()) record["log"] = measurement.log;
  for (const Phase& phase : measurement.phases) {
    record["phases"].push_back({{"phase", phase.name},
                                {"pipeline", phase.pipeline},
                                {"time", phase.time.n > 0 ? Json(phase.time) : Json(nullptr)}});
  }
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
  if (!json.at("check").is_null()) measurement.check = json.at("check").get<Check>();
  if (const Json& work = json.at("work"); !work.is_null()) {
    const bool by_memory = work.value("bound", "") == name(Bound::memory);
    measurement.work = {.flops = work.at("flops"),
                        .bytes = work.at("bytes"),
                        .bound = by_memory ? Bound::memory : Bound::matrix,
                        .dtype = measurement.dtype};
  }
  measurement.log = json.value("log", "");
  json.at("time").get_to(measurement.time);
  const auto pct = [&](const std::string& ceiling) -> std::optional<Estimate> {
    const Json& rate = json.at("rate");
    if (!rate.is_object() || !rate.value("pct_" + ceiling + "_ci_lo", Json()).is_number()) return std::nullopt;
    return Estimate{rate.at("pct_" + ceiling + "_ceiling"), rate.at("pct_" + ceiling + "_ci_lo"),
                    rate.at("pct_" + ceiling + "_ci_hi")};
  };
  measurement.matrix_pct = pct("matrix");
  measurement.copy_pct = pct("copy");
  measurement.read_pct = pct("read");
  measurement.pipeline = json.at("pipeline");
  measurement.clocks = json.at("clocks");
  if (json.contains("values")) measurement.values = json["values"];
  for (const Json& phase : json.value("phases", Json::array())) {
    const Json& time = phase.at("time");
    measurement.phases.push_back({.name = phase.at("phase"),
                                  .pipeline = phase.at("pipeline"),
                                  .time = time.is_null() ? Timing() : time.get<Timing>()});
  }
  return measurement;
}

}  // namespace attn
