#include "common/records/finding.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/base/temporary_folder.h"

namespace attn {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

const Ceilings ceilings{.copy_gbps = 10, .f32_tflops = 2, .f16_tflops = 3, .bf16_tflops = 4, .tf32_tflops = 0};

Timing timing(Scope scope, double median_s) {
  return {scope, 50, 10, median_s, 0.99 * median_s, 1.01 * median_s, 0.02, 0.9 * median_s, "ci"};
}

Measurement measured() {
  Measurement m;
  m.run_id = "r1";
  m.experiment = "proto1_flash";
  m.device = "A CPU";
  m.config.set("head_dim", AxisValue(int64_t{64}));
  m.config.set("variant", AxisValue("tuned"));
  m.check = Check{true, 1e-6, 1e-4, 128, ""};
  m.work = Work{.flops = 1e9, .bytes = 4e6};
  m.time = {timing(Scope::device_hot, 1e-3), timing(Scope::host, 1.5e-3)};
  m.dtype = DType::bf16;
  m.matrix_pct = Estimate{24, 23, 25.5};
  m.pipeline = {{"key", "flash_forward[HEAD_DIM=64]"}};
  m.clocks = {{"core_mhz", 3000.5}};
  m.values = {{"peak_bytes", 5}};
  return m;
}

TEST(Measurement, RatesFollowTheScope) {
  Measurement m = measured();
  EXPECT_DOUBLE_EQ(m.tflops(), 1.0);
  EXPECT_DOUBLE_EQ(m.gbps(), 4.0);
  m.time.push_back(timing(Scope::device_cold, 2e-3));
  EXPECT_DOUBLE_EQ(m.tflops(), 1.0) << "arithmetic by hot caches";
  EXPECT_DOUBLE_EQ(m.gbps(), 2.0) << "traffic by cold caches";
  EXPECT_EQ(m.timing(Scope::host)->median_s, 1.5e-3);
  m.time = {timing(Scope::host, 1e-3)};
  EXPECT_EQ(m.tflops(), 0) << "host time is no device rate";
  EXPECT_EQ(m.timing(Scope::device_hot), nullptr);
  m = measured();
  m.work.reset();
  EXPECT_EQ(m.gbps(), 0);
}

TEST(Measurement, JsonHasEveryField) {
  const Json json = to_json(measured(), ceilings);
  const Json expected = Json::parse(R"({
    "schema": "measurement/1", "run_id": "r1", "experiment": "proto1_flash", "device": "A CPU",
    "case": {"head_dim": 64, "variant": "tuned"}, "dtype": "bf16", "status": "ok", "reason": "",
    "check": {"ok": true, "max_abs": 1e-6, "max_rel": 1e-4, "rows_checked": 128, "worst": ""},
    "work": {"flops": 1e9, "bytes": 4e6},
    "time": [{"scope": "device_hot", "n": 50, "rounds": 10, "median_s": 1e-3, "ci_lo_s": 9.9e-4, "ci_hi_s": 1.01e-3,
              "cv": 0.02, "min_s": 9e-4, "stop": "ci"},
             {"scope": "host", "n": 50, "rounds": 10, "median_s": 1.5e-3, "ci_lo_s": 1.485e-3, "ci_hi_s": 1.515e-3,
              "cv": 0.02, "min_s": 1.35e-3, "stop": "ci"}],
    "rate": {"tflops": 1.0, "gbps": 4.0, "pct_matrix_ceiling": 24.0, "pct_matrix_ci_lo": 23.0, "pct_matrix_ci_hi": 25.5,
             "pct_copy_ceiling": 40.0},
    "pipeline": {"key": "flash_forward[HEAD_DIM=64]"}, "clocks": {"core_mhz": 3000.5},
    "values": {"peak_bytes": 5}})");
  Json without_id = json;
  without_id.erase("id");
  EXPECT_EQ(without_id.size(), expected.size());
  const Json leaves = expected.flatten();
  for (const auto& [key, value] : leaves.items()) {
    const Json got = without_id.at(Json::json_pointer(key));
    if (value.is_number_float()) {
      EXPECT_NEAR(got.get<double>(), value.get<double>(), 1e-12 * std::abs(value.get<double>())) << key;
    } else {
      EXPECT_EQ(got, value) << key;
    }
  }
  EXPECT_EQ(json["id"], record_id(json));
}

