// Tests of an experiment's run. Most of them use a fake device with virtual time: a test sets how long a launch takes.
#include "common/experiment/experiment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "common/backends/cpu/operations.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/base/shell.h"
#include "common/base/temporary_folder.h"
#include "common/base/version.h"
#include "common/device/kernels/ceiling.h"
#include "common/experiment/ceilings.h"
#include "common/experiment/environment.h"
#include "common/experiment/options.h"
#include "common/testing/devices.h"

namespace attn {
namespace {

namespace fs = std::filesystem;

constexpr double fma_tflops = 0.5, copy_rate_gbps = 20, read_rate_gbps = 40;

/// The behaviour of the fake device and of the fake problems. Every test with the fake device starts with a new World.
struct World {
  std::function<double(const Case&)> seconds = [](const Case&) { return 1e-3; };
  std::function<void(const Case&)> on_make = [](const Case&) {};
  std::function<bool(const Case&, int checks)> correct = [](const Case&, int) { return true; };
  std::function<void()> on_launch = [] {};
  std::function<void(double)> on_launch_of = [](double) {};  // called with the seconds of the launch
  /// The seconds by which other programs delay a launch of this entry.
  std::function<double(const std::string&)> delay = [](const std::string&) { return 0.0; };
  bool flush_works = true;
  size_t last_level_cache = size_t{1} << 20;
  size_t kept_by_caches = SIZE_MAX;  // a copy of more bytes is cold without a flush, too
  std::string source = "int one;";
  double flops = 1e6, bytes = 1e3;
  bool value_is_nan = false;
  Bound bound = Bound::matrix;
  std::optional<Work> counted;  // the result of Problem::work()
  int launches_of_a_case = 1;
  bool on_host = false;  // cases are about the host, and nothing is launched
  int samples = 0;       // samples of the host's work
  int makes = 0, launches = 0, poisons = 0, dumps = 0;
  std::vector<std::string> opened;
  std::vector<std::vector<std::string>> restarts;  // command lines
  std::vector<std::vector<std::string>> parts;     // command lines
  std::vector<Json> tasks;                         // of the parts
  std::optional<int> part_status;                  // if set, parts measure nothing, and end with this status
  double free_on_device = std::numeric_limits<double>::infinity();  // bytes
  size_t threadgroup_memory = 0;
  uint64_t last_seed = 0;
  std::map<std::string, int> plans;  // how often a case was planned, by the case's key
};
World world;

struct LaunchParams {
  double seconds;
  int* written;
};

class FakeKernel : public Kernel {
 public:
  explicit FakeKernel(std::string name) : entry(std::move(name)) {}
  const std::string entry;
};

class FakeDevice : public Device {
 public:
  explicit FakeDevice(std::string_view spec) {
    info_.spec = spec;
    info_.backend = "cpu";
    info_.operations = &cpu_operations();
    info_.name = "fake";
    info_.units = 2;
    info_.simd_width = 8;
    info_.vector_registers = 16;
    info_.threadgroup_memory_bytes = 8192;
    info_.last_level_cache_bytes = world.last_level_cache;
    info_.memory_bytes = size_t{1} << 40;
  }
  double available_bytes() const override { return world.free_on_device; }
  void* allocate(size_t bytes) override { return std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); }
  void release(void* pointer) noexcept override { std::free(pointer); }
  void upload(void* target, const void* source, size_t bytes) override { std::memcpy(target, source, bytes); }
  void download(void* target, const void* source, size_t bytes) override { std::memcpy(target, source, bytes); }
  Binary compile(const KernelSource& source, const CompileOptions&) override {
    Binary binary;
    binary.key = source.key();
    binary.code = source.entry;
    binary.code_sha256 = sha256(binary.code);
    binary.source_sha256 = source_sha256(source);
    return binary;
  }
  std::string compiler_identity() const override { return "fake"; }
  CodeContents contents(const Binary&) const override { return {{{"nop", 3}}, {}, {}, 4096}; }
  std::unique_ptr<Kernel> load(const Binary&, const std::string& entry) override {
    return std::make_unique<FakeKernel>(entry);
  }
  std::vector<double> submit(const CommandEncoder& encoder) override {
    try {
      return run(encoder);
    } catch (const DeviceLost&) {
      lost_ = true;
      throw;
    }
  }

 private:
  std::vector<double> run(const CommandEncoder& encoder) {
    std::vector<double> stamps;
    double now = 0;
    for (const auto& command : encoder.commands()) {
      if (std::holds_alternative<CommandEncoder::Fill>(command)) {
        flushed_ = true;
      } else if (const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command)) {
        const bool cold = (flushed_ && world.flush_works) || copied_bytes(*dispatch) > world.kept_by_caches;
        now += run(*dispatch) * (cold ? 2 : 1) + world.delay(static_cast<const FakeKernel*>(dispatch->kernel)->entry);
        flushed_ = false;
      } else {
        stamps.push_back(now);
      }
    }
    std::vector<double> seconds;
    for (size_t i = 1; i < stamps.size(); ++i) seconds.push_back(stamps[i] - stamps[i - 1]);
    return seconds;
  }

  static size_t copied_bytes(const CommandEncoder::Dispatch& dispatch) {
    if (static_cast<const FakeKernel*>(dispatch.kernel)->entry != "ceiling_copy") return 0;
    CopyParams params;
    std::memcpy(&params, dispatch.parameters.data(), sizeof params);
    return 2 * params.part_bytes * dispatch.grid.count();
  }

  double run(const CommandEncoder::Dispatch& dispatch) {
    const std::string& entry = static_cast<const FakeKernel*>(dispatch.kernel)->entry;
    if (entry == "ceiling_copy") {
      CopyParams params;
      std::memcpy(&params, dispatch.parameters.data(), sizeof params);
      return 2.0 * static_cast<double>(params.part_bytes * dispatch.grid.count()) / (copy_rate_gbps * 1e9);
    }
    if (entry == "ceiling_read") {
      ReadParams params;
      std::memcpy(&params, dispatch.parameters.data(), sizeof params);
      return static_cast<double>(params.part_bytes * dispatch.grid.count()) / (read_rate_gbps * 1e9);
    }
    if (entry == "ceiling_fma") {
      ArithmeticParams params;
      std::memcpy(&params, dispatch.parameters.data(), sizeof params);
      return 2.0 * 8 * 12 * static_cast<double>(params.iterations) * static_cast<double>(dispatch.grid.count()) /
             (fma_tflops * 1e12);
    }
    LaunchParams params;
    std::memcpy(&params, dispatch.parameters.data(), sizeof params);
    ++world.launches;
    ++*params.written;
    world.on_launch();
    world.on_launch_of(params.seconds);
    jitter_ = (jitter_ * 5 + 3) % 17;
    return params.seconds * (1 + 1e-5 * jitter_);
  }

  bool flushed_ = false;
  int jitter_ = 0;
};

KernelSource fake_source(const Case& config) {
  const std::string path = "fake.cpu.cpp";
  return {path, "work", {{"TILE", config.integer("tile")}}, {{path, world.source}}};
}

class FakeProblem : public Problem {
 public:
  FakeProblem(Experiment& lab, Case config, double slower = 1)
      : config_(std::move(config)), kernel_("work"), slower_(slower) {
    world.on_make(config_);
    ++world.makes;
    world.last_seed = lab.seed();
    world.threadgroup_memory = lab.device().info().threadgroup_memory_bytes;
  }
  void encode(CommandEncoder& encoder) const override {
    for (int launch = 0; launch < world.launches_of_a_case; ++launch) {
      encoder.dispatch(kernel_, {1}, 1, 0, LaunchParams{slower_ * world.seconds(config_), &written_});
    }
  }
  std::optional<Work> work() const override { return world.counted; }
  Json values() const override {
    if (world.value_is_nan) return {{"error", std::nan("")}};
    return {{"tile_area", config_.integer("tile") * config_.integer("n")}};
  }
  void poison() override {
    written_ = 0;
    ++world.poisons;
  }
  Check check() override {
    Check check;
    check.ok = written_ > 0 && world.correct(config_, checks_++);
    check.rows_checked = 1;
    if (!check.ok) check.worst = "O[0]: got nan, want 1";
    return check;
  }
  void dump(const std::string& path) const override {
    ++world.dumps;
    std::ofstream(path) << written_;
  }

 private:
  Case config_;
  FakeKernel kernel_;
  double slower_;
  mutable int written_ = 0;
  int checks_ = 0;
};

class FakeHostProblem : public HostProblem {
 public:
  explicit FakeHostProblem(Case config) : config_(std::move(config)) { ++world.makes; }
  double sample() override {
    ++sampled_;
    return world.seconds(config_) * (1 + 1e-5 * (++world.samples % 7));
  }
  Check check() override {
    Check check;
    check.ok = sampled_ > 0 && world.correct(config_, checks_++);
    check.rows_checked = 1;
    if (!check.ok) check.worst = "O[0]: got nan, want 1";
    return check;
  }
  Json values() const override { return {{"samples", world.samples}}; }

 private:
  Case config_;
  int sampled_ = 0, checks_ = 0;
};

ExperimentSpec fake_spec() {
  ExperimentSpec spec;
  spec.name = "fake_experiment";
  spec.summary = "A test of the loop";
  spec.axes = {{.name = "n", .help = "size", .choices = {}, .min = 1, .max = 65536},
               {.name = "m", .help = "other size, n if not named", .choices = {}, .min = 1, .max = 65536},
               {.name = "tile", .help = "tile", .choices = {}, .min = 8, .max = 64, .multiple_of = 8},
               {.name = "variant", .help = "kernel", .choices = {"tuned", "naive"}}};
  spec.compared_axes = {"tile", "variant"};
  spec.claims = [](const DeviceInfo&) {
    return std::vector<Claim>{{.hypothesis = {"tile32", "tile 32 is faster", "ratio of medians", "<", 1.0, "a test"},
                               .varies = {"tile"},
                               .pick = steps("tile", {{"16", "32"}}),
                               .subject = subject_without({"m", "tile", "variant"}),
                               .title = "tile 32 takes {compare.ratio:.2f} of tile 16",
                               .content = "tile 32 takes {compare.ratio:.2f} of tile 16",
                               .advice = {"Take tile 32.", "Take tile 16."}},
                              {.hypothesis = {"other", "never judged", "nothing", ">", 2.0, "a test"}, .at_least = 99}};
  };
  spec.sweep = [](const std::string& profile, const DeviceInfo&) {
    const Axis n{"n", {int64_t{64}, int64_t{128}, int64_t{256}}};
    const Axis tile{"tile", {int64_t{16}, int64_t{32}}};
    Sweep sweep{{{n, tile, {"variant", {std::string("tuned")}}}}};
    if (profile == "full") sweep.blocks.push_back({n, {"tile", {int64_t{64}}}, {"variant", {std::string("naive")}}});
    return sweep;
  };
  spec.complete = [](Case& config, const DeviceInfo&) {
    if (!config.has("m")) config.set("m", config.integer("n"));
    if (!config.has("tile")) config.set("tile", int64_t{24});
    if (!config.has("variant")) config.set("variant", std::string("naive"));
  };
  spec.plan = [](const Case& config, const Setting&) {
    ++world.plans[config.key()];
    if (config.integer("m") < config.integer("n")) throw BadInput("m must be at least n");
    const auto bytes = static_cast<size_t>(config.integer("tile") * config.integer("n"));
    Plan plan{.work = {.flops = world.flops, .bytes = world.bytes, .bound = world.bound}, .host = world.on_host};
    for (int launch = 0; launch < world.launches_of_a_case; ++launch) {
      plan.launches.push_back({.source = fake_source(config), .threadgroup_bytes = bytes, .phase = "work"});
      if (launch > 0) plan.launches.back().source.constants["STEP"] = launch;
    }
    return plan;
  };
  spec.make = [](Experiment& lab, const Case& config, const Plan&) {
    return std::make_unique<FakeProblem>(lab, config);
  };
  spec.make_host = [](Experiment&, const Case& config, const Plan&) {
    return std::make_unique<FakeHostProblem>(config);
  };
  spec.input_axes = [](const std::string&) { return std::vector<Axis>{{"n", {int64_t{96}}}}; };
  return spec;
}

class ExperimentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    world = World();
    setenv("ATTENTION_PROTO_CACHE", (folder_.path() / "cache").c_str(), 1);
  }

  struct Outcome {
    int status;
    std::string out, err;
  };

  /// Runs the experiment. Without --processes this process measures everything.
  Outcome run(std::vector<std::string> arguments, const std::function<int(Experiment&)>& body = &Experiment::run) {
    for (const auto& [option, value] :
         {std::pair<std::string, std::string>{"--measurements", path("measurements.jsonl")},
          {"--out", path("out.jsonl")},
          {"--processes", "1"}}) {
      if (std::find(arguments.begin(), arguments.end(), option) == arguments.end()) {
        arguments.insert(arguments.begin(), {option, value});
      }
    }
    arguments.insert(arguments.begin(), "/somewhere/fake_experiment");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = run_here(arguments, body);
    return {status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
  }

  /// Runs a command line, and the parts that it asks for, in this process.
  int run_here(const std::vector<std::string>& arguments, const std::function<int(Experiment&)>& body) {
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return run_experiment(
        static_cast<int>(argv.size()), argv.data(), spec_, body,
        [](std::string_view spec) {
          if (spec == "gone") throw DeviceMissing("gone: is not there");
          world.opened.emplace_back(spec);
          return std::make_unique<FakeDevice>(spec);
        },
        [](const std::vector<std::string>& given) { world.restarts.push_back(given); },
        [&](const std::vector<std::string>& given, const std::function<bool()>&) {
          world.parts.push_back(given);
          std::vector<std::string> problems;
          const auto task = std::ranges::find(given, "--part");
          if (task != given.end()) world.tasks.push_back(read_records(task[1], problems).at(0));
          return world.part_status ? *world.part_status : run_here(given, body);
        });
  }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  std::vector<Json> records(const std::string& name) const {
    std::vector<std::string> problems;
    return read_records(path(name), problems);
  }
  std::vector<Json> measurements() const { return records("measurements.jsonl"); }
  std::vector<Json> findings() const {
    std::vector<Json> all = records("out.jsonl");
    std::erase_if(all, [](const Json& record) { return record["schema"] != "finding/2"; });
    return all;
  }
  /// The line before the findings of the first run.
  Json header() const {
    const std::vector<Json> all = records("out.jsonl");
    return all.empty() ? Json() : all.front();
  }
  /// The line before the findings of a finding's run.
  Json header_of(const Json& finding) const {
    for (const Json& record : records("out.jsonl")) {
      if (record["schema"] == "run/1" && record["run"]["id"] == finding["data"]["run"]) return record;
    }
    return {};
  }

  /// The one measurement of a case.
  Json measurement(int64_t n, int64_t tile) const {
    Json found;
    for (const Json& record : measurements()) {
      if (!record.contains("case") || record["case"]["n"] != n || record["case"]["tile"] != tile) continue;
      EXPECT_TRUE(found.is_null()) << "two records of n=" << n << " tile=" << tile;
      found = record;
    }
    EXPECT_FALSE(found.is_null()) << "no record of n=" << n << " tile=" << tile;
    return found;
  }

  /// The cases that a command line selects.
  std::vector<std::string> cases_of(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--dry-run", "--json"});
    std::vector<std::string> cases;
    std::istringstream lines(run(arguments).out);
    for (std::string line; std::getline(lines, line);) cases.push_back(Case::from_json(parse_json(line)["case"]).key());
    return cases;
  }

  ExperimentSpec spec_ = fake_spec();
  TemporaryFolder folder_;
};

