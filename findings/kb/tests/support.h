// Sound records, and a fixture that runs kb as a user runs it, in a new folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/records/finding.h"
#include "common/testing/program.h"
#include "findings/kb/store.h"

namespace attn::kb {

using test::Outcome;

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Expects that the text has each of the parts.
inline void expect_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
}

inline Timing timing(Scope scope, double median_s, double half_width = 0.005) {
  return {scope,          50,  10, median_s, (1 - half_width) * median_s, (1 + half_width) * median_s, 0.02,
          0.9 * median_s, "ci"};
}

inline Case shape(int64_t head_dim, const std::string& variant = "tuned") {
  Case config;
  config.set("variant", variant);
  config.set("head_dim", head_dim);
  config.set("dtype", std::string("bf16"));
  return config;
}

inline Json with_id(Json record) {
  record["id"] = record_id(record);
  return record;
}

/// The record with other values at these places, and with the id that follows.
inline Json changed(Json record, const std::vector<std::pair<std::string, Json>>& values) {
  for (const auto& [place, value] : values) record[Json::json_pointer(place)] = value;
  return with_id(record);
}

inline Json measurement(const Case& config, double median_s, const std::string& device = "A CPU, 2 units",
                        const std::string& run = "r1", double half_width = 0.005) {
  Measurement m;
  m.run_id = run;
  m.experiment = "proto1_flash";
  m.device = device;
  m.config = config;
  m.check = Check{true, 1e-6, 1e-4, 128, ""};
  m.work = Work{.flops = 1e9, .bytes = 4e6};
  m.time = {timing(Scope::device_hot, median_s, half_width), timing(Scope::host, 1.5 * median_s)};
  m.dtype = DType::bf16;
  m.matrix_pct = Estimate{50, 49, 51};
  m.pipeline = {{"key", "flash_forward[HEAD_DIM=64]"},
                {"hooks", Json::array()},
                {"source_sha256", std::string(64, 'a')},
                {"code_sha256", std::string(64, 'b')},
                {"registers", nullptr},
                {"spill_bytes", 0},
                {"threadgroup_bytes", 1024},
                {"instructions", {{"HGMMA", 16}}},
                {"compile_s", 0.1},
                {"cache", "compiled"}};
  m.clocks = {{"core_mhz", 3000.5}, {"throttle_reasons", Json::array()}};
  Json record =
      to_json(m, {.copy_gbps = 1e6, .f32_tflops = 1e6, .f16_tflops = 1e6, .bf16_tflops = 1e6, .tf32_tflops = 0});
  record["run"] = {{"ts", "2026-01-31T12:00:00Z"}};
  return with_id(record);
}

inline Hypothesis worst_tile() {
  return {"worst_tile", "The choice of tile matters.", "time of the worst / time of the best", ">=", 1.25,
          "expectation"};
}

inline Comparison pair_of(const Estimate& ratio, double aa_floor) {
  return {.hypothesis = "worst_tile",
          .baseline = shape(64),
          .contender = shape(64, "naive"),
          .ratio = ratio,
          .aa = {1, 1 - aa_floor, 1 + aa_floor / 2},
          .cv = 0.02,
          .time = {timing(Scope::device_hot, 1e-3), timing(Scope::device_hot, 1e-3 * ratio.value)}};
}