TEST(Measurement, RoundTrips) {
  Measurement skipped;
  skipped.run_id = "r1";
  skipped.status = "skipped";
  skipped.reason = "needs 66048 bytes of threadgroup memory; 32768 are there";
  Measurement wrong = measured();
  wrong.status = "wrong";
  wrong.check = Check{false, 0.5, 1e9, 4, "o[3]: got nan, want 1"};
  wrong.time.clear();
  for (const Measurement& m : {measured(), skipped, wrong}) {
    const Json json = to_json(m, ceilings);
    const Measurement back = measurement_from_json(Json::parse(json.dump()));
    EXPECT_EQ(to_json(back, ceilings).dump(), json.dump());
    EXPECT_EQ(json["id"], back.id);
    EXPECT_EQ(back.status, m.status);
    EXPECT_EQ(back.reason, m.reason);
  }
  EXPECT_TRUE(to_json(skipped, ceilings)["check"].is_null());
  EXPECT_TRUE(to_json(skipped, ceilings)["rate"].is_null());
}

TEST(Measurement, RefusesForeignRecords) {
  Json json = to_json(measured(), ceilings);
  json["schema"] = "measurement/2";
  EXPECT_THROW(measurement_from_json(json), BadInput);
  json = to_json(measured(), ceilings);
  json["time"][0]["scope"] = "hot";
  EXPECT_THROW(measurement_from_json(json), BadInput);
  json.erase("device");
  EXPECT_THROW(measurement_from_json(json), std::exception);
}

TEST(Measurement, NothingBeatsItsCeiling) {
  Measurement m = measured();
  m.work->flops = 4.15e9;  // 4.15 TFLOPS in 1 ms; the bf16 ceiling is 4
  EXPECT_NO_THROW(to_json(m, ceilings));
  m.work->flops = 4.25e9;
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error);
  m.status = "failed";
  EXPECT_TRUE(to_json(m, ceilings)["rate"].is_null()) << "only a right result has a rate";

  m = measured();
  m.dtype = DType::f32;
  m.work->flops = 2.2e9;
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error) << "the ceiling is that of the dtype";
  EXPECT_NO_THROW(to_json(m, {})) << "no ceiling was measured";
  m = measured();
  m.matrix_pct.reset();
  EXPECT_TRUE(to_json(m, ceilings)["rate"]["pct_matrix_ceiling"].is_null());

  m = measured();
  m.work->bytes = 11e6;  // 11 GB/s
  EXPECT_NO_THROW(to_json(m, ceilings)) << "hot data may come from caches";
  m.time.push_back(timing(Scope::device_cold, 1e-3));
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error);
}

TEST(Measurement, NoFigureThatIsNone) {
  Measurement m = measured();
  m.clocks["core_mhz"] = std::nan("");
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error);
  m = measured();
  m.time[0].cv = HUGE_VAL;
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error);
  m = measured();
  m.time[1] = {};  // interrupted before its first round
  EXPECT_EQ(to_json(m, ceilings)["time"].size(), 1u);
}

TEST(Ceilings, ByDtype) {
  EXPECT_EQ(ceilings.matrix_tflops(DType::f32), 2);
  EXPECT_EQ((Ceilings{.f32_tflops = 2, .tf32_tflops = 7.5}.matrix_tflops(DType::f32)), 2.5) << "three for one";
  EXPECT_EQ(ceilings.matrix_tflops(DType::f16), 3);
  EXPECT_EQ(ceilings.matrix_tflops(DType::bf16), 4);
  EXPECT_EQ(ceilings.json().dump(),
            R"({"copy_gbps":10.0,"f32_tflops":2.0,"f16_tflops":3.0,"bf16_tflops":4.0,"tf32_tflops":0.0})");
}

Hypothesis hypothesis(const std::string& op, double threshold) {
  return {.id = "bc80", .text = "t", .metric = "m", .op = op, .threshold = threshold, .origin = "o"};
}

Conclusion conclusion(Estimate estimate, double aa_floor = 0, double cv = 0.01) {
  Conclusion c;
  c.hypothesis = "bc80";
  c.estimate = estimate;
  c.aa_floor = aa_floor;
  c.cv = cv;
  return c;
}