bool tile_is(const Case& config, int64_t tile) { return config.integer("tile") == tile; }

// ---- the loop

TEST_F(ExperimentTest, MeasuresComparesAndConcludes) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  const Outcome outcome = run({"--verdicts"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(measurements().size(), 6u);
  const Json record = measurement(128, 32);
  EXPECT_EQ(record["status"], "ok");
  EXPECT_EQ(record["id"], record_id(record));
  EXPECT_EQ(record["device"], "fake, 2 units");
  EXPECT_EQ(record["run"]["device"], "cpu");
  EXPECT_EQ(record["time"].size(), 2u);  // hot and host, no cold in the quick profile
  EXPECT_EQ(record["time"][0]["scope"], "device_hot");
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 0.5e-3, 1e-6);
  EXPECT_EQ(record["time"][0]["launches_per_sample"], 1);
  EXPECT_EQ(record["time"][1]["scope"], "host");
  // 1e6 flops in 0.5 ms are 0.002 TFLOP/s. The ceiling is 0.5 TFLOP/s.
  EXPECT_NEAR(record["rate"]["pct_matrix_ceiling"].get<double>(), 0.4, 0.01);
  EXPECT_NEAR(record["rate"]["pct_copy_ceiling"].get<double>(), 0.01, 0.001);

  ASSERT_EQ(findings().size(), 3u);
  for (const Json& finding : findings()) {
    EXPECT_EQ(finding["id"], record_id(finding));
    const Json& data = finding["data"];
    EXPECT_EQ(data["verdict"]["state"], "supported");
    EXPECT_NEAR(data["compare"]["ratio"].get<double>(), 0.5, 1e-3);
    EXPECT_GE(data["compare"]["time"][0]["rounds"].get<int>(), 15);
    EXPECT_EQ(data["cases"].size(), 2u);
    EXPECT_EQ(data["measurements"].size(), 2u);
    EXPECT_EQ(data["run"], record["run_id"]);
    EXPECT_EQ(finding["confidence"], 0.8);
  }
  const Json run_line = header();
  EXPECT_EQ(run_line["schema"], "run/1");
  EXPECT_EQ(run_line["id"], record_id(run_line));
  EXPECT_EQ(run_line["run"]["id"], record["run_id"]);
  EXPECT_EQ(run_line["run"]["argv"][0], "fake_experiment");
  EXPECT_EQ(run_line["run"]["seed"], 1);
  EXPECT_TRUE(run_line["run"]["replay"].get<std::string>().ends_with("--device cpu --profile quick --seed 1"));
  EXPECT_EQ(run_line["session"]["machine"], record["run"]["machine"]);
  EXPECT_NEAR(run_line["env"]["ceilings"]["f32_tflops"].get<double>(), fma_tflops, 1e-6);
  EXPECT_NEAR(run_line["env"]["ceilings"]["copy_gbps"].get<double>(), copy_rate_gbps, 1e-6);
  EXPECT_EQ(run_line["env"]["version"], version());
  EXPECT_TRUE(run_line["env"].contains("git"));
  EXPECT_NE(outcome.out.find("vs fastest"), std::string::npos);
  EXPECT_NE(outcome.out.find("SUPPORTED    tile32 (n=128): tile 32 takes 0.50 of tile 16\n             ratio of"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("\n             advice: Take tile 32.\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(
                "3 verdicts, from 3 measurements, are decided; of these verdicts, 0.6 are expected to be wrong.\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("NOT JUDGED   other"), std::string::npos);
  EXPECT_NE(outcome.err.find("[9/9]"), std::string::npos) << outcome.err;  // 6 cases and 3 comparisons
  char host[256];
  ASSERT_EQ(gethostname(host, sizeof host), 0);
  EXPECT_EQ(header().dump().find("\"" + std::string(host) + "\""), std::string::npos);
}

TEST_F(ExperimentTest, AMeasurementSaysWhatDisturbedIt) {
  EXPECT_EQ(run({}).status, 0);
  const size_t steady = measurements().size();
  world.delay = [launch = 0](const std::string&) mutable { return ++launch % 7 < 2 ? 5e-3 : 0.0; };
  EXPECT_EQ(run({}).status, 0);
  const std::vector<Json> records = measurements();
  ASSERT_EQ(records.size(), 2 * steady);
  for (size_t i = 0; i < records.size(); ++i) {
    const std::string busy = records[i]["busy"];
    EXPECT_EQ(busy.find("the samples scatter by ") != busy.npos, i >= steady) << records[i].dump();
  }
}

// ---- processes

TEST_F(ExperimentTest, ProcessesMeasureTheComparisons) {
  world.seconds = [](const Case& config) {
    const double slower = 1 + 0.01 * static_cast<double>(world.parts.size());
    return (tile_is(config, 32) ? 0.5e-3 * slower : 1e-3);
  };
  const Outcome outcome = run({"--processes", "3"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(world.parts.size(), 3u);
  EXPECT_EQ(world.parts[0][0], "/somewhere/fake_experiment");
  EXPECT_EQ(measurements().size(), 6u) << "the processes of --processes must write no records of cases";
  ASSERT_EQ(findings().size(), 3u);
  for (const Json& finding : findings()) {
    const Json& data = finding["data"];
    ASSERT_EQ(data["parts"].size(), 3u);
    for (int i : {0, 1, 2}) EXPECT_NEAR(data["parts"][i]["value"].get<double>(), 0.5 * (1 + 0.01 * (i + 1)), 1e-4);
    EXPECT_EQ(data["compare"]["parts"].size(), 3u);
    EXPECT_NEAR(data["compare"]["ratio"].get<double>(), 0.51, 1e-4);
    EXPECT_GE(data["compare"]["time"][0]["rounds"], 15);
    EXPECT_EQ(data["estimate"]["processes"], 3);
    EXPECT_NEAR(data["estimate"]["tau"].get<double>(), 0.0098, 1e-3);
  }
  EXPECT_EQ(run({"--resume", "--processes", "3"}).status, 0);
  EXPECT_EQ(world.parts.size(), 3u) << "the findings have all pairs, so no process may start";
}

TEST_F(ExperimentTest, TheSamplesGiveTheFiguresAgain) {
  EXPECT_EQ(run({"--processes", "2"}).status, 0);
  const std::vector<Json> samples = records("measurements.samples.jsonl");
  std::map<int, int> lines;  // by process
  for (const Json& line : samples) {
    EXPECT_EQ(line["schema"], "samples/1");
    EXPECT_EQ(line["run"], measurements()[0]["run_id"]);
    ++lines[line["process"]];
    for (const char* side : {"samples_s", "baseline_s", "contender_s", "again_s"}) {
      for (const Json& sample : line.value(side, Json::array()))
        EXPECT_LE(sample.dump().size(), 14u) << "a sample must have at most six digits";
    }
  }
  EXPECT_EQ(lines, (std::map<int, int>{{0, 6}, {1, 3}, {2, 3}}))
      << "the sweep must have a line for each of 6 cases, and each process a line for each of 3 pairs";
  const Json finding = findings().at(0);
  for (const Json& part : finding["data"]["compare"]["parts"]) {
    const auto line = std::ranges::find_if(samples, [&](const Json& one) {
      return one["process"] == part["process"] &&
             one.value("contender", Json()) == finding["data"]["compare"]["contender"];
    });
    ASSERT_NE(line, samples.end());
    EXPECT_EQ(ratio(samples_from_json(*line).baseline, samples_from_json(*line).contender, 1).value, part["ratio"]);
    EXPECT_EQ((*line)["clocks"], part["clocks"]);
    EXPECT_GT(part["clocks"]["readings"], 0);
    EXPECT_TRUE(part["clocks"]["throttle_reasons"].is_array());
  }
  EXPECT_EQ(run({"--measurements", "/dev/null", "--axis", "n=64"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists("/dev/null.samples.jsonl"));
}

TEST_F(ExperimentTest, AFindingNamesTheCodeOfItsCases) {
  EXPECT_EQ(run({}).status, 0);
  const Json data = findings().at(0)["data"];
  const std::vector<Json> measured = measurements();
  ASSERT_EQ(data["code"].size(), data["cases"].size());
  for (size_t i = 0; i < data["cases"].size(); ++i) {
    const auto record =
        std::ranges::find_if(measured, [&](const Json& one) { return one["case"] == data["cases"][i]; });
    ASSERT_NE(record, measured.end());
    EXPECT_EQ(data["code"][i], Json::array({(*record)["pipeline"]["code_sha256"]}));
  }
}

TEST_F(ExperimentTest, ProcessesMeasureTheCasesOfAClaimAgain) {
  spec_.claims = [](const DeviceInfo&) {
    return std::vector<Claim>{{.hypothesis = {"fastest", "n=64 takes at most 2 ms", "ms", "<=", 2, "a test"},
                               .takes = [](const Measurement& result) { return result.config.integer("n") == 64; },
                               .varies = {"tile"},
                               .pick = [](const Results& group) { return std::vector<Results>{{fastest(group)}}; },
                               .compared = false,
                               .figure = [](const Evidence& evidence) -> Estimate {
                                 const double ms = 1e3 * seconds(*evidence.results.front());
                                 return {ms, ms, ms};
                               },
                               .title = "{estimate.value:.1f} ms"}};
  };
  // The sweep finds tile 32 fast, by luck.
  world.seconds = [](const Case& config) { return world.parts.empty() && tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  EXPECT_EQ(run({"--processes", "2"}).status, 0);
  EXPECT_EQ(world.parts.size(), 2u);
  ASSERT_EQ(findings().size(), 1u);
  EXPECT_EQ(findings()[0]["title"], "1.0 ms") << "the figure must not be the time that picked the case";
  EXPECT_EQ(findings()[0]["data"]["measurements"], Json::array({measurement(64, 32)["id"]}));
}

TEST_F(ExperimentTest, TheBaselineIsMeasuredAgainOnInputsOfItsOwn) {
  static std::vector<const void*> makers;
  makers.clear();
  spec_.make = [inputs = std::vector<int>(1)](Experiment& lab, const Case& config, const Plan&) {
    makers.push_back(inputs.data());
    return std::make_unique<FakeProblem>(lab, config);
  };
  EXPECT_EQ(run({"--axis", "n=64", "--axis", "tile=16,32"}).status, 0);
  ASSERT_EQ(makers.size(), 2u + 3u);  // the sweep's two cases; then A, B and A' of the comparison
  EXPECT_EQ(makers[2], makers[3]);
  EXPECT_NE(makers[2], makers[4]);
}

TEST_F(ExperimentTest, AProcessThatLosesItsDeviceCostsOneCase) {
  world.on_make = [](const Case& config) {
    if (!world.parts.empty() && config.integer("n") == 128 && tile_is(config, 32)) throw DeviceLost("a fault");
  };
  const Outcome outcome = run({"--processes", "2"});
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  std::set<int> judged;
  for (const Json& finding : findings()) {
    judged.insert(finding["data"]["cases"][0]["n"].get<int>());
    EXPECT_EQ(finding["data"]["parts"].size(), 2u);
  }
  EXPECT_EQ(judged, (std::set<int>{64, 256}));
  EXPECT_EQ(measurements().back()["case"]["n"], 128);
  EXPECT_EQ(measurements().back()["status"], "failed");
}

TEST_F(ExperimentTest, AProcessThatIsEndedIsReported) {
  world.part_status = 128 + SIGKILL;
  const Outcome outcome = run({"--processes", "2"});
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("process 2 of 2 that repeat measurements was ended by signal 9"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.out.find("\n6 ok, "), std::string::npos) << outcome.out;
}

TEST_F(ExperimentTest, InterruptionOfAProcessEndsTheRun) {
  world.on_launch = [raised = false]() mutable {
    if (world.parts.size() == 2 && !raised) raised = std::raise(SIGINT) == 0;
  };
  const Outcome outcome = run({"--processes", "3"});
  EXPECT_EQ(outcome.status, 130);
  EXPECT_EQ(measurements().size(), 6u);
  EXPECT_TRUE(findings().empty());
}

TEST_F(ExperimentTest, FiveProcessesShareTheRoundsOfTheFullProfile) {
  const std::vector<std::string> arguments = {"--profile", "full",   "--processes", "5",      "--axis",
                                              "n=8",       "--axis", "tile=16,32",  "--axis", "variant=tuned"};
  EXPECT_EQ(run(arguments).status, 0);
  ASSERT_EQ(findings().size(), 1u);
  Json compare = findings()[0]["data"]["compare"];
  ASSERT_EQ(compare["parts"].size(), 5u);
  for (const Json& part : compare["parts"]) EXPECT_EQ(part["time"][0]["rounds"], 10);
  EXPECT_EQ(compare["time"][0]["rounds"], 50);
  // The processes also share the rounds of cases about the host. Here each process takes six rounds, because an
  // interval needs six rounds.
  world.on_host = true;
  world.source = "int two;";
  EXPECT_EQ(run(arguments).status, 0);
  ASSERT_EQ(findings().size(), 2u);
  compare = findings()[1]["data"]["compare"];
  for (const Json& part : compare["parts"])
    EXPECT_EQ(part["time"][0]["rounds"], 6) << "the processes must share the rounds; a single process takes 10";
}

TEST_F(ExperimentTest, TheProcessesShareTheBudgetOfTheRun) {
  EXPECT_EQ(run({"--processes", "3", "--budget", "60"}).status, 0);
  ASSERT_EQ(world.tasks.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(world.tasks[i]["part"], i + 1);
    EXPECT_LE(world.tasks[i]["budget_s"].get<double>(), 60.0 / static_cast<double>(3 - i));
    EXPECT_EQ(world.tasks[i]["duels"].size(), 3u)
        << "the processes must measure the claims' pairs, not all pairs of cases";
    EXPECT_TRUE(world.tasks[i]["groups"].empty());
  }
}

// A round measures the baseline A, the contender B and the repeated baseline A'. If times grow during a round, A' takes
// longer than A in the order A B A'. In the order A' B A it takes less time than A.
TEST_F(ExperimentTest, EverySecondProcessBeginsWithTheRepeatedBaseline) {
  // The sweep makes two problems, and each process makes A, B and A'.
  spec_.make = [](Experiment& lab, const Case& config, const Plan&) {
    const bool again = lab.is_part() && world.makes % 3 == 1;
    return std::make_unique<FakeProblem>(lab, config, again ? 1.25 : 1);
  };
  std::vector<std::vector<double>> launches(4);  // of the sweep and of each process
  world.on_launch_of = [&](double seconds) { launches.at(world.parts.size()).push_back(seconds); };
  EXPECT_EQ(run({"--processes", "3", "--axis", "n=8", "--axis", "tile=16,32"}).status, 0);
  // The first three launches of each problem decide how many launches a sample has. Then the first problem of the round
  // warms up.
  for (const auto& [process, first] : {std::pair{1, 1e-3}, {2, 1.25e-3}, {3, 1e-3}}) {
    ASSERT_GT(launches[process].size(), 9u);
    EXPECT_EQ(launches[process][6], 1.25e-3) << "A' must be the last problem";
    EXPECT_EQ(launches[process][9], first) << process;
  }
}

TEST(Options, NoSamplesFileNextToADeviceFile) {
  Options options;
  EXPECT_EQ(options.samples_path(), "measurements.samples.jsonl");
  options.measurements_path = "/dev/shm/nosuch/m";
  EXPECT_EQ(options.samples_path(), "/dev/shm/nosuch/m.samples.jsonl");
  for (const char* path : {"/dev/null", "/dev/stdout", "/dev/fd/1", "/"}) {
    options.measurements_path = path;
    EXPECT_EQ(options.samples_path(), "") << path;
  }
}

TEST(Options, ProcessesOfAProfile) {
  const DeviceInfo cpu = test::avx2(), gpu = test::hopper();
  Options options;
  EXPECT_EQ(options.process_count(cpu), 3);
  EXPECT_EQ(options.process_count(gpu), 3);
  options.profile = "full";
  EXPECT_EQ(options.process_count(cpu), 5);
  EXPECT_EQ(options.process_count(gpu), 3);
  options.processes = 7;
  EXPECT_EQ(options.process_count(cpu), 7);
}

TEST_F(ExperimentTest, ResumeRefusesAnotherCommitAndAnotherMachine) {
  const std::vector<std::string> one = {"--axis", "n=8", "--axis", "tile=16", "--resume"};
  run(one);
  const Json mine = measurements().at(0);
  for (const std::string field : {"commit", "diff", "machine"}) {
    Json record = mine;
    record["run"][field] = "0123456789abcdef";
    std::ofstream(path("measurements.jsonl")) << record.dump() << "\n";
    const Outcome outcome = run(one);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.err.find("has a run with another " + field + " (\"0123456789abcdef\", now "), std::string::npos)
        << outcome.err;
    EXPECT_EQ(measurements().size(), 1u);
  }
}

TEST(Session, NamesTheMachineAndTheChangesByHashes) {
  const TemporaryFolder folder;
  const std::string at = folder.path();
  const auto git = [&](const std::string& rest) {
    ASSERT_EQ(std::system(("git -C " + at + " -c user.name=a -c user.email=a@b " + rest + " >/dev/null").c_str()), 0);
  };
  fs::create_directory(folder.path() / "tuned");
  std::ofstream(folder.path() / "tuned/a.json") << "1";
  git("init -q");
  git("add .");
  git("commit -q -m a");
  const Json clean = session(at, {"tuned"});
  EXPECT_EQ(clean["commit"].get<std::string>().size(), 40u);
  EXPECT_TRUE(clean["diff"].is_null());
  EXPECT_EQ(session(at, {"tuned"}), clean);
  std::ofstream(folder.path() / "tuned/a.json") << "2";
  const Json dirty = session(at, {"tuned"});
  EXPECT_EQ(dirty["diff"].get<std::string>().size(), 16u);
  EXPECT_EQ(dirty["commit"], clean["commit"]);
  EXPECT_EQ(dirty["machine"], clean["machine"]);
  EXPECT_NE(dirty["files"]["tuned"], clean["files"]["tuned"]);
  // The hash has a salt, so that nobody finds the machine's model in a table of hashes.
  std::ifstream cpuinfo("/proc/cpuinfo"), boot("/proc/sys/kernel/random/boot_id");
  std::string model, id;
  while (std::getline(cpuinfo, model) && !model.starts_with("model name")) {
  }
  std::getline(boot, id);
  const std::string cores = std::to_string(std::thread::hardware_concurrency());
  const std::string machine = clean["machine"];
  EXPECT_EQ(machine.size(), 16u);
  for (const std::string& text : {model + " " + id + "\n " + cores, model + " " + id + " " + cores, model, id}) {
    EXPECT_NE(machine, sha256(text).substr(0, 16));
  }
}

TEST_F(ExperimentTest, ACaseIsPlannedOnceARun) {
  const auto expect_once = [&](const std::vector<std::string>& arguments, size_t cases) {
    world.plans.clear();
    EXPECT_EQ(run(arguments).status, 0);
    EXPECT_EQ(world.plans.size(), cases) << shell_command(arguments);
    for (const auto& [config, count] : world.plans) EXPECT_EQ(count, 1) << config << " " << shell_command(arguments);
  };
  expect_once({"--dry-run"}, 6);
  expect_once({}, 6);  // the run selects, compiles, checks, measures and compares the cases
  ASSERT_EQ(findings().size(), 3u);
  expect_once({"--resume"}, 6);
  expect_once({"--only", "verify"}, 6);
  expect_once({"--replay", findings()[0]["id"]}, 2);
  expect_once({"--replay", measurements()[0]["id"]}, 1);
}

TEST_F(ExperimentTest, CasesOfTheHost) {
  world.on_host = true;
  // These measured times are longer than the longest launch that is allowed. The limit holds for a launch's measured
  // time, not for the measured time of the host's work.
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 2.0 : 4.0; };
  Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16,32"}, [](Experiment& lab) {
    for (const auto& cases : lab.groups()) lab.measure(lab.verify(cases));
    return lab.conclude({});
  });
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(world.launches, 0);
  const Json record = measurement(8, 32);
  EXPECT_EQ(record["status"], "ok");
  ASSERT_EQ(record["time"].size(), 1u);
  EXPECT_EQ(record["time"][0]["scope"], "host");
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 2, 1e-3);
  EXPECT_TRUE(record["rate"].is_null());
  EXPECT_EQ(record["values"]["samples"], world.samples);
  const int counted = record["time"][0]["n"];
  EXPECT_GE(counted, 3);
  EXPECT_EQ(world.samples, 2 * (1 + counted)) << "of the two checks only the first may take a sample";
  EXPECT_NE(outcome.out.find("2.000 s"), std::string::npos) << outcome.out;

  world.samples = 0;
  outcome = run({"--axis", "n=9", "--axis", "tile=16,32"});
  ASSERT_EQ(findings().size(), 1u) << outcome.err;
  const Json compare = findings()[0]["data"]["compare"];
  EXPECT_NEAR(compare["ratio"].get<double>(), 0.5, 1e-3);
  EXPECT_EQ(compare["time"][1]["scope"], "host");
  EXPECT_GE(compare["time"][1]["rounds"], 6);

  const int makes = world.makes;
  outcome =
      run({"--axis", "n=9", "--axis", "tile=16,32", "--resume"}, [](Experiment& lab) { return lab.conclude({}); });
  EXPECT_NE(outcome.err.find("cases recorded 2, left 0"), std::string::npos) << outcome.err;
  EXPECT_EQ(world.makes, makes) << "the plan must tell whether the source is the same, without a problem";
  outcome = run({"--replay", measurement(9, 32)["id"]});
  EXPECT_NE(outcome.out.find("AGREES"), std::string::npos) << outcome.out;

  world.correct = [](const Case&, int checks) { return checks == 0; };
  outcome = run({"--axis", "n=10", "--axis", "tile=16"});
  EXPECT_EQ(outcome.status, 1) << "the case must be checked again after it was timed";
  EXPECT_EQ(measurement(10, 16)["status"], "wrong");
}

// A group may have cases of both kinds: cases that launch kernels, and cases about the host.
TEST_F(ExperimentTest, CasesOfTheHostAmongLaunches) {
  const auto plan = spec_.plan;
  spec_.plan = [plan](const Case& config, const Setting& setting) {
    Plan found = plan(config, setting);
    found.host = tile_is(config, 32);
    return found;
  };
  const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16,32,64"}, [](Experiment& lab) {
    EXPECT_EQ(lab.groups().size(), 1u);
    for (const auto& cases : lab.groups()) lab.measure(lab.verify(cases));
    return lab.conclude({});
  });
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const auto& [tile, scope] : {std::pair{16, "device_hot"}, {32, "host"}, {64, "device_hot"}}) {
    const Json record = measurement(8, tile);
    EXPECT_EQ(record["status"], "ok") << record;
    EXPECT_EQ(record["time"][0]["scope"], scope) << tile;
  }
}