/// A finding about the mean of `ratios` with a threshold of 1.25, with one process for each ratio. The interval of each
/// process is its ratio +- 0.01.
inline Json finding(const std::vector<double>& ratios, const std::string& run = "r1",
                    const std::string& device = "A CPU, 2 units", const std::vector<std::string>& measurements = {},
                    double aa_floor = 0.01) {
  Conclusion conclusion;
  conclusion.hypothesis = "worst_tile";
  conclusion.subject = "head_dim=64 dtype=bf16";
  conclusion.title = "The worst flash attention tile takes {estimate.value:.2f} times the best";
  conclusion.content =
      "At block_r {values.block_r} the next run takes {estimate.next_lo:.3f} to {estimate.next_hi:.3f}.";
  conclusion.tags = {"flash_attention", "d64", "worst_tile", "bf16"};
  conclusion.prior = {.scale = 0.01, .freedom = 3};
  conclusion.cv = 0.02;
  conclusion.values = {{"block_r", 128}};
  conclusion.measurements = measurements;
  std::vector<Comparison> parts;
  for (const double ratio : ratios) {
    parts.push_back(pair_of({ratio, ratio - 0.01, ratio + 0.01}, aa_floor));
    parts.back().process = static_cast<int>(parts.size());
    conclusion.parts.push_back(ratio_part(parts.back()));
  }
  conclusion.estimate = pool({&conclusion.parts, 1}, conclusion.prior, true);
  conclusion.compare = parts.front();
  conclusion.compare->parts = parts;
  conclusion.compare->prior = conclusion.prior;
  conclusion.compare->ratio = {conclusion.estimate.value, conclusion.estimate.ci_lo, conclusion.estimate.ci_hi};
  conclusion.floor = conclusion.compare->aa_floor();
  Json record = make_finding("proto1_flash", device, worst_tile(), conclusion, run);
  record["data"]["cases"] = {shape(64).json(), shape(64, "naive").json()};
  return with_id(record);
}

inline Json finding(double ratio, const std::string& run = "r1", const std::string& device = "A CPU, 2 units",
                    const std::vector<std::string>& measurements = {}, double aa_floor = 0.01) {
  return finding(std::vector{ratio}, run, device, measurements, aa_floor);
}

/// An emulated device has no times.
inline Json emulated_measurement() {
  return changed(
      measurement(shape(64), 1e-3, "emulated, 1 units"),
      {{"/time", Json::array()}, {"/rate", nullptr}, {"/clocks", nullptr}, {"/pipeline/compile_s", nullptr}});
}

/// A measurement whose kernel has other machine code.
inline Json with_other_code(const Json& measurement) {
  return changed(measurement, {{"/pipeline/code_sha256", std::string(64, 'c')}});
}

inline Json header(const std::string& run = "r1") {
  return with_id({{"schema", "run/1"},
                  {"id", ""},
                  {"experiment", "proto1_flash"},
                  {"run",
                   {{"id", run},
                    {"ts", "2026-01-31T12:00:00Z"},
                    {"argv", {"proto1_flash", "--profile", "quick"}},
                    {"seed", 1},
                    {"replay", "proto1_flash --seed 1"},
                    {"profile", "quick"}}},
                  {"session", {{"commit", "0123456789abcdef0123"}, {"diff", nullptr}, {"machine", "m1"}}},
                  {"env",
                   {{"device", {{"name", "A CPU"}, {"units", 2}, {"toolchain", "clang 19"}}},
                    {"git", {{"commit", "0123456789abcdef0123"}, {"dirty", false}}}}}});
}

/// A finding about a count, which has no error.
inline Json exact_finding(double value) {
  Conclusion conclusion;
  conclusion.hypothesis = "worst_tile";
  conclusion.subject = "head_dim=64";
  conclusion.title = "{estimate.value} calls";
  conclusion.content = "There are {estimate.value} calls.";
  conclusion.parts = {{.process = 1, .value = value, .error = 0, .rounds = 1}};
  auto& exact = conclusion.estimate;
  exact.value = exact.ci_lo = exact.ci_hi = exact.next_lo = exact.next_hi = value;
  exact.processes = exact.sessions = 1;
  conclusion.exact = true;
  return make_finding("proto1_flash", "A CPU, 2 units", worst_tile(), conclusion, "r1");
}

/// A store with records, which must be sound.
inline Store store_of(const std::vector<Json>& records) {
  Store store = Store::open(":memory:", Store::Mode::write);
  std::stringstream lines;
  for (const Json& record : records) lines << record.dump() << "\n";
  const Ingested result = store.ingest(lines);
  EXPECT_TRUE(result.bad.empty()) << result.bad.front().problem;
  return store;
}

inline std::vector<Record> records_of(const std::vector<Json>& records) { return store_of(records).list({}); }

class KbTest : public test::ProgramTest {
 protected:
  KbTest() : ProgramTest("kb") {
    unsetenv("KB_DB");
    setenv("XDG_DATA_HOME", path("data").c_str(), 1);
  }

  std::string write(const std::string& name, const std::vector<Json>& records) const {
    std::string text;
    for (const Json& record : records) text += record.dump() + "\n";
    return write_text(name, text);
  }
};

}  // namespace attn::kb