TEST(Judge, TruthTable) {
  struct Row {
    const char* op;
    double threshold;
    Estimate estimate;
    double aa_floor;
    State state;
  };
  constexpr State yes = State::supported, no = State::refuted, open = State::inconclusive;
  const Row rows[]{
      // Which side of the threshold.
      {"<", 1, {0.90, 0.88, 0.92}, 0, yes},
      {"<", 1, {1.10, 1.08, 1.12}, 0, no},
      {">", 1, {0.90, 0.88, 0.92}, 0, no},
      {">", 1, {1.10, 1.08, 1.12}, 0, yes},
      {"<=", 1, {0.90, 0.88, 0.92}, 0, yes},
      {">=", 1, {1.10, 1.08, 1.12}, 0, yes},
      // The interval crosses.
      {"<", 1, {0.99, 0.97, 1.01}, 0, open},
      {">=", 1, {1.20, 0.99, 1.40}, 0, open},
      // An end on the threshold: it counts as the operator says.
      {"<", 1, {0.95, 0.90, 1.00}, 0, open},
      {"<=", 1, {0.95, 0.90, 1.00}, 0, yes},
      {">", 1, {1.05, 1.00, 1.10}, 0, open},
      {">=", 1, {1.05, 1.00, 1.10}, 0, yes},
      {"<", 1, {1.05, 1.00, 1.10}, 0, no},
      {">", 1, {0.95, 0.90, 1.00}, 0, no},
      // A clear interval within the noise floor of the threshold.
      {"<", 1, {0.985, 0.98, 0.99}, 0.02, open},
      {"<", 1, {0.975, 0.97, 0.98}, 0.02, yes},
      {">", 1, {1.015, 1.01, 1.02}, 0.02, open},
      // No effect at all refutes a large one: the distance to the threshold matters, not to 1.
      {">=", 1.1, {1.001, 0.998, 1.004}, 0.02, no},
      {">=", 1.1, {1.115, 1.11, 1.12}, 0.02, open},
      // The floor is relative: 0.02 at a ratio of 1 is 0.04 at a ratio of 2.
      {">", 2, {2.03, 2.02, 2.04}, 0.02, open},
      {">", 2, {2.05, 2.04, 2.06}, 0.02, yes},
      // A difference of ratios has its threshold near 0, and still the noise of a ratio near 1.
      {"<", 0.03, {0.02, 0.019, 0.021}, 0.02, open},
      // No interval, no verdict.
      {"<", 1, {0.9, std::nan(""), 0.92}, 0, open},
      {"<", 1, {0.9, std::nan(""), std::nan("")}, 0, open},
  };
  for (const Row& row : rows) {
    const Verdict verdict = judge(hypothesis(row.op, row.threshold), conclusion(row.estimate, row.aa_floor));
    EXPECT_EQ(name(verdict.state), name(row.state))
        << row.estimate.value << " " << row.op << " " << row.threshold << " floor " << row.aa_floor;
    EXPECT_FALSE(verdict.reason.empty());
  }
}

TEST(Judge, SaysWhy) {
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({0.9, 0.88, 0.92})).reason, "0.9 [0.88, 0.92] is < 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({1.1, 1.08, 1.12})).reason, "1.1 [1.08, 1.12] is not < 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({1, 0.9, 1.1})).reason, "the interval of 1 [0.9, 1.1] crosses 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({0.99, 0.98, 0.995}, 0.02)).reason,
            "0.99 [0.98, 0.995] is closer to 1 than the noise floor of 0.02");
  EXPECT_THROW(judge(hypothesis("==", 1), conclusion({1, 1, 1})), std::invalid_argument);
}

TEST(Judge, AWrongResultProvesNothing) {
  Conclusion c = conclusion({0.5, 0.49, 0.51});
  c.correct = false;
  EXPECT_EQ(judge(hypothesis("<", 1), c).state, State::inconclusive);
}