// The body of run_experiment() may ask for comparisons step by step, each with a share of the budget. A replay measures
// these comparisons too.
TEST_F(ExperimentTest, ABodyThatAsksStepByStep) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  size_t steps_taken = 0;
  const auto body = [&](Experiment& lab) {
    if (lab.wants("tile32")) {
      std::vector<Case> pair = lab.groups().front();
      for (const int64_t n : {8, 16}) {
        for (Case& config : pair) config.set("n", n), config.set("m", n);
        lab.measure(lab.verify(pair), 0.1);
        const size_t before = lab.comparisons().size();
        lab.compare({{"tile32", pair.at(0), pair.at(1)}}, 0.1);
        steps_taken += lab.comparisons().size() - before;
      }
    }
    return lab.conclude(conclude(spec_.claims({}), lab.results(), lab.comparisons()));
  };
  Outcome outcome = run({"--axis", "n=64", "--axis", "tile=16,32"}, body);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(steps_taken, 2u);
  ASSERT_EQ(findings().size(), 2u);
  EXPECT_EQ(measurements().size(), 4u) << "the body must measure its own cases, and not the selected cases";

  steps_taken = 0;
  outcome = run({"--replay", findings()[1]["id"].get<std::string>()}, body);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(steps_taken, 2u);
  EXPECT_NE(outcome.out.find("AGREES"), std::string::npos) << outcome.out;

  steps_taken = 0;
  run({"--axis", "n=32", "--axis", "tile=16,32", "--only", "verify"}, body);
  EXPECT_EQ(steps_taken, 0u) << "nothing may be measured";
}

TEST_F(ExperimentTest, TheStatusOfEachCaseIsRecorded) {
  world.on_make = [](const Case& config) {
    const int64_t n = config.integer("n");
    if (n == 1) throw CompileError("kernel:3: unknown name\nand more");
    if (n == 2) throw OutOfMemory("no room on the device", 12345);
    if (n == 3) throw std::bad_alloc();
    if (n == 4) throw std::runtime_error("odd");
  };
  world.correct = [](const Case& config, int checks) {
    return config.integer("n") != 5 && !(config.integer("n") == 6 && checks == 1);
  };
  world.seconds = [](const Case& config) { return config.integer("n") == 7 ? 0.6 : 1e-3; };
  EXPECT_EQ(run({"--axis", "n=1,2,3,4,5,6,7,8,4096", "--axis", "tile=16"}).status, 1);
  const auto expect = [&](int64_t n, const char* status, const std::string& reason) {
    const Json record = measurement(n, 16);
    EXPECT_EQ(record["status"], status) << n;
    EXPECT_NE(record["reason"].get<std::string>().find(reason), std::string::npos) << record["reason"];
    EXPECT_EQ(record["reason"].get<std::string>().find('\n'), std::string::npos);
    EXPECT_EQ(record["time"].empty(), record["status"] != "ok") << n;
  };
  expect(1, "failed", "kernel:3: unknown name");
  expect(2, "oom", "12345 bytes");
  expect(3, "oom", "host");
  expect(4, "failed", "odd");
  expect(5, "wrong", "O[0]");
  expect(6, "wrong", "O[0]");  // correct before timing, wrong after timing
  expect(7, "skipped", "600 ms");
  expect(8, "ok", "");
  expect(4096, "skipped", "needs 65536 bytes");
  EXPECT_EQ(measurement(5, 16)["check"]["ok"], false);
}

TEST_F(ExperimentTest, AnUnwrittenOutputIsWrong) {
  spec_.make = [](Experiment& lab, const Case& config, const Plan&) {
    struct Idle : FakeProblem {
      using FakeProblem::FakeProblem;
      void poison() override { poisoned = true; }
      Check check() override {
        Check check;
        check.ok = !poisoned;
        return check;
      }
      bool poisoned = false;
    };
    return std::make_unique<Idle>(lab, config);
  };
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 1);
  EXPECT_EQ(measurement(8, 16)["status"], "wrong");
}

TEST_F(ExperimentTest, SkippedCasesAreNoFailure) {
  EXPECT_EQ(run({"--axis", "n=8,4096", "--axis", "tile=16,32"}).status, 0);
  EXPECT_EQ(measurement(4096, 32)["status"], "skipped");
}

TEST_F(ExperimentTest, ARunWhoseCasesAreAllSkippedSaysWhy) {
  const Outcome outcome = run({"--axis", "n=4096", "--axis", "tile=16", "--quiet"});
  EXPECT_EQ(outcome.status, 4);
  EXPECT_NE(outcome.err.find("the case cannot run here: needs 65536 bytes"), std::string::npos) << outcome.err;
  EXPECT_EQ(world.makes, 0);
  EXPECT_EQ(run({"--axis", "n=4096", "--axis", "tile=16", "--resume"}).status, 0)
      << "a run that has nothing left to do must end with status 0";
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16", "--budget", "0"}).status, 0)
      << "a run without budget must not end with status 4, which is for cases that cannot run";
}