TEST(Confidence, TruthTable) {
  const Conclusion clean = conclusion({0.9, 0.88, 0.92}, 0, 0.0499), shaky = conclusion({0.9, 0.88, 0.92}, 0, 0.05);
  Conclusion wrong = clean;
  wrong.correct = false;
  for (const State state : {State::supported, State::refuted}) {
    EXPECT_EQ(confidence({state, ""}, clean, false), 0.8);
    EXPECT_EQ(confidence({state, ""}, clean, true), 0.95);
    EXPECT_EQ(confidence({state, ""}, shaky, false), 0.6);
    EXPECT_EQ(confidence({state, ""}, shaky, true), 0.6);
    EXPECT_EQ(confidence({state, ""}, wrong, true), 0);
  }
  EXPECT_EQ(confidence({State::inconclusive, ""}, clean, true), 0.5);
  EXPECT_EQ(confidence({State::inconclusive, ""}, shaky, false), 0.5);
  EXPECT_EQ(confidence({State::inconclusive, ""}, wrong, false), 0);
  EXPECT_EQ(confidence({State::supported, ""}, conclusion({}, 0, std::nan("")), true), 0.6);
}

TEST(Comparison, FloorIsTheFarEndOfTheAaInterval) {
  Comparison comparison;
  comparison.aa = {1.0, 0.97, 1.01};
  EXPECT_NEAR(comparison.aa_floor(), 0.03, 1e-12);
  comparison.aa = {1.02, 1.01, 1.04};
  EXPECT_NEAR(comparison.aa_floor(), 0.04, 1e-12);
}

TEST(Render, FillsPathsAndFormats) {
  const Json data = Json::parse(R"({"x": 0.12345, "n": 80, "big": 18446744073709551615, "minus": -3, "yes": true,
    "s": "tuned", "a": {"b": [{"c": 1.5}, {"c": 2.5}]}, "none": null})");
  const std::pair<const char*, const char*> good[]{
      {"", ""},
      {"plain", "plain"},
      {"{x:.3f}", "0.123"},
      {"{x}", "0.12345"},
      {"{n}", "80"},
      {"{n:.1f} {n:>4} {n:x}", "80.0   80 50"},
      {"{big} {minus}", "18446744073709551615 -3"},
      {"{yes} {s} {s:>7}|", "true tuned   tuned|"},
      {"{a.b.1.c:.2f}{a.b.0.c}", "2.501.5"},
      {"{{x}} {{{n}}} }}", "{x} {80} }"},
  };
  for (const auto& [text, want] : good) EXPECT_EQ(render(text, data), want) << text;
  for (const char* text : {"{y}", "{x.y}", "{a.b.2.c}", "{a.b.-1.c}", "{a.b.c}", "{a.b.}", "{}", "{a}", "{a.b}",
                           "{none}", "{.x}", "{x.}", "{a.b.99999999999999999999.c}"}) {
    EXPECT_THROW(render(text, data), std::out_of_range) << text;
  }
  for (const char* text : {"{x", "x}", "{", "}", "{x:.3q}", "{s:.3f}", "{x:{n}}", "{n:s}"}) {
    EXPECT_THROW(render(text, data), std::invalid_argument) << text;
  }
}

Json finding_of(const Conclusion& c, bool replicated = false) {
  return make_finding("proto1_flash", "A CPU", hypothesis("<", 1), c, replicated, {{"id", "r1"}, {"seed", 1}},
                      {{"git_commit", "abc"}});
}

Conclusion compared() {
  Conclusion c = conclusion({0.9, 0.88, 0.92}, 0.01);
  c.subject = "head_dim=64";
  c.title = "Bc=80 takes {compare.ratio:.2f} of the best power of two";
  c.content = "{values.note}: {estimate.value:.1f}, {hypothesis.op} {hypothesis.threshold}; {{{run.id}}}";
  c.tags = {"flash", "tile"};
  c.values = {{"note", "tiles"}};
  c.measurements = {"0123456789abcdef"};
  c.compare = Comparison{};
  c.compare->baseline.set("block_c", AxisValue(int64_t{64}));
  c.compare->contender.set("block_c", AxisValue(int64_t{80}));
  c.compare->ratio = {0.9, 0.88, 0.92};
  c.compare->aa = {1, 0.995, 1.01};
  c.compare->time = {timing(Scope::device_hot, 1e-3), timing(Scope::device_hot, 9e-4)};
  return c;
}

TEST(MakeFinding, HasEveryField) {
  const Json finding = finding_of(compared(), true);
  EXPECT_EQ(finding["title"], "Bc=80 takes 0.90 of the best power of two");
  EXPECT_EQ(finding["content"], "tiles: 0.9, < 1; {r1}");
  EXPECT_EQ(finding["confidence"], 0.95);
  EXPECT_EQ(finding["tags"], Json({"flash", "tile"}));
  EXPECT_EQ(finding["schema"], "finding/1");
  EXPECT_EQ(finding["claim_key"], "proto1_flash/bc80/A CPU/head_dim=64");
  EXPECT_EQ(finding["id"], record_id(finding));
  EXPECT_FALSE(finding["domain"].get<std::string>().empty());
  EXPECT_NE(finding["source"].get<std::string>().find("proto1_flash"), std::string::npos);

  const Json& data = finding["data"];
  EXPECT_EQ(data["experiment"], "proto1_flash");
  EXPECT_EQ(data["device"], "A CPU");
  EXPECT_EQ(data["hypothesis"].dump(),
            R"({"id":"bc80","text":"t","metric":"m","op":"<","threshold":1.0,"origin":"o"})");
  EXPECT_EQ(data["verdict"]["state"], "supported");
  EXPECT_EQ(data["estimate"].dump(), R"({"value":0.9,"ci_lo":0.88,"ci_hi":0.92,"aa_floor":0.01,"cv":0.01})");
  EXPECT_EQ(data["compare"]["baseline"]["block_c"], 64);
  EXPECT_EQ(data["compare"]["contender"]["block_c"], 80);
  EXPECT_EQ(data["compare"]["ratio"], 0.9);
  EXPECT_EQ(data["compare"]["ci_lo"], 0.88);
  EXPECT_EQ(data["compare"]["ci_hi"], 0.92);
  EXPECT_NEAR(data["compare"]["aa_floor"].get<double>(), 0.01, 1e-12);
  EXPECT_EQ(data["compare"]["time"][1]["median_s"], 9e-4);
  EXPECT_EQ(data["values"]["note"], "tiles");
  EXPECT_EQ(data["measurements"], Json::array({"0123456789abcdef"}));
  EXPECT_EQ(data["run"]["id"], "r1");
  EXPECT_EQ(data["env"]["git_commit"], "abc");
  EXPECT_EQ(data["replicated"], true);
}

TEST(MakeFinding, RendersAgainFromItsOwnLine) {
  const Json finding = Json::parse(finding_of(compared()).dump());
  const Json& data = finding["data"];
  EXPECT_EQ(finding["title"], render(data["template"]["title"], data));
  EXPECT_EQ(finding["content"], render(data["template"]["content"], data));
  EXPECT_EQ(finding["id"], record_id(finding)) << "reading and writing again changes nothing";
}

TEST(MakeFinding, WithoutComparison) {
  Conclusion c = conclusion({0.9, 0.8, 1.2});
  c.title = c.content = "{estimate.value}";
  const Json finding = finding_of(c);
  EXPECT_TRUE(finding["data"]["compare"].is_null());
  EXPECT_EQ(finding["confidence"], 0.5);
  EXPECT_EQ(finding["claim_key"], "proto1_flash/bc80/A CPU");
}

TEST(MakeFinding, NoFigureThatIsNone) {
  Conclusion c = compared();
  c.values["list"] = Json::array({1.0, HUGE_VAL});
  try {
    finding_of(c);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()),
              "proto1_flash/bc80: data.values.list.1 is not a finite number and cannot be recorded");
  }
  c = compared();
  c.estimate.value = std::nan("");
  EXPECT_THROW(finding_of(c), std::runtime_error);
  c = compared();
  c.title = "{compare.speed}";
  EXPECT_THROW(finding_of(c), std::out_of_range);
}

TEST(RecordId, IsTheHashOfTheLineWithoutIt) {
  const Json record = {{"schema", "finding/1"}, {"id", "x"}, {"n", 1}};
  EXPECT_EQ(record_id(record), sha256(R"({"schema":"finding/1","n":1})").substr(0, 16));
  Json other = record;
  other["id"] = "y";
  EXPECT_EQ(record_id(other), record_id(record));
  other["n"] = 2;
  EXPECT_NE(record_id(other), record_id(record));
}