TEST_F(ExperimentTest, ACaseThatWouldTakeTooLongIsSkippedBeforeItIsMade) {
  const std::vector<std::string> arguments = {"--axis", "n=8", "--axis", "tile=16"};
  world.flops = fma_tflops * 1e12;  // one second
  world.seconds = [](const Case&) { return 1.25; };
  Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.status, 4) << outcome.err;
  EXPECT_EQ(world.makes, 0);
  const std::string reason = measurement(8, 16)["reason"];
  EXPECT_NE(reason.find("would take 1000 ms or more"), std::string::npos) << reason;
  EXPECT_NE(reason.find("at most 500 ms are allowed"), std::string::npos) << reason;

  world.on_host = true;  // the limit holds for the predicted time, because the host's work may launch kernels
  fs::remove(path("measurements.jsonl"));
  EXPECT_EQ(run(arguments).status, 4);
  EXPECT_EQ(world.makes, 0);
  world.on_host = false;

  fs::remove(path("measurements.jsonl"));
  std::vector<std::string> shorter = arguments;
  shorter.insert(shorter.end(), {"--max-launch", "1e-6"});
  run(shorter);
  const std::string too_short = measurement(8, 16)["reason"];
  EXPECT_TRUE(too_short.ends_with("; at most 0.0010 ms are allowed")) << too_short;

  fs::remove(path("measurements.jsonl"));
  std::vector<std::string> longer = arguments;
  longer.insert(longer.end(), {"--max-launch", "2"});
  outcome = run(longer);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(measurement(8, 16)["status"], "ok");
}

// On a busy machine a launch of a ceiling may be stopped for a time slice or longer.
TEST_F(ExperimentTest, ALaunchOfACeilingThatIsDelayedDoesNotLowerTheCeiling) {
  constexpr double overhead_s = 10e-6;
  for (const int delayed : {1, 7}) {
    int launches = 0;
    world.delay = [&](const std::string& entry) {
      return overhead_s + (entry == "ceiling_fma" && launches++ < delayed ? 1.0 : 0.0);
    };
    FakeDevice device("cpu");
    PipelineCache pipelines(device, "");
    EXPECT_NEAR(measure_ceilings(device, pipelines, 1e-3).f32_tflops, fma_tflops, 0.02 * fma_tflops) << delayed;
  }
}

TEST_F(ExperimentTest, ACaseIsRefusedByTheBestOfSeveralMeasurementsOfTheCeilings) {
  int measured = 0;
  std::string last;
  world.delay = [&](const std::string& entry) {
    measured += entry == "ceiling_copy" && last != entry;
    last = entry;
    return entry == "ceiling_fma" && measured < 3 ? 10.0 : 0.0;
  };
  world.flops = 0.2 * fma_tflops * 1e12;  // 200 ms
  world.seconds = [](const Case&) { return 0.25; };
  const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(measurement(8, 16)["status"], "ok") << measurement(8, 16)["reason"];
}

TEST_F(ExperimentTest, ALaunchThatIsDelayedOnceIsNotTooLong) {
  int launches = 0;
  world.seconds = [](const Case&) { return 0.4; };
  world.delay = [&](const std::string& entry) { return entry == "work" && launches++ == 0 ? 0.5 : 0.0; };
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 0);
  EXPECT_EQ(measurement(8, 16)["status"], "ok") << measurement(8, 16)["reason"];
}

TEST_F(ExperimentTest, ADelayDoesNotChangeTheLaunchesOfASample) {
  world.seconds = [](const Case&) { return 1e-6; };
  for (const int delayed : {0, 1, 2}) {  // the launch of the check, then the launches that decide
    fs::remove(path("measurements.jsonl"));
    int launches = 0;
    world.delay = [&](const std::string& entry) { return entry == "work" && launches++ == delayed ? 10e-3 : 0.0; };
    run({"--axis", "n=8", "--axis", "tile=16"});
    EXPECT_GE(measurement(8, 16)["time"][0]["launches_per_sample"], 90) << delayed;
  }
}

TEST_F(ExperimentTest, TheOneCaseOfAnInputRunsHoweverLongItTakes) {
  world.flops = fma_tflops * 1e12;  // one second
  world.seconds = [](const Case&) { return 1.25; };
  for (const bool counted : {false, true}) {
    const auto plan = spec_.plan;
    spec_.plan = [plan, counted](const Case& config, const Setting& setting) {
      CasePlan made = plan(config, setting);
      made.work_is_limit = counted;
      return made;
    };
    for (const std::string option : {"--input", "--dump-output"}) {
      fs::remove(path("measurements.jsonl"));
      std::ofstream(path("file")) << "q, k and v";
      const Outcome outcome = run({option, path("file"), "--axis", "tile=16", "--axis", "n=96"});
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_EQ(measurement(96, 16)["status"], "ok") << measurement(96, 16)["reason"];
      EXPECT_NE(outcome.err.find("would take 1000 ms or more"), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find("one launch takes 1250 ms"), std::string::npos) << outcome.err;
    }
  }
  fs::remove(path("measurements.jsonl"));
  EXPECT_EQ(run({"--input", path("file"), "--axis", "tile=16,32"}).status, 4)
      << "of several cases, a case that is too long is skipped";
}

// The plan gives only an upper limit of the launches' work. The problem counts the work.
TEST_F(ExperimentTest, ACaseWhoseWorkIsCountedIsSkippedAfterItIsMade) {
  const auto plan = spec_.plan;
  spec_.plan = [plan](const Case& config, const Setting& setting) {
    CasePlan limited = plan(config, setting);
    limited.work_is_limit = true;
    return limited;
  };
  world.flops = fma_tflops * 1e12;
  world.counted = Work{.flops = 1e6, .bytes = 1e3};
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 0);
  EXPECT_EQ(measurement(8, 16)["status"], "ok");

  fs::remove(path("measurements.jsonl"));
  world.counted->flops = fma_tflops * 1e12;
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 4);
  EXPECT_NE(measurement(8, 16)["reason"].get<std::string>().find("would take"), std::string::npos);
}

TEST_F(ExperimentTest, ACaseThatIsTooLargeIsSkippedBeforeItIsMade) {
  world.bytes = 1e18;
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 4);
  EXPECT_EQ(world.makes, 0);
  const std::string reason = measurement(8, 16)["reason"];
  EXPECT_NE(reason.find("needs 1000000000.0 GB of the host's memory"), std::string::npos) << reason;
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16", "--dump-output", path("o.safetensors")}).status, 2);
}

TEST_F(ExperimentTest, TheDumpIsTheResultThatWasChecked) {
  const auto dumped = [&](double delay_s) {
    int launches = 0;
    world.seconds = [](const Case&) { return 0.4; };
    world.delay = [&](const std::string& entry) { return entry == "work" && launches++ == 0 ? delay_s : 0.0; };
    const std::string file = path("o.safetensors");
    run({"--axis", "n=8", "--axis", "tile=16", "--dump-output", file});
    return read_file(file).value_or("none");
  };
  EXPECT_EQ(dumped(0.5), dumped(0)) << "a launch that is repeated, because it took long, comes after the dump";
}

// Another program may have taken the device's memory.
TEST_F(ExperimentTest, ACaseThatDoesNotFitInTheFreeMemoryIsSkipped) {
  world.bytes = 2e9;
  world.free_on_device = 1e9;
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 4);
  EXPECT_EQ(world.makes, 0);
  EXPECT_EQ(measurement(8, 16)["status"], "skipped");
  EXPECT_EQ(measurement(8, 16)["reason"], "the case needs 2.0 GB of the device's memory, which has 1.0 GB free");
}

// The second case of a group uses the tensors of the first.
TEST_F(ExperimentTest, MemoryThatTheRunAlreadyHoldsCountsAsFree) {
  constexpr size_t shared_bytes = size_t{1} << 20;
  std::shared_ptr<Buffer> shared;
  spec_.make = [&](Experiment& lab, const Case& config, const Plan&) {
    if (!shared) shared = std::make_shared<Buffer>(lab.device(), shared_bytes);
    world.free_on_device = 10;
    return std::make_unique<FakeProblem>(lab, config);
  };
  world.bytes = shared_bytes;
  world.free_on_device = 2 * shared_bytes;
  const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16,32", "--only", "verify"}, [&](Experiment& lab) {
    for (const auto& cases : lab.groups()) lab.measure(lab.verify(cases));
    shared.reset();
    return lab.conclude({});
  });
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const int tile : {16, 32}) EXPECT_EQ(measurement(8, tile)["status"], "ok") << tile;
}

// The table shows the cases that were measured before the error.
TEST_F(ExperimentTest, AnErrorBetweenCasesLeavesTheTable) {
  const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16,32"}, [](Experiment& lab) -> int {
    for (const auto& cases : lab.groups()) lab.measure(lab.verify(cases));
    throw std::bad_alloc();
  });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.out.find("fastest"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("the host has no memory left; 2 cases are kept in "), std::string::npos) << outcome.err;
}

TEST_F(ExperimentTest, AFailedAllocationIsStatus1) {
  world.on_make = [](const Case&) { throw std::bad_alloc(); };
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 1);
  EXPECT_EQ(measurement(8, 16)["status"], "oom");
}

TEST_F(ExperimentTest, AFailureWhileTimingIsRecordedForTheGroup) {
  world.on_launch = [] {
    if (world.launches == 20) throw std::runtime_error("device lost\nand more");
  };
  EXPECT_EQ(run({"--axis", "n=64", "--axis", "tile=16,32"}).status, 1);
  EXPECT_EQ(measurement(64, 16)["status"], "failed");
  EXPECT_EQ(measurement(64, 32)["reason"], "device lost");
}

// Only the case that loses the device fails. Then a new process takes over, and does not try this case again.
TEST_F(ExperimentTest, ALostDeviceCostsOneCaseAndAProcess) {
  struct Loss {
    int launches;  // launches of tile 32 before the loss
    const char* status;
  };
  for (const auto& [launches, status] : {Loss{0, "failed"}, {0, "timeout"}, {12, "failed"}, {12, "timeout"}}) {
    world = World();
    fs::remove(path("measurements.jsonl"));
    int left = launches;
    world.seconds = [](const Case& config) { return tile_is(config, 32) ? 2e-3 : 1e-3; };
    world.on_launch_of = [&](double seconds) {
      if (seconds != 2e-3 || left-- > 0) return;
      if (std::string(status) == "failed") throw DeviceFault("an illegal address");
      throw DeviceTimeout("no end");
    };
    const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16,32,64", "--seed", "5"});
    EXPECT_EQ(outcome.status, 1);
    ASSERT_EQ(world.restarts.size(), 1u);
    EXPECT_EQ(world.restarts[0].front(), "/somewhere/fake_experiment");
    EXPECT_EQ(world.restarts[0].back(), "--resume");
    EXPECT_EQ(measurements().back()["status"], status);
    EXPECT_TRUE(measurements().back()["reason"].get<std::string>().starts_with("device lost: "));

    std::vector<std::string> again(world.restarts[0].begin() + 1, world.restarts[0].end());
    EXPECT_EQ(run(again).status, 1);
    EXPECT_EQ(world.restarts.size(), 1u) << "the second run must need no restart";
    for (const int tile : {16, 64}) EXPECT_EQ(measurement(8, tile)["status"], "ok") << tile;
    EXPECT_EQ(measurement(8, 32)["status"], status);
    EXPECT_EQ(measurement(8, 32)["run_id"], measurement(8, 16)["run_id"]);
  }
}

// Without records another process would not know which case lost the device, and would lose the device again.
TEST_F(ExperimentTest, AfterALostDeviceARunWithoutRecordsEnds) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 2e-3 : 1e-3; };
  world.on_launch_of = [&](double seconds) {
    if (seconds == 2e-3) throw DeviceFault("an illegal address");
  };
  const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16,32", "--measurements", "/dev/null"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(world.restarts.empty());
  EXPECT_NE(outcome.out.find("an illegal address"), std::string::npos) << outcome.out;
}

TEST_F(ExperimentTest, ShortLaunchesAreBatched) {
  world.seconds = [](const Case&) { return 5e-6; };
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 0);
  const Json hot = measurement(8, 16)["time"][0];
  EXPECT_NEAR(hot["median_s"].get<double>(), 5e-6, 1e-8);  // per launch, not per sample
  EXPECT_GE(hot["launches_per_sample"].get<int>(), 19);
  EXPECT_LE(hot["launches_per_sample"].get<int>(), 21);
}

TEST_F(ExperimentTest, FullProfileMeasuresCold) {
  EXPECT_EQ(run({"--profile", "full", "--axis", "n=8", "--axis", "tile=16,32", "--axis", "variant=tuned"}).status, 0);
  const Json record = measurement(8, 16);
  ASSERT_EQ(record["time"].size(), 3u);
  EXPECT_EQ(record["time"][1]["scope"], "device_cold");
  EXPECT_NEAR(record["time"][1]["median_s"].get<double>(), 2e-3, 1e-5);
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 1e-3, 1e-5);
  EXPECT_GE(record["time"][0]["rounds"].get<int>(), 50);
  const Json test = header()["env"]["flush_selftest"];
  EXPECT_EQ(test["ok"], true);
  EXPECT_NEAR(test["cold_s"].get<double>() / test["hot_s"].get<double>(), 2, 1e-6);
}

TEST_F(ExperimentTest, MemoryBoundCasesAreMeasuredColdInEveryProfile) {
  world.bound = Bound::memory;
  world.flops = 0;
  world.bytes = 16e6;  // a launch takes 2 ms cold: 8 GB/s, 40 % of the copy rate
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16,32"}).status, 0);
  const Json record = measurement(8, 16);
  std::map<std::string, double> median_s;
  for (const Json& time : record["time"]) median_s[time["scope"]] = time["median_s"];
  EXPECT_NEAR(median_s.at("device_cold"), 2e-3, 1e-5);
  EXPECT_EQ(record["work"]["bound"], "memory");
  const Json& rate = record["rate"];
  EXPECT_NEAR(rate["gbps"].get<double>(), 8, 0.1);
  EXPECT_LE(rate["gbps_ci_lo"], rate["gbps"]);
  EXPECT_GE(rate["gbps_ci_hi"], rate["gbps"]);
  EXPECT_TRUE(rate["pct_matrix_ceiling"].is_null());
  // The flush also doubles the time of the fake copy.
  EXPECT_NEAR(rate["pct_copy_ceiling"].get<double>(), 80, 2);
  EXPECT_LE(rate["pct_copy_ci_lo"], rate["pct_copy_ceiling"]);
  EXPECT_NEAR(rate["pct_read_ceiling"].get<double>(), 40, 1);
  EXPECT_LE(rate["pct_read_ci_lo"], rate["pct_read_ceiling"]);
  ASSERT_EQ(findings().size(), 1u);
  EXPECT_EQ(findings()[0]["data"]["compare"]["time"][0]["scope"], "device_cold");
}

TEST_F(ExperimentTest, EachLaunchOfACaseHasAPhaseWithItsTime) {
  world.launches_of_a_case = 3;
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 0);
  const Json record = measurement(8, 16);
  ASSERT_EQ(record["phases"].size(), 3u);
  for (const Json& phase : record["phases"]) {
    EXPECT_EQ(phase["phase"], "work");
    EXPECT_NEAR(phase["time"]["median_s"].get<double>(), 1e-3, 1e-5);
  }
  EXPECT_EQ(record["phases"][0]["pipeline"], record["pipeline"]);
  const Json hooks = Json::array({{{"file", "fake.cpu.cpp"}, {"text", world.source}}});
  EXPECT_EQ(record["pipeline"]["hooks"], hooks) << "the record must have the texts that replace files of the kernel";
  EXPECT_NE(record["phases"][1]["pipeline"]["key"], record["phases"][2]["pipeline"]["key"]);
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 3e-3, 3e-5);

  // A record is out of date if the second kernel is not the kernel that was measured.
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16", "--resume"}).status, 0);
  EXPECT_EQ(measurements().size(), 1u);
  spec_.plan = [plan = spec_.plan](const Case& config, const Setting& setting) {
    Plan changed = plan(config, setting);
    changed.launches[1].source.constants["STEP"] = 17;
    return changed;
  };
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16", "--resume"}).status, 0);
  EXPECT_EQ(measurements().size(), 2u);
}

TEST_F(ExperimentTest, TheCompilersMessageIsShownOnceAndKept) {
  const std::string log = "kernel.cpp:3:7: error: no such name\nkernel.cpp:9:1: error: nor this";
  world.on_make = [&](const Case&) { throw CompileError("work[TILE=16] does not compile:\n" + log); };
  const Outcome outcome = run({"--axis", "n=8,9", "--axis", "tile=16"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err.find(log), outcome.err.rfind(log)) << outcome.err;
  EXPECT_NE(outcome.err.find(log), std::string::npos) << outcome.err;
  EXPECT_NE(measurement(9, 16)["log"].get<std::string>().find(log), std::string::npos);
}

TEST_F(ExperimentTest, TheCompilersMessageAboutSeveralKernelsIsShownOnce) {
  const std::string log = "kernel.cpp:3:7: error: no such name";
  world.on_make = [&](const Case& config) { throw CompileError("work[" + config.key() + "]", log); };
  const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16,32"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find(log), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(log), outcome.err.rfind(log)) << outcome.err;
}

TEST_F(ExperimentTest, ASourceTreeThatIsNotThereIsOneLine) {
  setenv("ATTENTION_PROTO_SOURCE", "/nonexistent", 1);
  const Outcome outcome = run({"--dry-run"});
  unsetenv("ATTENTION_PROTO_SOURCE");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            "fake_experiment: /nonexistent is no source tree: it has no common/kernel; set "
            "ATTENTION_PROTO_SOURCE to a source tree\n");
}

TEST_F(ExperimentTest, ColdIsLeftOutWhereTheFlushDoesNotWork) {
  world.flush_works = false;
  const Outcome outcome =
      run({"--profile", "full", "--axis", "n=8", "--axis", "tile=16,32", "--axis", "variant=tuned", "--quiet"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(measurement(8, 16)["time"].size(), 2u);
  EXPECT_NE(outcome.err.find("no times with flushed caches"), std::string::npos);
  EXPECT_EQ(header()["env"]["flush_selftest"]["ok"], false);
}

TEST_F(ExperimentTest, WithoutAFlushClaimsAboutMemoryAreUndecided) {
  world.flush_works = false;
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  for (const Bound bound : {Bound::matrix, Bound::memory}) {
    world.bound = bound;
    EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16,32"}).status, 0);
  }
  ASSERT_EQ(findings().size(), 2u);
  EXPECT_EQ(findings()[0]["data"]["verdict"]["state"], "supported");
  const Json verdict = findings()[1]["data"]["verdict"];
  EXPECT_EQ(verdict["state"], "inconclusive");
  EXPECT_NE(verdict["reason"].get<std::string>().find("no flush of the caches works"), std::string::npos) << verdict;
}

// A virtual machine may see a cache of 480 MiB, of which other virtual machines use most.
TEST_F(ExperimentTest, TheFlushIsTestedWithBytesThatASharedCacheKeeps) {
  world.last_level_cache = size_t{480} << 20;
  world.kept_by_caches = size_t{16} << 20;
  const Outcome outcome =
      run({"--profile", "full", "--axis", "n=8", "--axis", "tile=16,32", "--axis", "variant=tuned"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(measurement(8, 16)["time"].size(), 3u) << outcome.err;
  EXPECT_EQ(header()["env"]["flush_selftest"]["ok"], true);
}

TEST_F(ExperimentTest, ARateAboveACeilingThatABusyDeviceLoweredHasNoShare) {
  world.flops = 1e9;  // a launch takes 1 ms: 1 TFLOP/s, twice the ceiling
  const Outcome outcome = run({"--axis", "n=8", "--axis", "tile=16"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.err.find("other programs use the device"), std::string::npos) << outcome.err;
  const Json record = measurement(8, 16);
  EXPECT_EQ(record["status"], "ok");
  EXPECT_TRUE(record["rate"]["pct_matrix_best"].is_null());
  EXPECT_NEAR(record["rate"]["tflops"].get<double>(), 1, 0.01);
}

// A measured ceiling may be a few per cent too low. The record keeps a rate above the ceiling, but no share of the
// ceiling.
TEST_F(ExperimentTest, NoShareIsAboveAHundredPerCent) {
  world.bound = Bound::memory;
  world.flops = 0.51e9;  // a launch takes 1 ms hot: 102 % of the rate of multiply-adds
  world.bytes = 41e6;    // a launch takes 2 ms cold: 102.5 % of the rate of a copy
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 0);
  const Json record = measurement(8, 16);
  EXPECT_EQ(record["status"], "ok") << record["reason"];
  EXPECT_NEAR(record["rate"]["tflops"].get<double>(), 0.51, 1e-3);
  for (const char* share : {"pct_matrix_ceiling", "pct_matrix_best", "pct_copy_ceiling"}) {
    EXPECT_TRUE(record["rate"][share].is_null()) << share << " " << record["rate"];
  }
}

TEST_F(ExperimentTest, AValueThatIsNotFiniteFailsItsCase) {
  world.value_is_nan = true;
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 1);
  const Json record = measurement(8, 16);
  EXPECT_EQ(record["status"], "failed");
  EXPECT_NE(record["reason"].get<std::string>().find("values"), std::string::npos) << record["reason"];
  EXPECT_TRUE(record["values"].is_null());
}

TEST_F(ExperimentTest, ARateFarAboveItsCeilingIsAnError) {
  world.flops = 5e9;  // a launch takes 1 ms: 5 TFLOP/s, ten times the ceiling
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16"}).status, 1);
  const Json record = measurement(8, 16);
  EXPECT_EQ(record["status"], "failed");
  const std::string reason = record["reason"];
  EXPECT_TRUE(reason.ends_with("TFLOP/s is above the ceiling of 0.5 measured in this run")) << reason;
  EXPECT_LT(reason.size(), 72u) << reason;
  EXPECT_TRUE(record["time"].empty());
}

TEST_F(ExperimentTest, AWrongResultInAComparisonLeavesTheComparisonOut) {
  world.correct = [](const Case& config, int) { return !(tile_is(config, 32) && world.makes > 2); };
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16,32"}).status, 1);
  ASSERT_EQ(measurements().size(), 3u);
  EXPECT_EQ(measurements()[2]["status"], "wrong");
  EXPECT_EQ(measurements()[2]["case"]["tile"], 32);
  EXPECT_TRUE(findings().empty());
}

TEST_F(ExperimentTest, OnlyVerifyChecksAndMeasuresNothing) {
  world.correct = [](const Case& config, int) { return config.integer("n") != 128; };
  EXPECT_EQ(run({"--only", "verify"}).status, 1);
  ASSERT_EQ(measurements().size(), 6u);
  EXPECT_EQ(world.launches, 6);
  EXPECT_EQ(measurement(64, 16)["status"], "ok");
  EXPECT_TRUE(measurement(64, 16)["time"].empty());
  EXPECT_EQ(measurement(128, 16)["status"], "wrong");
  EXPECT_TRUE(findings().empty());
}

TEST_F(ExperimentTest, JsonPrintsTheRecordsAndTheAnswer) {
  const Outcome outcome = run({"--json", "--axis", "n=8", "--axis", "tile=16,32"});
  std::istringstream lines(outcome.out);
  std::vector<Json> printed;
  for (std::string line; std::getline(lines, line);) printed.push_back(parse_json(line));
  std::vector<Json> recorded = measurements();
  for (const Json& finding : findings()) recorded.push_back(finding);
  EXPECT_EQ(recorded.size(), 3u);
  ASSERT_EQ(printed.size(), 4u);
  EXPECT_EQ(printed.back()["schema"], "answer/1");
  EXPECT_EQ(printed.back()["run"], recorded.front()["run_id"]);
  EXPECT_EQ(printed.back()["counts"]["ok"], 2);
  printed.pop_back();
  EXPECT_EQ(printed, recorded);
}

TEST_F(ExperimentTest, WarningsLeaveStdoutToTheResults) {
  std::ofstream(path("cache")) << "not a folder";
  const Outcome outcome = run({"--json", "--quiet", "--axis", "n=8", "--axis", "tile=16"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.err.find("kernel cache"), std::string::npos) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with('{')) << outcome.out;
}

// If the disk is full, records are lost, but the table still has all results.
TEST_F(ExperimentTest, AFullDiskIsAnErrorAndTheRunGoesOn) {
  fs::create_symlink("/dev/full", path("full.jsonl"));
  fs::create_symlink("/dev/full", path("measurements.samples.jsonl"));
  for (const std::vector<std::string>& where : std::vector<std::vector<std::string>>{
           {"--measurements", path("full.jsonl")}, {"--out", path("full.jsonl")}, {}}) {
    fs::remove(path("measurements.jsonl"));
    std::vector<std::string> arguments = {"--axis", "n=8,16", "--axis", "tile=16,32"};
    arguments.insert(arguments.end(), where.begin(), where.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    const size_t said = outcome.err.find("cannot append to");
    EXPECT_NE(said, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("cannot append to", said + 1), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.out.find("\n4 ok, "), std::string::npos) << outcome.out;
    for (const Json& record : measurements()) EXPECT_EQ(record["status"], "ok");
  }
}

TEST_F(ExperimentTest, APipeWhoseReaderHasGoneIsAnErrorAndTheRunGoesOn) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  for (const char* option : {"--measurements", "--out"}) {
    int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
    world.seconds = [&](const Case&) {
      close(std::exchange(reader, -1));
      return 1e-3;
    };
    const Outcome outcome = run({"--axis", "n=8,16", "--axis", "tile=16,32", option, path("pipe")});
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    EXPECT_NE(outcome.err.find("pipe': Broken pipe; the run goes on"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.out.find("\n4 ok, "), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(run({"--measurements", path("pipe")}).status, 2) << "a pipe that no process reads must be refused";
}

TEST_F(ExperimentTest, QuietSilencesProgressOnly) {
  const Outcome outcome = run({"--quiet", "--axis", "n=8", "--axis", "tile=16"});
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("time"), std::string::npos);
}

TEST_F(ExperimentTest, ARunEndsWithAnAnswerAndTheNextCommands) {
  spec_.answer = {.choices = {{.what = "tile", .axes = {"tile"}, .by = {"n"}}}, .claims = {"tile32", "no_such_claim"}};
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : tile_is(config, 24) ? 0.8e-3 : 1e-3; };
  const std::vector<std::string> arguments = {"--axis",        "n=8,4096", "--axis",
                                              "tile=16,24,32", "--axis",   "variant=tuned"};
  const Outcome outcome = run(arguments);
  const std::string id = measurement(8, 32)["id"].get<std::string>().substr(0, 6);
  const std::string end = outcome.out.substr(outcome.out.find("ANSWER"));
  EXPECT_TRUE(
      end.starts_with("ANSWER for fake, 2 units, by this run alone\n"
                      "tile\n"
                      "  n=8  take 32; avoid 16 2.00x, 24 (the default) 1.60x\n"
                      "- Take tile 32: 0.50x [tile32]\n"
                      "\n3 ok, 0 wrong, 3 skipped\n"))
      << outcome.out;
  EXPECT_NE(end.find("records: " + path("measurements.jsonl") + " " + path("out.jsonl")), std::string::npos) << end;
  EXPECT_NE(end.find(" --replay " + id), std::string::npos) << end;
  EXPECT_EQ(outcome.out.find("SUPPORTED"), std::string::npos) << "without --verdicts no verdict may be printed";
  EXPECT_EQ(run({"--replay", id}).status, 0);
  world.seconds = [](const Case& config) { return tile_is(config, 16) ? 0.5e-3 : 1e-3; };
  EXPECT_NE(run(arguments).out.find("take 16; avoid"), std::string::npos) << "other times must give another answer";
}

TEST_F(ExperimentTest, NoLineOfTheEndIsWiderThanTheTerminal) {
  for (const size_t width : {20, 30, 40, 100}) {
    setenv("COLUMNS", std::to_string(width).c_str(), 1);
    const Outcome outcome = run({"--axis", "n=8,16", "--axis", "tile=16,32,24", "--axis", "variant=tuned,naive"});
    unsetenv("COLUMNS");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("--replay"), std::string::npos) << outcome.out;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.size() <= width) continue;
      std::istringstream words(line);  // a wider line may have only one word, and a backslash
      std::string first, second;
      words >> first >> second;
      EXPECT_TRUE(second.empty() || second == "\\") << width << ": " << line;
    }
  }
}

TEST_F(ExperimentTest, CsvIsAllThatIsPrinted) {
  const Outcome outcome = run({"--csv", "--quiet", "--axis", "n=8", "--axis", "tile=16,32"});
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 3) << outcome.out;
  EXPECT_TRUE(outcome.out.starts_with("n,m,tile,variant,id,status,")) << outcome.out;
}

TEST_F(ExperimentTest, ABaselineThatNoCaseHasIsReported) {
  const std::vector<std::string> one = {"--axis", "n=8", "--axis", "tile=16,32", "--baseline"};
  const auto with = [&](const std::string& baseline) {
    std::vector<std::string> arguments = one;
    arguments.push_back(baseline);
    return run(arguments);
  };
  EXPECT_NE(with("tile=64").err.find("--baseline tile=64: no measured case of this run has this value"),
            std::string::npos);
  EXPECT_EQ(with("tile=16").err.find("--baseline"), std::string::npos);
  const Outcome empty = with("variant=");
  EXPECT_EQ(empty.status, 2);
  EXPECT_NE(empty.err.find("--baseline variant=: axis variant: '' is not allowed; one of "), std::string::npos)
      << empty.err;
}