TEST(RecordFile, AppendsWholeLines) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  {
    RecordFile(path).append({{"n", 1}});
  }
  RecordFile file(path);
  emit_finding(file, {{"text", "two\nlines"}});
  EXPECT_EQ(contents(path), "{\"n\":1}\n{\"text\":\"two\\nlines\"}\n") << "visible before the file is closed";
  file.append({{"text", "\xff"}});
  std::vector<std::string> problems;
  EXPECT_EQ(read_records(path, problems).size(), 3u) << "bytes that are no UTF-8 do not end the run";
  EXPECT_TRUE(problems.empty());
}

TEST(RecordFile, EndsATornLine) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  write_text(path, "{\"n\":1}\n{\"n\":");
  RecordFile file(path);
  file.append({{"n", 3}});
  file.append({{"n", 4}});
  EXPECT_EQ(contents(path), "{\"n\":1}\n{\"n\":\n{\"n\":3}\n{\"n\":4}\n");
  std::vector<std::string> problems;
  EXPECT_EQ(read_records(path, problems).size(), 3u);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].substr(0, 7), "line 2:");
}

TEST(RecordFile, SaysWhereItCannotWrite) {
  EXPECT_THROW(RecordFile("/no/such/folder/r.jsonl"), BadInput);
  EXPECT_THROW(RecordFile("/"), BadInput);
  RecordFile full("/dev/full");
  try {
    full.append({{"n", 1}});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "cannot append to '/dev/full': No space left on device");
  }
}

TEST(RecordFile, CutsOffALineThatDidNotFit) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  const pid_t child = fork();  // the limit is the process's own
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    RecordFile file(path);
    file.append({{"n", 1}});
    int thrown = 0;
    for (int i = 0; i < 2; ++i) {
      try {
        file.append({{"text", std::string(200, 'x')}});
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    }
    file.append({{"n", 2}});
    _exit(thrown == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(contents(path), "{\"n\":1}\n{\"n\":2}\n");
}

TEST(RecordFile, TwoProcessesLoseNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  write_text(path, "{\"torn");
  constexpr int lines = 1000;
  pid_t children[2];
  for (int process = 0; process < 2; ++process) {
    children[process] = fork();
    ASSERT_GE(children[process], 0);
    if (children[process] == 0) {
      RecordFile file(path);
      for (int i = 0; i < lines; ++i) {
        file.append({{"process", process}, {"i", i}, {"text", std::string(i % 97 * 50, 'x')}});
      }
      _exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::vector<std::string> problems;
  std::set<std::pair<int, int>> seen;
  for (const Json& record : read_records(path, problems))
    seen.emplace(record["process"].get<int>(), record["i"].get<int>());
  EXPECT_EQ(seen.size(), 2u * lines);
  EXPECT_EQ(problems.size(), 1u) << "the torn line, and no blank or broken one";
  EXPECT_EQ(contents(path).find("\n\n"), std::string::npos);
}

TEST(ReadRecords, SkipsWhatIsNoRecord) {
  const TemporaryFolder folder;
  std::vector<std::string> problems;
  EXPECT_TRUE(read_records(folder.path() / "missing.jsonl", problems).empty());
  EXPECT_TRUE(problems.empty());

  const std::string path = folder.path() / "r.jsonl";
  write_text(path, "{\"n\":1}\r\n\n[1]\n{\"n\":2} {\"n\":3}\nnonsense\n{\"n\":4}\n{\"n\":");
  const std::vector<Json> records = read_records(path, problems);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["n"], 4);
  EXPECT_EQ(problems, (std::vector<std::string>{"line 3: no JSON object, skipped", "line 4: no JSON object, skipped",
                                                "line 5: no JSON object, skipped",
                                                "line 7: torn (the run that wrote it ended early), skipped"}));
  write_text(path, "{\"n\":1}");
  EXPECT_EQ(read_records(path, problems).size(), 1u) << "whole, though its end of line is missing";
  EXPECT_THROW(read_records("/", problems), BadInput);
}

}  // namespace
}  // namespace attn