TEST_F(ExperimentTest, RunsInOneFindingsFileShareTheClaimKey) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  const std::vector<std::string> arguments = {"--axis", "n=8", "--axis", "tile=16,32"};
  run(arguments);
  run(arguments);
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 2e-3 : 1e-3; };
  std::vector<std::string> with_verdicts = arguments;
  with_verdicts.emplace_back("--verdicts");
  const Outcome refuted = run(with_verdicts);
  EXPECT_NE(refuted.out.find("REFUTED      tile32 (n=8): claimed: \"tile 32 is faster\"\n"
                             "             tile 32 takes 2.00 of tile 16\n"),
            std::string::npos)
      << refuted.out;
  EXPECT_NE(refuted.out.find("\n             advice: Take tile 16.\n"), std::string::npos) << refuted.out;
  ASSERT_EQ(findings().size(), 3u);
  EXPECT_EQ(findings()[0]["confidence"], 0.8);
  EXPECT_EQ(findings()[1]["confidence"], 0.8) << "a run must not pool its measurements with an earlier run";
  EXPECT_EQ(findings()[2]["data"]["verdict"]["state"], "refuted");
  EXPECT_EQ(findings()[0]["claim_key"], findings()[1]["claim_key"]);
  EXPECT_NE(findings()[0]["data"]["run"], findings()[1]["data"]["run"]);
}

// ---- budget, interruption, resume

TEST_F(ExperimentTest, TheBudgetIsSharedAndResumeMeasuresTheCasesThatItMissed) {
  EXPECT_EQ(run({"--budget", "1e-9"}).status, 0);
  int measured = 0, missed = 0;
  for (const Json& record : measurements()) {
    measured += record["status"] == "ok";
    missed += record["reason"] == "budget spent";
  }
  EXPECT_EQ(measured, 2);  // the cases of the first group, which took the whole budget
  EXPECT_EQ(missed, 4);
  EXPECT_TRUE(findings().empty());

  const int makes = world.makes;
  EXPECT_EQ(run({"--resume"}).status, 0);
  std::map<std::string, int> ok;
  std::set<std::string> runs;
  for (const Json& record : measurements()) {
    ok[record["case"].dump()] += record["status"] == "ok";
    runs.insert(record["run_id"].get<std::string>());
  }
  EXPECT_EQ(ok.size(), 6u);
  for (const auto& [config, count] : ok) EXPECT_EQ(count, 1) << config;
  EXPECT_EQ(runs.size(), 1u);
  EXPECT_EQ(findings().size(), 3u);
  EXPECT_EQ(world.makes - makes, 4 + 9) << "a problem for each of 4 cases, and A, B and A' for each of 3 pairs";

  EXPECT_EQ(run({"--resume"}).status, 0);  // all cases are done: no record is written twice
  EXPECT_EQ(measurements().size(), 10u);
  EXPECT_EQ(findings().size(), 3u);
}

TEST_F(ExperimentTest, ResumeMakesTheFindingsThatAreMissing) {
  Claim same = spec_.claims({}).front();
  same.hypothesis.id = "same_pair";
  spec_.claims = [claims = spec_.claims, same](const DeviceInfo& device) {
    std::vector<Claim> all = claims(device);
    all.push_back(same);
    return all;
  };
  run({});
  const std::vector<Json> whole = findings();
  const Json run_line = header();
  ASSERT_EQ(whole.size(), 6u);
  const auto resumed = [&](const std::vector<Json>& kept) {
    std::ofstream file(path("out.jsonl"));
    file << run_line.dump() << "\n";
    for (const Json& finding : kept) file << finding.dump() << "\n";
    file.close();
    const Outcome outcome = run({"--resume"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(measurements().size(), 6u);
    std::set<std::string> claims;
    for (const Json& finding : findings()) claims.insert(finding["claim_key"].get<std::string>());
    EXPECT_EQ(findings().size(), 6u);
    EXPECT_EQ(claims.size(), 6u);
    EXPECT_EQ(records("out.jsonl").size(), 6u + 1u) << "the run must have one header";
    return outcome.err;
  };
  const std::string nothing = resumed(whole);
  EXPECT_NE(nothing.find("left 0, pairs compared 3"), std::string::npos) << nothing;
  EXPECT_EQ(nothing.find(" against "), std::string::npos) << nothing;
  // No pair is compared again if another finding has the comparison.
  const std::string other_has_it = resumed({whole.begin() + 1, whole.end()});
  EXPECT_EQ(other_has_it.find(" against "), std::string::npos) << other_has_it;
  EXPECT_EQ(findings().back()["claim_key"], whole.front()["claim_key"]);
  const std::string compared = resumed({whole.begin(), whole.begin() + 2});
  EXPECT_NE(compared.find(" against "), std::string::npos) << compared;
}

// A claim about a single case is measured again in other processes; a claim about several pairs keeps only one of them
// in its finding. Neither is measured again by --resume.
TEST_F(ExperimentTest, ResumeOfAFinishedRunMeasuresNothing) {
  Claim each_case = {.hypothesis = {"absolute", "a case is fast", "ms", "<", 100, "a test"},
                     .pick = each,
                     .compared = false,
                     .figure = [](const Evidence& evidence) -> Estimate {
                       const double ms = 1e3 * seconds(*evidence.results.at(0));
                       return {ms, ms, ms};
                     },
                     .subject = subject_without({"m", "variant"}),
                     .title = "fast",
                     .content = "fast",
                     .advice = {"Run it.", "Do not run it."}};
  Claim gathered = spec_.claims({}).front();
  gathered.hypothesis.id = "gathered";
  gathered.gather = [](const std::vector<Comparison>& comparisons) {
    std::vector<std::vector<const Comparison*>> groups;
    for (const Comparison& comparison : comparisons) {
      if (comparison.hypothesis != "gathered") continue;
      groups.resize(1);
      groups[0].push_back(&comparison);
    }
    return groups;
  };
  gathered.subject = [](const Evidence&) { return std::string(); };
  spec_.claims = [each_case, gathered](const DeviceInfo&) { return std::vector{each_case, gathered}; };
  for (const std::string processes : {"1", "3"}) {
    SCOPED_TRACE(processes);
    for (const char* file : {"measurements.jsonl", "out.jsonl", "measurements.samples.jsonl"}) fs::remove(path(file));
    const Outcome first = run({"--processes", processes, "--verdicts"});
    EXPECT_EQ(first.status, 0) << first.err;
    ASSERT_EQ(findings().size(), 6u + 1u);
    const auto files = [&] {
      return *read_file(path("measurements.jsonl")) + *read_file(path("out.jsonl")) +
             *read_file(path("measurements.samples.jsonl"));
    };
    const std::string before = files();
    const int launches = world.launches;
    const size_t parts = world.parts.size();
    const Outcome again = run({"--processes", processes, "--verdicts", "--resume"});
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_EQ(world.launches, launches);
    EXPECT_EQ(world.parts.size(), parts);
    EXPECT_EQ(files(), before);
    EXPECT_NE(again.err.find("nothing is left to measure"), std::string::npos) << again.err;
    const auto sorted_lines = [](const std::string& text) {
      std::multiset<std::string> lines;
      std::istringstream stream(text);
      for (std::string line; std::getline(stream, line);) {
        if (!line.starts_with("WARNING") && !line.starts_with("  ")) lines.insert(line);
      }
      return lines;
    };
    EXPECT_EQ(sorted_lines(again.out), sorted_lines(first.out)) << "the answer must be the same";
    std::ranges::reverse(spec_.axes);
    EXPECT_EQ(run({"--processes", processes, "--verdicts", "--resume"}).status, 0);
    EXPECT_EQ(world.launches, launches) << "the order of the axes is no part of a case";
  }
}

TEST_F(ExperimentTest, ResumeMeasuresCasesAgainUnderOtherConditions) {
  const std::vector<std::string> one = {"--axis", "n=8", "--axis", "tile=16", "--axis", "variant=tuned"};
  const auto resumed = [&](std::vector<std::string> more) {
    more.insert(more.end(), one.begin(), one.end());
    more.emplace_back("--resume");
    EXPECT_EQ(run(more).status, 0);
    return measurements().size();
  };
  run(one);
  EXPECT_EQ(resumed({}), 1u);
  EXPECT_EQ(resumed({"--seed", "2"}), 2u);
  EXPECT_EQ(resumed({"--device", "cpu:threads=1"}), 3u);
  EXPECT_EQ(resumed({"--profile", "full"}), 4u);
  EXPECT_EQ(resumed({"--threadgroup-memory", "4096"}), 5u);
  EXPECT_EQ(resumed({}), 5u);
  world.source = "int two;";
  EXPECT_EQ(resumed({}), 6u);
  EXPECT_EQ(resumed({}), 6u);
  run(one);  // without --resume everything is measured again
  EXPECT_EQ(measurements().size(), 7u);
  EXPECT_NE(measurements()[6]["run_id"], measurements()[5]["run_id"]);
}

TEST_F(ExperimentTest, ResumeKeepsWrongAndSkippedButTriesFailedAgain) {
  world.correct = [](const Case& config, int) { return config.integer("n") != 1; };
  world.on_make = [](const Case& config) {
    if (config.integer("n") == 2) throw CompileError("no");
  };
  const std::vector<std::string> arguments = {"--axis", "n=1,2,4096", "--axis", "tile=16", "--resume"};
  EXPECT_EQ(run(arguments).status, 1);
  EXPECT_EQ(measurements().size(), 3u);
  world.on_make = [](const Case&) {};
  EXPECT_EQ(run(arguments).status, 1);  // the wrong case still counts
  ASSERT_EQ(measurements().size(), 4u);
  EXPECT_EQ(measurements()[3]["case"]["n"], 2);
  EXPECT_EQ(measurements()[3]["status"], "ok");
}

TEST_F(ExperimentTest, ACaseThatWasOnlyVerifiedCountsAsNotMeasured) {
  const std::vector<std::string> one = {"--axis", "n=8", "--axis", "tile=16", "--resume"};
  std::vector<std::string> verify = one;
  verify.insert(verify.end(), {"--only", "verify"});
  run(verify);
  run(verify);
  EXPECT_EQ(measurements().size(), 1u);
  run(one);
  ASSERT_EQ(measurements().size(), 2u);
  EXPECT_FALSE(measurements()[1]["time"].empty());
}

TEST_F(ExperimentTest, ResumeReportsTornAndDamagedLines) {
  run({"--axis", "n=8", "--axis", "tile=16"});
  {
    std::ofstream file(path("measurements.jsonl"), std::ios::app);
    file << R"({"schema":"measurement/1","experiment":"fake_experiment","id":"abc"})"
         << "\n"
         << R"({"schema":5})"
         << "\n";
    for (int line = 0; line < 10; ++line) file << "oops\n";
    file << R"({"schema":"mea)";
  }
  const Outcome outcome = run({"--axis", "n=8,9", "--axis", "tile=16", "--resume"});
  EXPECT_NE(outcome.err.find("and 7 more bad lines"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.err.find("line 3"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("\"abc\" is damaged"), std::string::npos) << outcome.err;
  EXPECT_EQ(measurement(9, 16)["status"], "ok");
  EXPECT_EQ(measurement(8, 16)["status"], "ok");
}

TEST_F(ExperimentTest, InterruptionKeepsTheMeasurements) {
  world.on_launch = [] {
    if (world.launches == 62) std::raise(SIGINT);
  };
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.status, 130);
  EXPECT_EQ(world.launches, 62 + 2);  // the sample in progress is the last; then both cases are checked once more
  EXPECT_NE(outcome.err.find("--resume"), std::string::npos);
  ASSERT_EQ(measurements().size(), 4u);
  EXPECT_EQ(measurements().back()["time"][0]["stop"], "interrupted");
  EXPECT_FALSE(outcome.out.empty()) << "the table must have what was measured";
  EXPECT_TRUE(findings().empty());

  EXPECT_EQ(run({"--resume"}).status, 0);
  std::map<std::string, int> complete;
  for (const Json& record : measurements()) {
    complete[record["case"].dump()] += record["time"][0]["stop"] != "interrupted";
  }
  EXPECT_EQ(complete.size(), 6u);
  for (const auto& [config, count] : complete) EXPECT_EQ(count, 1) << config;
}

TEST_F(ExperimentTest, InterruptionDuringVerifyAndCompare) {
  world.on_launch = [] { std::raise(SIGTERM); };
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16,32"}).status, 130);
  EXPECT_TRUE(measurements().empty());
  world.on_launch = [] {
    static bool raised = false;
    if (world.makes == 5 && !raised) {
      raised = true;
      std::raise(SIGTERM);
    }
  };
  world.makes = 0;
  EXPECT_EQ(run({"--axis", "n=8", "--axis", "tile=16,32"}).status, 130);
  EXPECT_EQ(measurements().size(), 2u);
  EXPECT_TRUE(findings().empty());
}

TEST_F(ExperimentTest, TheSignalHandlersAreRestored) {
  run({"--list"});
  struct sigaction action{};
  sigaction(SIGINT, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

// ---- replay

TEST_F(ExperimentTest, ReplayOfAMeasurement) {
  run({"--device", "cpu:threads=1", "--seed", "7", "--threadgroup-memory", "4096", "--axis", "n=8", "--axis",
       "tile=16,32"});
  const std::string id = measurement(8, 32)["id"];
  world.opened.clear();
  world.last_seed = 0;
  Outcome outcome = run({"--replay", id.substr(0, 8)});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("AGREES"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(id), std::string::npos);
  EXPECT_EQ(world.opened, std::vector<std::string>{"cpu:threads=1"});
  EXPECT_EQ(world.last_seed, 7u);
  EXPECT_EQ(world.threadgroup_memory, 4096u);
  ASSERT_EQ(measurements().size(), 3u);
  EXPECT_EQ(measurements()[2]["case"], measurements()[1]["case"]);

  world.seconds = [](const Case&) { return 2e-3; };
  outcome = run({"--replay", id, "--csv"});
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2) << outcome.out;
  EXPECT_TRUE(outcome.out.starts_with("n,m,tile,variant,id,status,")) << outcome.out;
  outcome = run({"--replay", id});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("DIFFERS: now 2.000 of the recorded median, the intervals do not overlap\n"),
            std::string::npos)
      << outcome.out;

  world.correct = [](const Case&, int) { return false; };
  outcome = run({"--replay", id});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.out.find("DIFFERS: recorded ok, now wrong\n"), std::string::npos) << outcome.out;
}

TEST_F(ExperimentTest, ReplayOfAFinding) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  run({"--seed", "7"});
  const Json finding = findings().at(1);
  const Outcome outcome = run({"--replay", finding["id"].get<std::string>()});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string id = finding["id"];
  EXPECT_NE(outcome.out.find("AGREES       with the replayed finding " + id + ", which was supported\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(measurements().size(), 6u + 2u);  // only the finding's two cases
  ASSERT_EQ(findings().size(), 4u);
  const Json again = findings()[3];
  EXPECT_EQ(again["claim_key"], finding["claim_key"]);
  EXPECT_NE(again["data"]["run"], finding["data"]["run"]);
  EXPECT_EQ(header_of(again)["run"]["seed"], 7);
  EXPECT_EQ(header_of(again)["run"]["replay"], header_of(finding)["run"]["replay"]);
  EXPECT_EQ(outcome.out.find("NOT JUDGED"), std::string::npos);

  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 2e-3 : 1e-3; };
  const Outcome differs = run({"--replay", id});
  EXPECT_EQ(differs.status, 0) << differs.err;
  EXPECT_NE(differs.out.find("DIFFERS      from the replayed finding " + id + ", which was supported\n"),
            std::string::npos)
      << differs.out;
}

TEST_F(ExperimentTest, ReplayCommandMeasuresTheSame) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  run({"--axis", "n=8", "--axis", "tile=16,32", "--resume"});
  std::istringstream command(header()["run"]["replay"].get<std::string>());
  std::vector<std::string> words;
  for (std::string word; command >> word;) words.push_back(word);
  EXPECT_EQ(words.front(), "fake_experiment");
  words.erase(words.begin());
  EXPECT_EQ(std::count(words.begin(), words.end(), "--resume"), 0);
  EXPECT_EQ(run(words).status, 0);
  ASSERT_EQ(findings().size(), 2u);
  EXPECT_EQ(findings()[1]["claim_key"], findings()[0]["claim_key"]);
}

// Pages name records by ids that are in findings/recorded only.
TEST_F(ExperimentTest, ReplayFindsARecordOfThePages) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  run({"--seed", "7"});
  const Json finding = findings().at(1);
  const std::string measured = measurement(64, 32)["id"];
  const fs::path tree = folder_.path() / "tree";
  fs::create_directories(tree / "findings/recorded/fake");
  fs::create_directory_symlink(fs::path(source_root()) / "common", tree / "common");
  const std::string packed = (tree / "findings/recorded/fake/2026-11-23-fake_experiment-1.jsonl.gz").string();
  ASSERT_EQ(
      std::system(("cat " + path("measurements.jsonl") + " " + path("out.jsonl") + " | gzip > " + packed).c_str()), 0);
  for (const char* file : {"measurements.jsonl", "out.jsonl"}) fs::remove(path(file));
  setenv("ATTENTION_PROTO_SOURCE", tree.c_str(), 1);
  const Outcome of_finding = run({"--replay", finding["id"].get<std::string>().substr(0, 8)});
  const Outcome of_measurement = run({"--replay", measured});
  const Outcome of_none = run({"--replay", "0123456789abcdef"});
  unsetenv("ATTENTION_PROTO_SOURCE");
  EXPECT_EQ(of_finding.status, 0) << of_finding.err;
  EXPECT_NE(of_finding.out.find("AGREES       with the replayed finding " + finding["id"].get<std::string>()),
            std::string::npos)
      << of_finding.out;
  EXPECT_EQ(of_measurement.status, 0) << of_measurement.err;
  EXPECT_NE(of_measurement.out.find("recorded  " + measured), std::string::npos) << of_measurement.out;
  EXPECT_EQ(of_none.status, 2);
  EXPECT_NE(of_none.err.find("no such record in "), std::string::npos) << of_none.err;
  EXPECT_NE(of_none.err.find("/findings/recorded"), std::string::npos) << of_none.err;
}

TEST_F(ExperimentTest, ReplayRefusesWhatItCannotFind) {
  run({"--axis", "n=8", "--axis", "tile=16"});
  const Outcome unknown = run({"--replay", "0000000"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("0000000"), std::string::npos) << unknown.err;
  EXPECT_EQ(run({"--replay", "12345"}).status, 2);
  const std::string id = measurement(8, 16)["id"];
  EXPECT_EQ(run({"--replay", id, "--seed", "3"}).status, 2);
  spec_.name = "another_experiment";
  const Outcome outcome = run({"--replay", id});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("fake_experiment"), std::string::npos);
}

TEST_F(ExperimentTest, AReplayNeedsTheInputOfItsRecord) {
  std::ofstream(path("input")) << "tensors";
  run({"--input", path("input"), "--axis", "tile=16"});
  const std::string id = measurement(96, 16)["id"];
  EXPECT_EQ(run({"--replay", id}).status, 0);
  std::ofstream(path("input")) << "other tensors";
  const Outcome outcome = run({"--replay", id});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("has changed"), std::string::npos) << outcome.err;
}

// ---- selection

TEST_F(ExperimentTest, AxesNotNamedKeepTheProfile) {
  EXPECT_EQ(cases_of({}).size(), 6u);
  EXPECT_EQ(cases_of({"--profile", "full"}).size(), 9u);
  EXPECT_EQ(cases_of({"--axis", "n=8:32:pow2"}).size(), 6u);
  EXPECT_FALSE(fs::exists(path("measurements.jsonl")));
  EXPECT_EQ(world.makes, 0);
}

TEST_F(ExperimentTest, AValueThatNoCaseHasIsReported) {
  const auto complete = spec_.complete;
  spec_.complete = [&](Case& config, const DeviceInfo& info) {
    complete(config, info);
    config.set("tile", int64_t{24});
  };
  const Outcome outcome = run({"--dry-run", "--axis", "n=8", "--axis", "tile=16,24"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err,
            "fake_experiment: --axis tile=16: no case has this value, because of the other axes; the cases have 24\n");
}

TEST_F(ExperimentTest, ASingleShapeRunsItsDefaultTile) {
  using Cases = std::vector<std::string>;
  EXPECT_EQ(cases_of({"--axis", "n=8"}), Cases{"n=8 m=8 tile=24 variant=tuned"});
  EXPECT_EQ(cases_of({"--profile", "full", "--axis", "n=8"}), Cases{"n=8 m=8 tile=24 variant=tuned"});
  EXPECT_EQ(cases_of({"--axis", "n=8", "--axis", "variant=naive"}), Cases{"n=8 m=8 tile=24 variant=naive"});
  EXPECT_EQ(cases_of({"--axis", "n=8", "--axis", "tile=16"}), Cases{"n=8 m=8 tile=16 variant=tuned"});
  // Two shapes run with the profile's tiles.
  EXPECT_EQ(cases_of({"--axis", "n=8,9"}).size(), 4u);
  EXPECT_EQ(cases_of({"--axis", "n=8", "--axis", "m=8,9"}).size(), 4u);
  // If the profile itself has a single shape, all tiles of the profile run.
  spec_.sweep = [](const std::string&, const DeviceInfo&) {
    return Sweep{{{{"n", {int64_t{8}}}, {"tile", {int64_t{16}, int64_t{32}}}, {"variant", {std::string("tuned")}}}}};
  };
  EXPECT_EQ(cases_of({}).size(), 2u);
  EXPECT_EQ(cases_of({"--axis", "variant=naive"}).size(), 2u);
}

TEST_F(ExperimentTest, InputFixesTheShape) {
  std::ofstream(path("input")) << "tensors";
  const std::vector<std::string> expected = {"n=96 m=96 tile=24 variant=tuned"};
  EXPECT_EQ(cases_of({"--input", path("input")}), expected);
  EXPECT_EQ(cases_of({"--input", path("input"), "--axis", "n=96"}), expected);
  const Outcome conflict = run({"--dry-run", "--input", path("input"), "--axis", "n=64,96"});
  EXPECT_EQ(conflict.status, 2);
  EXPECT_NE(conflict.err.find("n=96"), std::string::npos) << conflict.err;
}

TEST_F(ExperimentTest, RanksThatDoNotShareTheWorkAreReported) {
  const std::vector<std::string> one = {"--axis", "n=8", "--axis", "tile=16", "--only", "verify"};
  const auto says = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = one;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments).err.find("each of the 4 ranks measures everything; ") != std::string::npos;
  };
  EXPECT_FALSE(says({}));
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  EXPECT_TRUE(says({}));
  EXPECT_FALSE(says({"--shard", "1/4"}));
  EXPECT_FALSE(says({"--resume"}));
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  EXPECT_FALSE(says({})) << "only rank 0 may print the line";
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("WORLD_SIZE", "8", 1);
  setenv("RANK", "1", 1);
  EXPECT_FALSE(says({})) << "rank 1 of torchrun, which mpirun has started four times";
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  setenv("WORLD_SIZE", "4", 1);
  setenv("RANK", "0", 1);
  EXPECT_TRUE(says({})) << "rank 0 of 4 of torchrun, which mpirun has started twice";
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "WORLD_SIZE", "RANK"}) unsetenv(name);
}

TEST_F(ExperimentTest, ShardsAreDisjointAndTogetherEverything) {
  std::vector<std::string> all = cases_of({}), parts;
  for (const char* shard : {"1/2", "2/2"}) {
    const auto part = cases_of({"--shard", shard});
    EXPECT_FALSE(part.empty());
    parts.insert(parts.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  std::sort(parts.begin(), parts.end());
  EXPECT_EQ(parts, all);
  EXPECT_EQ(run({"--shard", "9/9"}).status, 0);  // this shard has no cases
  std::set<std::string> recorded;
  for (const char* shard : {"1/2", "2/2"}) EXPECT_EQ(run({"--only", "verify", "--shard", shard}).status, 0);
  for (const Json& record : measurements()) EXPECT_TRUE(recorded.insert(record["case"].dump()).second) << record;
  EXPECT_EQ(recorded.size(), all.size());
}

TEST_F(ExperimentTest, DumpOutputNeedsOneCase) {
  const Outcome outcome = run({"--dump-output", path("o.safetensors")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("3 cases are selected, which differ in n, m; name one value of each of these axes"),
            std::string::npos)
      << outcome.err << "only the default tile must be selected, because the command line names no tile";
  EXPECT_FALSE(fs::exists(path("o.safetensors")));
  EXPECT_EQ(run({"--dump-output", path("o.safetensors"), "--axis", "n=8"}).status, 0);
  EXPECT_TRUE(fs::exists(path("o.safetensors")));
  EXPECT_EQ(world.dumps, 1);
  EXPECT_EQ(run({"--dump-output", path("p.safetensors"), "--axis", "n=4096"}).status, 2);  // this case would be skipped
}

TEST_F(ExperimentTest, ListShowsAxesValuesAndHypotheses) {
  const Outcome outcome = run({"--list"});
  EXPECT_EQ(outcome.status, 0);
  for (const char* text : {"64, 128, 256", "8..64 by 8", "tuned naive", "tile32", "ratio of medians < 1", "a test"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
  EXPECT_FALSE(fs::exists(path("measurements.jsonl")));
  std::istringstream lines(run({"--list", "--json"}).out);
  std::vector<std::string> claims;
  for (std::string line; std::getline(lines, line);) claims.push_back(parse_json(line)["hypothesis"]);
  EXPECT_NE(std::ranges::find(claims, "tile32"), claims.end());
}

TEST_F(ExperimentTest, DryRunSaysWhatIsSkipped) {
  const Outcome outcome = run({"--dry-run", "--axis", "n=8,4096"});
  EXPECT_NE(outcome.out.find("\nn=4096 m=4096 tile=16  skipped: needs 65536 bytes"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("2 of 4 cases in 2 groups"), std::string::npos) << outcome.out;
  std::istringstream lines(run({"--dry-run", "--json"}).out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_EQ(parse_json(line)["runs"], true);
  EXPECT_EQ(count, 6);
}

TEST_F(ExperimentTest, DryRunSaysOnceWhatNearlyAllCasesHave) {
  for (int i = 0; i < 30; ++i) {
    const std::string name = "modifier_with_a_long_name_" + std::to_string(i);
    spec_.axes.push_back({.name = name, .help = "", .choices = {}, .min = 0, .max = 1});
  }
  const auto complete = spec_.complete;
  spec_.complete = [complete](Case& config, const DeviceInfo& info) {
    complete(config, info);
    for (int i = 0; i < 30; ++i) config.set_default("modifier_with_a_long_name_" + std::to_string(i), int64_t{0});
  };
  spec_.sweep = [sweep = spec_.sweep](const std::string& profile, const DeviceInfo& info) {
    Sweep all = sweep(profile, info);
    all.blocks.push_back({{"n", {int64_t{64}}}, {"modifier_with_a_long_name_7", {int64_t{1}}}});
    return all;
  };
  setenv("COLUMNS", "80", 1);
  const Outcome outcome = run({"--dry-run"});
  unsetenv("COLUMNS");
  std::istringstream lines(outcome.out);
  int with_the_modifier = 0;
  std::string cases;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    with_the_modifier += line.find("modifier_with_a_long_name_7=1") != line.npos;
    if (line.starts_with("n=")) cases += line + "\n";
  }
  EXPECT_EQ(with_the_modifier, 1) << outcome.out;
  EXPECT_EQ(cases,
            "n=64 m=64 tile=16\nn=64 m=64 tile=32\nn=128 m=128 tile=16\nn=128 m=128 tile=32\nn=256 m=256 tile=16\n"
            "n=256 m=256 tile=32\nn=64 m=64 tile=24 variant=naive modifier_with_a_long_name_7=1\n");
}

// ---- command line

TEST_F(ExperimentTest, NoLineOfTheHelpIsWiderThanTheTerminal) {
  unsetenv("COLUMNS");
  for (const int width : {0, 60, 80, 100}) {
    if (width > 0) setenv("COLUMNS", std::to_string(width).c_str(), 1);
    for (const char* option : {"--help", "--list"}) {
      std::istringstream lines(run({option}).out);
      const size_t most = width > 0 ? width : std::string(option) == "--help" ? 80 : 100;
      for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), most) << line;
    }
  }
  unsetenv("COLUMNS");
}

TEST_F(ExperimentTest, HelpExplainsOptionsColumnsAndExitStatus) {
  const Outcome outcome = run({"--help"});
  EXPECT_EQ(outcome.status, 0);
  for (const char* text : {"--device",    "--profile",      "--axis",   "--list",     "--dry-run",
                           "--only",      "--budget",       "--seed",   "--input",    "--dump-output",
                           "--out",       "--measurements", "--resume", "--shard",    "--threadgroup-memory",
                           "--replay",    "--json",         "--quiet",  "--version",  "cpu:threads=N",
                           "--columns",   "--csv",          "--filter", "--baseline", "--verdicts",
                           "EXIT STATUS", "DIFFERS",        "  130  "}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text;
  }
  EXPECT_TRUE(run({"--version"}).out.starts_with("fake_experiment "));
  EXPECT_FALSE(fs::exists(path("measurements.jsonl")));
  // Every column of the table is explained.
  const Outcome table = run({"--axis", "n=8", "--axis", "tile=16,32", "--columns", "all"});
  std::istringstream lines(table.out);
  std::string head;
  while (std::getline(lines, head) && head.find("vs fastest") == head.npos) {
  }
  head.replace(head.find("vs fastest"), 10, "vs");
  std::istringstream columns(head.substr(head.find("time")));
  int count = 0;
  for (std::string column; columns >> column; ++count) {
    EXPECT_NE(outcome.out.find("\n  " + column + " "), std::string::npos) << column;
  }
  EXPECT_GE(count, 9);
}

TEST_F(ExperimentTest, BadArgumentsAreOneLineAndStatus2) {
  struct {
    std::vector<std::string> arguments;
    const char* mentions;
  } const table[] = {
      {{"--nonsense"}, "--nonsense: no such option; --help"},
      {{"--axes", "n=8", "stray"}, "--axes: no such option (did you mean --axis?); --help"},
      {{"--budgte=3"}, "--budgte: no such option (did you mean --budget?)"},
      {{"--prat", "x"}, "--prat: no such option; --help"},  // --part is the program's own
      {{"--axis", "varaint=tuned"}, "unknown axis 'varaint' (did you mean variant?); known: n, m"},
      {{"stray"}, "stray"},
      {{"--device"}, "--device"},
      {{"--profile", "medium"}, "quick or full"},
      {{"--profile", "a\nb"}, "a b: not allowed"},
      {{"--only", "measure"}, "verify"},
      {{"--columns", "few"}, "all"},
      {{"--baseline", "variant=tuned,naive"}, "one value"},
      {{"--baseline", "color=red"}, "color"},
      {{"--csv", "--json"}, "--json"},
      {{"--list", "--dry-run"}, "--list"},
      {{"--budget", "abc"}, "a number from 0"},
      {{"--budget", "-1"}, "a number from 0"},
      {{"--budget", "nan"}, "--budget nan: not allowed; a number from 0 to 10000000"},
      {{"--samples", "2.5"}, "--samples 2.5: not allowed; an integer from 1 to 1000000"},
      {{"--max-launch", "1s"}, "--max-launch 1s: not allowed; a number from 1e-06"},
      {{"--processes", "+3"}, "--processes +3: not allowed; an integer from 1 to 100"},
      {{"--budget", ""}, "--budget is empty"},
      {{"--input", ""}, "--input is empty"},
      {{"--seed", "1.5"}, "18446744073709551615"},
      {{"--seed", "-1"}, "18446744073709551615"},
      {{"--seed", "1", "--seed", "2"}, "--seed"},
      {{"--shard", "0/4"}, "1 <= I <= N"},
      {{"--shard", "5/4"}, "1 <= I <= N"},
      {{"--shard", "2"}, "1 <= I <= N"},
      {{"--shard", "1/2/3"}, "1 <= I <= N"},
      {{"--threadgroup-memory", "0"}, "an integer from 1"},
      {{"--threadgroup-memory", "9999999"}, "8192"},
      {{"--axis", "nonsense=1"}, "n, m, tile, variant"},
      {{"--axis", "tile=9"}, "multiple of 8"},
      {{"--axis", "variant=fast"}, "tuned, naive"},
      {{"--axis", "n=8", "--axis", "n=9"}, "twice"},
      {{"--axis", "n=8", "--axis", "m=4"}, "m must be at least n"},
      {{"--replay", "xyz"}, "hex"},
      {{"--replay", "123456", "--axis", "n=8"}, "--axis"},
      {{"--input", "/nowhere/x.safetensors"}, "/nowhere/x.safetensors"},
      {{"--out", "/nowhere/findings.jsonl"}, "/nowhere/findings.jsonl"},
      {{"--measurements", "/nowhere/m.jsonl"}, "/nowhere/m.jsonl"},
  };
  for (const auto& [arguments, mentions] : table) {
    const Outcome outcome = run(arguments);
    const std::string shown = shell_command(arguments);
    EXPECT_EQ(outcome.status, 2) << shown;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << shown << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(mentions), std::string::npos) << shown << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << shown;
  }
  EXPECT_EQ(world.makes, 0);
}

TEST_F(ExperimentTest, MissingDeviceIsStatus3) {
  const Outcome outcome = run({"--device", "gone"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_EQ(outcome.err, "fake_experiment: gone: is not there\n");
}

// ---- files that the experiment takes in addition to --input

FileOption file_option() {
  return {"--extra", "a file", [](const std::string& file) {
            if (!fs::exists(file)) throw BadInput(file + ": cannot be read");
            if (fs::file_size(file) < 8) throw BadInput("the file is too short\nfor what follows");
            return std::vector<Axis>{{"n", {static_cast<int64_t>(fs::file_size(file))}}};
          }};
}

TEST_F(ExperimentTest, AFileOfAnExperimentsOwnOptionFixesAxes) {
  std::ofstream(path("extra")) << "eightbyt";
  EXPECT_EQ(run({"--extra", path("extra")}).status, 2) << "an option that the experiment lacks must be refused";
  spec_.file_options = {file_option()};
  EXPECT_NE(run({"--help"}).out.find("--extra"), std::string::npos);
  EXPECT_EQ(cases_of({"--extra", path("extra"), "--axis", "tile=16,32"}).size(), 2u);
  const Outcome conflict = run({"--dry-run", "--extra", path("extra"), "--axis", "n=9"});
  EXPECT_EQ(conflict.status, 2);
  EXPECT_NE(conflict.err.find("n=8"), std::string::npos) << conflict.err;
  std::string seen;
  run({"--extra", path("extra"), "--axis", "tile=16"}, [&](Experiment& lab) {
    seen = lab.file("--extra");
    return lab.run();
  });
  EXPECT_EQ(seen, path("extra"));
  EXPECT_EQ(measurement(8, 16)["run"]["files"]["--extra"]["path"], path("extra"));
  EXPECT_EQ(measurement(8, 16)["run"]["files"]["--extra"]["sha256"], sha256("eightbyt"));
}

TEST_F(ExperimentTest, SeveralFilesHaveASweepOfTheirOwn) {
  spec_.file_options = {file_option(), {"--other", "another file", [](const std::string&) {
                                          return std::vector<Axis>{{"m", {int64_t{9}}}};
                                        }}};
  spec_.file_sweep = [](const std::string&, const DeviceInfo&) { return Sweep{{{{"n", {int64_t{1}}}}}}; };
  std::ofstream(path("extra")) << "eightbyt";
  std::ofstream(path("other")) << "x";
  EXPECT_EQ(run({"--extra", path("extra"), "--other", path("other")}).status, 0);
  ASSERT_EQ(measurements().size(), 1u);
  const Json record = measurements().front();
  EXPECT_EQ(record["case"]["n"], 8);
  EXPECT_EQ(record["case"]["m"], 9);
  EXPECT_EQ(record["run"]["files"]["--other"]["sha256"], sha256("x"));
  EXPECT_EQ(run({"--replay", record["id"]}).status, 0);
  EXPECT_GT(cases_of({}).size(), 1u) << "without a file the profile's sweep must run";
}

// Some problems can count their work only on the device.
TEST_F(ExperimentTest, WorkIsWhatTheProblemSays) {
  world.counted = Work{.flops = 12345, .bytes = 678};
  run({"--axis", "n=8", "--axis", "tile=16"});
  EXPECT_EQ(measurement(8, 16)["work"]["flops"], 12345);
  EXPECT_EQ(measurement(8, 16)["work"]["bytes"], 678);
}

// If a case loses the device while its problem is made, the next process does not try this case again.
TEST_F(ExperimentTest, ALossWhileMakingIsNotTriedAgain) {
  world.on_make = [](const Case& config) {
    if (tile_is(config, 32)) throw DeviceFault("an illegal address");
  };
  run({"--axis", "n=8", "--axis", "tile=16,32"});
  EXPECT_FALSE(measurement(8, 32)["pipeline"].is_null())
      << "the record must name the kernels, by which --resume knows the case";
  const size_t before = measurements().size();
  run({"--axis", "n=8", "--axis", "tile=16,32", "--resume"});
  EXPECT_EQ(measurements().size(), before);
}

TEST_F(ExperimentTest, ReplayAndResumeNeedTheFileOfTheRecord) {
  spec_.file_options = {file_option()};
  std::ofstream(path("extra")) << "eightbyt";
  run({"--extra", path("extra"), "--axis", "tile=16"});
  const std::string id = measurement(8, 16)["id"];
  EXPECT_EQ(run({"--replay", id, "--extra", path("extra")}).status, 2);
  EXPECT_EQ(run({"--replay", id}).status, 0);
  const size_t before = measurements().size();
  run({"--extra", path("extra"), "--axis", "tile=16", "--resume"});
  EXPECT_EQ(measurements().size(), before) << "nothing may be measured again";
  std::ofstream(path("extra")) << "othertxt";
  run({"--extra", path("extra"), "--axis", "tile=16", "--resume"});
  EXPECT_GT(measurements().size(), before) << "a case whose file has another text must be measured";
  const Outcome outcome = run({"--replay", id});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err,
            "fake_experiment: --replay " + id + ": the record's --extra " + path("extra") + " has changed\n");
}

TEST_F(ExperimentTest, NothingIsWrittenOverAFileThatIsRead) {
  spec_.file_options = {file_option()};
  std::ofstream(path("in")) << "the inputs";
  fs::create_hard_link(path("in"), path("other_name"));
  const std::vector<std::string> one_case = {"--axis", "n=8", "--axis", "tile=16"};
  const auto refused = [&](std::vector<std::string> arguments, const std::string& words) {
    arguments.insert(arguments.end(), one_case.begin(), one_case.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
  };
  for (const std::string& target : {path("in"), path("other_name"), path("./in")}) {
    refused({"--input", path("in"), "--dump-output", target}, ": --input names the same file; name another file");
  }
  refused({"--extra", path("in"), "--dump-output", path("in")}, ": --extra names the same file");
  refused({"--input", path("in"), "--out", path("in")}, "--out " + path("in") + ": --input names the same file");
  refused({"--input", path("in"), "--measurements", path("in")}, ": --input names the same file");
  refused({"--dump-output", path("out.jsonl")}, ": --out names the same file");
  const std::string of_samples = ": the samples file of --measurements names the same file";
  refused({"--dump-output", path("measurements.samples.jsonl")}, of_samples);
  refused({"--out", path("measurements.samples.jsonl")}, of_samples);
  EXPECT_EQ(read_file(path("in")), "the inputs");
  EXPECT_EQ(run({"--out", "/dev/null", "--dump-output", "/dev/null", "--axis", "n=8"}).status, 0);
}

TEST_F(ExperimentTest, BadInputIsToldInFull) {
  spec_.file_options = {file_option()};
  EXPECT_NE(run({"--extra", "/nowhere"}).err.find("/nowhere: cannot be read"), std::string::npos);
  std::ofstream(path("extra")) << "short";
  const Outcome outcome = run({"--extra", path("extra")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "fake_experiment: the file is too short\nfor what follows\n");
}

TEST_F(ExperimentTest, WithoutADefaultTileAllComparedCasesRun) {
  spec_.default_tile = false;
  EXPECT_EQ(cases_of({"--axis", "n=8"}).size(), 2u);
  EXPECT_EQ(cases_of({"--axis", "n=8", "--axis", "tile=16"}).size(), 1u);
}

TEST_F(ExperimentTest, RecordsHaveTheValuesOfTheProblemAndTheContentsOfTheCode) {
  run({"--axis", "n=8", "--axis", "tile=16"});
  EXPECT_EQ(measurement(8, 16)["values"]["tile_area"], 16 * 8);
  EXPECT_EQ(measurement(8, 16)["pipeline"]["code_bytes"], 4096);
  EXPECT_EQ(measurement(8, 16)["pipeline"]["instructions"]["nop"], 3);
  EXPECT_EQ(measurement_from_json(measurement(8, 16)).values["tile_area"], 16 * 8);
  Json old = measurement(8, 16);
  old.erase("values");
  EXPECT_TRUE(measurement_from_json(old).values.is_null()) << "a record older than the field `values` must be read";
}

TEST_F(ExperimentTest, AnExperimentWithoutInputAxesRefusesAnInput) {
  spec_.input_axes = nullptr;
  const Outcome outcome = run({"--input", "x"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("takes no --input"), std::string::npos);
}

TEST(ShellCommand, QuotesItsArguments) {
  EXPECT_EQ(shell_command({"a", "b c", "", "it's", "n=1,2"}), R"(a 'b c' '' 'it'\''s' n=1,2)");
}

TEST(Ceilings, MaxTakesTheLargerValueOfEachCeiling) {
  const Ceilings best = max({.copy_gbps = 1, .f32_tflops = 5, .f16_tflops = 2, .bf16_tflops = 8},
                            {.copy_gbps = 3, .f32_tflops = 4, .f16_tflops = 6, .bf16_tflops = 7});
  EXPECT_EQ(best.copy_gbps, 3);
  EXPECT_EQ(best.f32_tflops, 5);
  EXPECT_EQ(best.f16_tflops, 6);
  EXPECT_EQ(best.bf16_tflops, 8);
}

TEST(Ceilings, TheCeilingsOfTheCpuArePlausible) {
  std::unique_ptr<Device> device;
  try {
    device = Device::open("cpu:threads=1");
  } catch (const DeviceMissing& missing) {
    GTEST_SKIP() << missing.what();
  }
  PipelineCache pipelines(*device, "");
  const Ceilings ceilings = measure_ceilings(*device, pipelines, 0.1);
  // Any CPU of the last decade exceeds the lower bounds, and no CPU reaches the upper bounds with one thread. A kernel
  // whose arithmetic was optimised away would reach the upper bounds.
  EXPECT_GT(ceilings.copy_gbps, 0.1);
  EXPECT_LT(ceilings.copy_gbps, 2000);
  EXPECT_GT(ceilings.f32_tflops, 1e-4);
  EXPECT_LT(ceilings.f32_tflops, 1);
  EXPECT_GE(ceilings.bf16_tflops, ceilings.f32_tflops);
  // With AMX the bound is a fixed rate, not a multiple of the f32 rate: sanitizers slow down the multiply-adds of f32,
  // but not the products of AMX.
  EXPECT_LT(ceilings.bf16_tflops, device->info().has("amx-bf16") ? 16 : 4 * ceilings.f32_tflops);
  EXPECT_EQ(ceilings.f16_tflops, ceilings.f32_tflops);
}

}  // namespace
}  // namespace attn
