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
#include <iomanip>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "common/backends/cpu/operations.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/platform.h"
#include "common/base/sha256.h"
#include "common/base/shell.h"
#include "common/base/temporary_folder.h"
#include "common/base/version.h"
#include "common/device/kernels/ceiling.h"
#include "common/experiment/ceilings.h"
#include "common/experiment/environment.h"
#include "common/experiment/options.h"
#include "common/experiment/task.h"
#include "common/testing/devices.h"
#include "common/testing/idle_device.h"

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
  int makes = 0, launches = 0, dumps = 0;
  std::vector<std::string> opened;
  std::vector<Json> tasks;                                          // of the processes that repeat measurements
  int workers = 0;                                                  // started so far
  bool workers_end = false;                                         // such a process ends at once, by a signal
  double free_on_device = std::numeric_limits<double>::infinity();  // bytes
  size_t threadgroup_memory = 0;
  uint64_t last_seed = 0;
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

class FakeDevice : public test::IdleDevice {
 public:
  explicit FakeDevice(std::string_view spec) : IdleDevice(info_of(spec)) {}
  double available_bytes() const override { return world.free_on_device; }
  Binary compile(const KernelSource& source, const CompileOptions&) override {
    Binary binary;
    binary.key = source.key();
    binary.code = source.entry;
    binary.code_sha256 = sha256(binary.code);
    binary.source_sha256 = source_sha256(source);
    return binary;
  }
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
  static DeviceInfo info_of(std::string_view spec) {
    DeviceInfo info;
    info.spec = spec;
    info.backend = "cpu";
    info.operations = &cpu_operations();
    info.name = "fake";
    info.units = 2;
    info.simd_width = 8;
    info.vector_registers = 16;
    info.threadgroup_memory_bytes = 8192;
    info.last_level_cache_bytes = world.last_level_cache;
    info.memory_bytes = size_t{1} << 40;
    return info;
  }

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

  template <typename Params>
  static Params params_of(const CommandEncoder::Dispatch& dispatch) {
    Params params;
    std::memcpy(&params, dispatch.parameters.data(), sizeof params);
    return params;
  }

  static size_t copied_bytes(const CommandEncoder::Dispatch& dispatch) {
    if (static_cast<const FakeKernel*>(dispatch.kernel)->entry != "ceiling_copy") return 0;
    return 2 * params_of<CopyParams>(dispatch).part_bytes * dispatch.grid.count();
  }

  double run(const CommandEncoder::Dispatch& dispatch) {
    const std::string& entry = static_cast<const FakeKernel*>(dispatch.kernel)->entry;
    const auto groups = static_cast<double>(dispatch.grid.count());
    if (entry == "ceiling_copy") return static_cast<double>(copied_bytes(dispatch)) / (copy_rate_gbps * 1e9);
    if (entry == "ceiling_read") {
      return static_cast<double>(params_of<ReadParams>(dispatch).part_bytes) * groups / (read_rate_gbps * 1e9);
    }
    if (entry == "ceiling_fma") {
      return 2.0 * 8 * 12 * static_cast<double>(params_of<ArithmeticParams>(dispatch).iterations) * groups /
             (fma_tflops * 1e12);
    }
    const auto params = params_of<LaunchParams>(dispatch);
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

/// A problem with launches or, as a HostProblem, one about the host.
class FakeProblem : public Problem, public HostProblem {
 public:
  explicit FakeProblem(Case config, double slower = 1) : config_(std::move(config)), slower_(slower) {
    world.on_make(config_);
    ++world.makes;
  }
  void encode(CommandEncoder& encoder) const override {
    for (int launch = 0; launch < world.launches_of_a_case; ++launch) {
      encoder.dispatch(kernel_, {1}, 1, 0, LaunchParams{slower_ * world.seconds(config_), &written_});
    }
  }
  double sample() override {
    ++written_;
    return world.seconds(config_) * (1 + 1e-5 * (++world.samples % 7));
  }
  std::optional<Work> work() const override { return world.counted; }
  Json values() const override {
    if (world.value_is_nan) return {{"error", std::nan("")}};
    return {{"tile_area", config_.integer("tile") * config_.integer("n")}, {"samples", world.samples}};
  }
  void poison() override { written_ = 0; }
  Check check() override {
    Check check{.ok = written_ > 0 && world.correct(config_, checks_++), .rows_checked = 1};
    if (!check.ok) check.worst = "O[0]: got nan, want 1";
    return check;
  }
  void dump(const std::string& path) const override {
    ++world.dumps;
    std::ofstream(path) << written_;
  }

 private:
  Case config_;
  FakeKernel kernel_{"work"};
  double slower_;
  mutable int written_ = 0;
  int checks_ = 0;
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
                               .content = "tile 32 takes {compare.ratio:.2f} of tile 16"},
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
    world.last_seed = lab.seed();
    world.threadgroup_memory = lab.device().info().threadgroup_memory_bytes;
    return std::make_unique<FakeProblem>(config);
  };
  spec.make_host = [](Experiment&, const Case& config, const Plan&) { return std::make_unique<FakeProblem>(config); };
  spec.input_axes = [](const std::string&) { return std::vector<Axis>{{"n", {int64_t{96}}}}; };
  return spec;
}

/// An option of an experiment's own: a file whose length is n.
FileOption file_option() {
  return {"--extra", "a file", [](const std::string& file) {
            if (!fs::exists(file)) throw BadInput(file + ": cannot be read");
            if (fs::file_size(file) < 8) throw BadInput("the file is too short\nfor what follows");
            return std::vector<Axis>{{"n", {static_cast<int64_t>(fs::file_size(file))}}};
          }};
}

Estimate milliseconds_of(const Evidence& evidence) {
  const double ms = 1e3 * seconds(*evidence.results.front());
  return {ms, ms, ms};
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

  /// Runs the experiment with the words of `line`. Without --processes this process measures everything.
  Outcome run(const std::string& line, const std::function<int(Experiment&)>& body = &Experiment::run) {
    std::istringstream words(line);
    std::vector<std::string> arguments = {"/somewhere/fake_experiment"};
    for (std::string word; words >> std::quoted(word, '\'');) arguments.push_back(word);
    for (const auto& [option, value] :
         {std::pair<std::string, std::string>{"--measurements", path("measurements.jsonl")},
          {"--out", path("out.jsonl")},
          {"--processes", "1"}}) {
      if (std::ranges::count(arguments, option) == 0) arguments.insert(arguments.begin() + 1, {option, value});
    }
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = run_experiment(static_cast<int>(argv.size()), argv.data(), spec_, body, open,
                                      [&](const auto& given, double) { return worker(given); });
    return {status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
  }

  static std::unique_ptr<Device> open(std::string_view spec) {
    if (spec == "gone") throw DeviceMissing("gone: is not there");
    world.opened.emplace_back(spec);
    return std::make_unique<FakeDevice>(spec);
  }

  /// A worker in this process.
  Worker worker(const std::vector<std::string>& arguments) {
    ++world.workers;
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return [taker = task_taker(spec_, *parse_options(static_cast<int>(argv.size()), argv.data(), spec_), open),
            activity = std::make_shared<Activity>()](const Json& task, const std::function<void(const Json&)>& take) {
      activity->at(-1);
      if (task["part"] > 0) world.tasks.push_back(task);
      if (task["part"] > 0 && world.workers_end) return WorkerEnd{false, -1, "failed", "was ended by signal 9"};
      const bool done = taker(task, {.send = take, .activity = *activity});
      return WorkerEnd{done, activity->at(), "failed", "lost"};
    };
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
  std::vector<std::string> cases_of(const std::string& line) {
    std::vector<std::string> cases;
    std::istringstream lines(run(line + " --dry-run --json").out);
    for (std::string text; std::getline(lines, text);) cases.push_back(Case::from_json(parse_json(text)["case"]).key());
    return cases;
  }

  void forget() const {
    for (const char* file : {"measurements.jsonl", "out.jsonl", "measurements.samples.jsonl"}) fs::remove(path(file));
  }

  ExperimentSpec spec_ = fake_spec();
  TemporaryFolder folder_;
};

bool tile_is(const Case& config, int64_t tile) { return config.integer("tile") == tile; }

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// Times by which tile 32 is twice as fast as the other tiles, or half as fast.
double fast_32(const Case& config) { return tile_is(config, 32) ? 0.5e-3 : 1e-3; }
double slow_32(const Case& config) { return tile_is(config, 32) ? 2e-3 : 1e-3; }

const std::string one = "--axis n=8 --axis tile=16 ", two = "--axis n=8 --axis tile=16,32 ",
                  four = "--axis n=8,16 --axis tile=16,32 ";

int measure_only(Experiment& lab) {
  lab.measure(lab.groups());
  return lab.conclude({});
}

// ---- the loop

TEST_F(ExperimentTest, MeasuresComparesAndConcludes) {
  world.seconds = fast_32;
  const Outcome outcome = run("--verdicts");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(measurements().size(), 6u);
  const Json record = measurement(128, 32);
  EXPECT_EQ(record["status"], "ok");
  EXPECT_EQ(record["id"], record_id(record));
  EXPECT_EQ(record["device"], "fake, 2 units");
  EXPECT_EQ(record["run"]["device"], "cpu");
  ASSERT_EQ(record["time"].size(), 2u);  // hot and host, no cold in the quick profile
  EXPECT_EQ(record["time"][0]["scope"], "device_hot");
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 0.5e-3, 1e-6);
  EXPECT_EQ(record["time"][0]["launches_per_sample"], 1);
  // 1e6 flops in 0.5 ms are 0.002 TFLOP/s. The ceiling is 0.5 TFLOP/s.
  EXPECT_NEAR(record["rate"]["pct_matrix_ceiling"].get<double>(), 0.4, 0.01);
  EXPECT_NEAR(record["rate"]["pct_copy_ceiling"].get<double>(), 0.01, 0.001);
  EXPECT_EQ(record["values"]["tile_area"], 128 * 32);
  EXPECT_EQ(record["pipeline"]["code_bytes"], 4096);
  EXPECT_EQ(record["pipeline"]["instructions"]["nop"], 3);

  ASSERT_EQ(findings().size(), 3u);
  for (const Json& finding : findings()) {
    EXPECT_EQ(finding["id"], record_id(finding));
    const Json& data = finding["data"];
    EXPECT_EQ(data["verdict"]["state"], "supported");
    EXPECT_NEAR(data["compare"]["ratio"].get<double>(), 0.5, 1e-3);
    EXPECT_GE(data["compare"]["time"][0]["rounds"].get<int>(), 15);
    EXPECT_EQ(data["measurements"].size(), 2u);
    EXPECT_EQ(data["run"], record["run_id"]);
    EXPECT_EQ(data["code"], Json::array({{record["pipeline"]["code_sha256"]}, {record["pipeline"]["code_sha256"]}}));
    EXPECT_LT(finding["wrong"], 0.025);
  }
  const Json run_line = header();
  EXPECT_EQ(run_line["schema"], "run/1");
  EXPECT_EQ(run_line["id"], record_id(run_line));
  EXPECT_EQ(run_line["run"]["id"], record["run_id"]);
  EXPECT_EQ(run_line["run"]["argv"][0], "fake_experiment");
  EXPECT_TRUE(run_line["run"]["replay"].get<std::string>().ends_with("--device cpu --profile quick --seed 1"));
  EXPECT_EQ(run_line["session"]["machine"], record["run"]["machine"]);
  for (const Json& marked : {run_line["session"], record["run"]}) {
    EXPECT_EQ(marked.value("emulated", false), is_emulated());
  }
  EXPECT_NEAR(run_line["env"]["ceilings"]["f32_tflops"].get<double>(), fma_tflops, 1e-6);
  EXPECT_NEAR(run_line["env"]["ceilings"]["copy_gbps"].get<double>(), copy_rate_gbps, 1e-6);
  EXPECT_TRUE(run_line["env"].contains("git"));
  for (const char* text : {"vs fastest", "SUPPORTED    tile32 (n=128)", "3 verdicts", "NOT JUDGED"}) {
    EXPECT_TRUE(has(outcome.out, text)) << text << outcome.out;
  }
  EXPECT_TRUE(has(outcome.err, "[9/9]")) << outcome.err;  // 6 cases and 3 comparisons
  char host[256];
  ASSERT_EQ(gethostname(host, sizeof host), 0);
  EXPECT_FALSE(has(run_line.dump(), "\"" + std::string(host) + "\""));
}

TEST_F(ExperimentTest, AMeasurementSaysWhatDisturbedIt) {
  world.delay = [launch = 0](const std::string&) mutable { return ++launch % 7 < 2 ? 5e-3 : 0.0; };
  EXPECT_EQ(run("").status, 0);
  for (const Json& record : measurements()) EXPECT_TRUE(has(record["busy"], "the samples scatter by ")) << record;
}

TEST_F(ExperimentTest, TheStatusOfEachCaseIsRecorded) {
  world.on_make = [](const Case& config) {
    const int64_t n = config.integer("n");
    if (n == 1 || n == 9) throw CompileError("work[" + config.key() + "]", "kernel:3: unknown name\nand more");
    if (n == 2) throw OutOfMemory("no room on the device", 12345);
    if (n == 3) throw std::bad_alloc();
    if (n == 4) throw std::runtime_error("odd");
  };
  world.correct = [](const Case& config, int checks) {
    return config.integer("n") != 5 && !(config.integer("n") == 6 && checks == 1);
  };
  world.seconds = [](const Case& config) { return config.integer("n") == 7 ? 0.6 : 1e-3; };
  const Outcome outcome = run("--axis n=1,2,3,4,5,6,7,8,9,4096 --axis tile=16");
  EXPECT_EQ(outcome.status, 1);
  for (const auto& [n, status, reason] : {std::tuple{1, "failed", "does not compile"},
                                          {2, "oom", "12345 bytes"},
                                          {3, "oom", "host"},
                                          {4, "failed", "odd"},
                                          {5, "wrong", "O[0]"},
                                          {6, "wrong", "O[0]"},  // correct before timing, wrong after timing
                                          {7, "skipped", "600 ms"},
                                          {8, "ok", ""},
                                          {4096, "skipped", "needs 65536 bytes"}}) {
    const Json record = measurement(n, 16);
    EXPECT_EQ(record["status"], status) << n;
    EXPECT_TRUE(has(record["reason"], reason)) << record["reason"];
    EXPECT_FALSE(has(record["reason"], "\n"));
    EXPECT_EQ(record["time"].empty(), n != 8) << n;
  }
  EXPECT_EQ(measurement(5, 16)["check"]["ok"], false);
  EXPECT_TRUE(has(measurement(1, 16)["log"], "and more"));
  EXPECT_TRUE(has(outcome.err, "and more")) << "the compiler's message must be shown";
  EXPECT_EQ(outcome.err.find("and more"), outcome.err.rfind("and more")) << "once for two kernels with equal logs";
}

TEST_F(ExperimentTest, AnUnwrittenOutputIsWrong) {
  spec_.make = [](Experiment&, const Case& config, const Plan&) {
    struct Idle : FakeProblem {
      using FakeProblem::FakeProblem;
      void poison() override { poisoned = true; }
      Check check() override { return {.ok = !poisoned}; }
      bool poisoned = false;
    };
    return std::make_unique<Idle>(config);
  };
  EXPECT_EQ(run(one).status, 1);
  EXPECT_EQ(measurement(8, 16)["status"], "wrong");
}

TEST_F(ExperimentTest, SkippedCasesFailNoRunButARunOfNothingElseHasStatus4) {
  EXPECT_EQ(run("--axis n=8,4096 --axis tile=16,32").status, 0);
  EXPECT_EQ(measurement(4096, 32)["status"], "skipped");
  forget();
  const int makes = world.makes;
  const Outcome outcome = run("--axis n=4096 --axis tile=16 --quiet");
  EXPECT_EQ(outcome.status, 4);
  EXPECT_TRUE(has(outcome.err, "needs 65536 bytes")) << outcome.err;
  EXPECT_EQ(world.makes, makes);
  EXPECT_EQ(run("--axis n=4096 --axis tile=16 --resume").status, 0) << "nothing is left to do";
  EXPECT_EQ(run(one + "--budget 0").status, 0) << "status 4 is for cases that cannot run";
}

TEST_F(ExperimentTest, CasesThatAreTooLongOrTooLargeAreSkippedBeforeTheyAreMade) {
  struct {
    std::string more;
    double flops, bytes, free;
    bool on_host;
    const char* reason;
  } const table[] = {
      {"", fma_tflops * 1e12, 1e3, 1e30, false, "would take 1000 ms or more"},
      {"", fma_tflops * 1e12, 1e3, 1e30, true, "at most 500 ms are allowed"},  // the host's work may launch kernels
      {"--max-launch 1e-6", fma_tflops * 1e12, 1e3, 1e30, false, "; at most 0.0010 ms are allowed"},
      {"", 1e6, 1e18, 1e30, false, "needs 1000000000.0 GB of the host's memory"},
      {"", 1e6, 2e9, 1e9, false, "needs 2.0 GB of the device's memory, which has 1.0 GB free"},
  };
  for (const auto& [more, flops, bytes, free, on_host, reason] : table) {
    forget();
    world.flops = flops;
    world.bytes = bytes;
    world.free_on_device = free;
    world.on_host = on_host;
    EXPECT_EQ(run(one + more).status, 4) << reason;
    EXPECT_TRUE(has(measurement(8, 16)["reason"], reason)) << measurement(8, 16)["reason"];
  }
  EXPECT_EQ(run(one + "--dump-output " + path("o.safetensors")).status, 2);
  EXPECT_EQ(world.makes, 0);
  forget();
  world = World();
  world.flops = fma_tflops * 1e12;
  world.seconds = [](const Case&) { return 1.25; };
  EXPECT_EQ(run(one + "--max-launch 2").status, 0);
  EXPECT_EQ(measurement(8, 16)["status"], "ok");
}

TEST_F(ExperimentTest, TheOneCaseOfAnInputRunsHoweverLongItTakes) {
  world.flops = fma_tflops * 1e12;  // one second
  world.seconds = [](const Case&) { return 1.25; };
  std::ofstream(path("file")) << "q, k and v";
  for (const bool counted : {false, true}) {
    spec_.plan = [plan = spec_.plan, counted](const Case& config, const Setting& setting) {
      CasePlan made = plan(config, setting);
      made.work_is_limit = counted;
      return made;
    };
    for (const std::string option : {"--input ", "--dump-output "}) {
      forget();
      const Outcome outcome = run(option + path("file") + " --axis tile=16 --axis n=96");
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_EQ(measurement(96, 16)["status"], "ok") << measurement(96, 16)["reason"];
      EXPECT_TRUE(has(outcome.err, "would take 1000 ms") && has(outcome.err, "takes 1250 ms")) << outcome.err;
    }
  }
  forget();
  EXPECT_EQ(run("--input " + path("file") + " --axis tile=16,32").status, 4) << "of several cases, it is skipped";
}

// The plan gives only an upper limit of the launches' work. The problem counts the work.
TEST_F(ExperimentTest, ACaseWhoseWorkIsCountedIsSkippedAfterItIsMade) {
  spec_.plan = [plan = spec_.plan](const Case& config, const Setting& setting) {
    CasePlan limited = plan(config, setting);
    limited.work_is_limit = true;
    return limited;
  };
  world.flops = fma_tflops * 1e12;
  world.counted = Work{.flops = 1e6, .bytes = 678};
  EXPECT_EQ(run(one).status, 0);
  EXPECT_EQ(measurement(8, 16)["status"], "ok");
  EXPECT_EQ(measurement(8, 16)["work"]["bytes"], 678);
  forget();
  world.counted->flops = fma_tflops * 1e12;
  EXPECT_EQ(run(one).status, 4);
  EXPECT_TRUE(has(measurement(8, 16)["reason"], "would take"));
}

// Other programs may delay a launch for a time slice or longer. A delay must not refuse a case or change a result.
TEST_F(ExperimentTest, ADelayedLaunchChangesNothing) {
  int measured = 0;  // the ceilings are too low in the first two of three measurements
  std::string last;
  world.delay = [&](const std::string& entry) {
    measured += entry == "ceiling_copy" && last != entry;
    last = entry;
    return entry == "ceiling_fma" && measured < 3 ? 10.0 : 0.0;
  };
  world.flops = 0.2 * fma_tflops * 1e12;  // 200 ms
  world.seconds = [](const Case&) { return 0.25; };
  EXPECT_EQ(run(one).status, 0);
  EXPECT_EQ(measurement(8, 16)["status"], "ok") << measurement(8, 16)["reason"];
  world.flops = 1e6;
  const auto delays = [&](int number, double delay_s) {  // one launch of the case
    forget();
    world.delay = [=, launches = 0](const std::string& entry) mutable {
      return entry == "work" && launches++ == number ? delay_s : 0.0;
    };
  };
  world.seconds = [](const Case&) { return 0.4; };
  std::set<std::string> dumps;
  for (const double delay_s : {0.0, 0.5}) {
    delays(0, delay_s);
    EXPECT_EQ(run(one + "--dump-output " + path("dump")).status, 0);
    EXPECT_EQ(measurement(8, 16)["status"], "ok") << measurement(8, 16)["reason"];
    dumps.insert(*read_file(path("dump")));
  }
  EXPECT_EQ(dumps.size(), 1u) << "a launch that is repeated, because it took long, comes after the dump";
  world.seconds = [](const Case&) { return 1e-6; };
  for (const int number : {0, 1, 2}) {  // the launch of the check, then the launches that decide
    delays(number, 10e-3);
    run(one);
    EXPECT_GE(measurement(8, 16)["time"][0]["launches_per_sample"], 90) << number;
    EXPECT_NEAR(measurement(8, 16)["time"][0]["median_s"].get<double>(), 1e-6, 1e-8);  // per launch, not per sample
  }
}

// The second case of a group uses the tensors of the first.
TEST_F(ExperimentTest, MemoryThatTheRunAlreadyHoldsCountsAsFree) {
  constexpr size_t shared_bytes = size_t{1} << 20;
  std::shared_ptr<Buffer> shared;
  spec_.make = [&](Experiment& lab, const Case& config, const Plan&) {
    if (!shared) shared = std::make_shared<Buffer>(lab.device(), shared_bytes);
    world.free_on_device = 10;
    return std::make_unique<FakeProblem>(config);
  };
  world.bytes = shared_bytes;
  world.free_on_device = 2 * shared_bytes;
  EXPECT_EQ(run(two + "--only verify",
                [&](Experiment& lab) {
                  lab.measure(lab.groups());
                  shared.reset();
                  return lab.conclude({});
                })
                .status,
            0);
  for (const int tile : {16, 32}) EXPECT_EQ(measurement(8, tile)["status"], "ok") << tile;
}

TEST_F(ExperimentTest, CasesOfTheHost) {
  world.on_host = true;
  // These times are longer than the longest launch that is allowed. The limit holds for a launch, not for the host.
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 2.0 : 4.0; };
  EXPECT_EQ(run(two, measure_only).status, 0);
  EXPECT_EQ(world.launches, 0);
  const Json record = measurement(8, 32);
  ASSERT_EQ(record["time"].size(), 1u);
  EXPECT_EQ(record["time"][0]["scope"], "host");
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 2, 1e-3);
  EXPECT_TRUE(record["rate"].is_null());
  EXPECT_EQ(record["values"]["samples"], world.samples);
  const int counted = record["time"][0]["n"];
  EXPECT_EQ(world.samples, 2 * (1 + counted)) << "of the two checks only the first may take a sample";

  EXPECT_EQ(run("--axis n=9 --axis tile=16,32").status, 0);
  ASSERT_EQ(findings().size(), 1u);
  const Json compare = findings()[0]["data"]["compare"];
  EXPECT_NEAR(compare["ratio"].get<double>(), 0.5, 1e-3);
  EXPECT_EQ(compare["time"][1]["scope"], "host");
  EXPECT_GE(compare["time"][1]["rounds"], 6);
  const int makes = world.makes;
  run("--axis n=9 --axis tile=16,32 --resume", measure_only);
  EXPECT_EQ(world.makes, makes) << "the plan must tell whether the source is the same, without a problem";
  EXPECT_TRUE(has(run("--replay " + measurement(9, 32)["id"].get<std::string>()).out, "AGREES"));

  world.correct = [](const Case&, int checks) { return checks == 0; };
  EXPECT_EQ(run("--axis n=10 --axis tile=16").status, 1) << "the case must be checked again after it was timed";
  EXPECT_EQ(measurement(10, 16)["status"], "wrong");

  world = World();
  spec_.plan = [plan = spec_.plan](const Case& config, const Setting& setting) {  // a group of both kinds
    Plan found = plan(config, setting);
    found.host = tile_is(config, 32);
    return found;
  };
  EXPECT_EQ(run("--axis n=11 --axis tile=16,32,64", measure_only).status, 0);
  for (const auto& [tile, scope] : {std::pair{16, "device_hot"}, {32, "host"}, {64, "device_hot"}}) {
    EXPECT_EQ(measurement(11, tile)["time"][0]["scope"], scope) << tile;
  }
}

TEST_F(ExperimentTest, TheFullProfileAndMemoryBoundCasesAreMeasuredCold) {
  const std::string full = two + "--profile full --axis variant=tuned ";
  EXPECT_EQ(run(full).status, 0);
  Json record = measurement(8, 16);
  ASSERT_EQ(record["time"].size(), 3u);
  EXPECT_EQ(record["time"][1]["scope"], "device_cold");
  EXPECT_NEAR(record["time"][1]["median_s"].get<double>(), 2e-3, 1e-5);
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 1e-3, 1e-5);
  EXPECT_GE(record["time"][0]["rounds"].get<int>(), 50);
  const Json test = header()["env"]["flush_selftest"];
  EXPECT_EQ(test["ok"], true);
  EXPECT_NEAR(test["cold_s"].get<double>() / test["hot_s"].get<double>(), 2, 1e-6);

  forget();
  world.bound = Bound::memory;
  world.flops = 0;
  world.bytes = 16e6;  // a launch takes 2 ms cold: 8 GB/s, 40 % of the copy rate
  EXPECT_EQ(run(two).status, 0);
  record = measurement(8, 16);
  EXPECT_EQ(record["work"]["bound"], "memory");
  const Json& rate = record["rate"];
  EXPECT_NEAR(rate["gbps"].get<double>(), 8, 0.1);
  EXPECT_TRUE(rate["pct_matrix_ceiling"].is_null());
  // The flush also doubles the time of the fake copy.
  EXPECT_NEAR(rate["pct_copy_ceiling"].get<double>(), 80, 2);
  EXPECT_NEAR(rate["pct_read_ceiling"].get<double>(), 40, 1);
  EXPECT_LE(rate["pct_copy_ci_lo"], rate["pct_copy_ceiling"]);
  EXPECT_EQ(findings().at(0)["data"]["compare"]["time"][0]["scope"], "device_cold");

  // A virtual machine may see a cache of 480 MiB, of which other virtual machines use most.
  world = World();
  world.last_level_cache = size_t{480} << 20;
  world.kept_by_caches = size_t{16} << 20;
  forget();
  EXPECT_EQ(run(full).status, 0);
  EXPECT_EQ(measurement(8, 16)["time"].size(), 3u);
}

TEST_F(ExperimentTest, WithoutAFlushThereAreNoColdTimesAndNoVerdictsAboutMemory) {
  world.flush_works = false;
  const Outcome outcome = run(two + "--profile full --axis variant=tuned --quiet");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(measurement(8, 16)["time"].size(), 2u);
  EXPECT_TRUE(has(outcome.err, "no times with flushed caches"));
  EXPECT_EQ(header()["env"]["flush_selftest"]["ok"], false);
  world.seconds = fast_32;
  for (const auto& [bound, state] : {std::pair{Bound::matrix, "supported"}, {Bound::memory, "inconclusive"}}) {
    forget();
    world.bound = bound;
    EXPECT_EQ(run(two).status, 0);
    EXPECT_EQ(findings().at(0)["data"]["verdict"]["state"], state) << findings()[0]["data"]["verdict"];
  }
}

TEST_F(ExperimentTest, EachLaunchOfACaseHasAPhaseWithItsTime) {
  world.launches_of_a_case = 3;
  EXPECT_EQ(run(one).status, 0);
  const Json record = measurement(8, 16);
  ASSERT_EQ(record["phases"].size(), 3u);
  for (const Json& phase : record["phases"]) EXPECT_NEAR(phase["time"]["median_s"].get<double>(), 1e-3, 1e-5);
  EXPECT_EQ(record["phases"][0]["pipeline"], record["pipeline"]);
  EXPECT_EQ(record["pipeline"]["hooks"], Json::array({{{"file", "fake.cpu.cpp"}, {"text", world.source}}}));
  EXPECT_NEAR(record["time"][0]["median_s"].get<double>(), 3e-3, 3e-5);
  EXPECT_EQ(run(one + "--resume").status, 0);
  EXPECT_EQ(measurements().size(), 1u);
  spec_.plan = [plan = spec_.plan](const Case& config, const Setting& setting) {
    Plan changed = plan(config, setting);
    changed.launches[1].source.constants["STEP"] = 17;
    return changed;
  };
  EXPECT_EQ(run(one + "--resume").status, 0);
  EXPECT_EQ(measurements().size(), 2u) << "a record is out of date if its second kernel has changed";
}

// A launch takes 1 ms hot, 2 ms cold. The ceilings are 0.5 TFLOP/s and 20 GB/s; the flush halves the copy's rate.
TEST_F(ExperimentTest, RatesAboveTheirCeilings) {
  struct {
    double flops, bytes;
    Bound bound;
    bool nan;
    const char *status, *says;
  } const table[] = {
      {1e9, 1e3, Bound::matrix, false, "ok", "other programs use the device"},    // twice the ceiling
      {0.51e9, 41e6, Bound::memory, false, "ok", ""},                             // 102 % of each ceiling
      {5e9, 1e3, Bound::matrix, false, "failed", "is above the ceiling of 0.5"},  // ten times the ceiling
      {1e6, 1e3, Bound::matrix, true, "failed", "values"},                        // a value that is not finite
  };
  for (const auto& [flops, bytes, bound, nan, status, says] : table) {
    forget();
    world.flops = flops;
    world.bytes = bytes;
    world.bound = bound;
    world.value_is_nan = nan;
    const Outcome outcome = run(one);
    const Json record = measurement(8, 16);
    EXPECT_EQ(record["status"], status) << record["reason"];
    EXPECT_TRUE(has(outcome.err, says) || has(record["reason"], says)) << outcome.err;
    if (record["status"] != "ok") continue;
    EXPECT_NEAR(record["rate"]["tflops"].get<double>(), 1e-9 * flops, 0.01);
    for (const char* share : {"pct_matrix_ceiling", "pct_matrix_best"}) EXPECT_TRUE(record["rate"][share].is_null());
  }
}

TEST_F(ExperimentTest, OnlyVerifyChecksAndMeasuresNothing) {
  world.correct = [](const Case& config, int) { return config.integer("n") != 128; };
  EXPECT_EQ(run("--only verify").status, 1);
  EXPECT_EQ(run("--only verify --resume").status, 1);
  ASSERT_EQ(measurements().size(), 6u);
  EXPECT_EQ(world.launches, 6);
  EXPECT_EQ(measurement(64, 16)["status"], "ok");
  EXPECT_TRUE(measurement(64, 16)["time"].empty());
  EXPECT_EQ(measurement(128, 16)["status"], "wrong");
  EXPECT_TRUE(findings().empty());
  run("--resume");
  EXPECT_EQ(measurements().size(), 6u + 4u) << "a case that was only verified counts as not measured";
}

// The body of run_experiment() may ask for cases and comparisons step by step, each with a share of the budget.
TEST_F(ExperimentTest, ABodyThatAsksStepByStep) {
  world.seconds = fast_32;
  size_t steps_taken = 0;
  const auto body = [&](Experiment& lab) {
    for (const int64_t n : {8, 16}) {
      if (!lab.wants("tile32")) break;
      std::vector<Case> pair = lab.groups().front();
      for (Case& config : pair) config.set("n", n), config.set("m", n);
      lab.measure({pair}, 0.1);
      const size_t before = lab.comparisons().size();
      lab.compare({{"tile32", pair.at(0), pair.at(1)}}, 0.1);
      steps_taken += lab.comparisons().size() - before;
    }
    return lab.conclude(conclude(spec_.claims({}), lab.results(), lab.comparisons()));
  };
  EXPECT_EQ(run("--axis n=64 --axis tile=16,32", body).status, 0);
  EXPECT_EQ(steps_taken, 2u);
  EXPECT_EQ(world.workers, 1) << "all steps must run in one process";
  ASSERT_EQ(findings().size(), 2u);
  EXPECT_EQ(measurements().size(), 4u) << "the body must measure its own cases, and not the selected cases";
  const Outcome outcome = run("--replay " + findings()[1]["id"].get<std::string>(), body);
  EXPECT_EQ(steps_taken, 4u);
  EXPECT_TRUE(has(outcome.out, "AGREES")) << outcome.out;
  run("--axis n=32 --axis tile=16,32 --only verify", body);
  EXPECT_EQ(steps_taken, 4u) << "nothing may be measured";
}

TEST_F(ExperimentTest, AnErrorBetweenCasesLeavesTheTable) {
  const Outcome outcome = run(two, [](Experiment& lab) -> int {
    lab.measure(lab.groups());
    throw std::bad_alloc();
  });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(has(outcome.out, "fastest")) << outcome.out;
  EXPECT_TRUE(has(outcome.err, "no memory left; 2 cases are kept in ")) << outcome.err;
}

TEST_F(ExperimentTest, AFailureWhileTimingIsRecordedForTheGroup) {
  world.on_launch = [] {
    if (world.launches == 20) throw std::runtime_error("no more\nand more");
  };
  EXPECT_EQ(run("--axis n=64 --axis tile=16,32").status, 1);
  for (const int tile : {16, 32}) EXPECT_EQ(measurement(64, tile)["reason"], "no more");
}

// ---- processes

// Only the case that loses the device fails. Another process goes on, and does not try this case again. Neither does
// --resume, nor a run that cannot write its records.
TEST_F(ExperimentTest, ALostDeviceCostsOneCaseAndAProcess) {
  struct {
    int launches;  // launches of tile 32 before the loss; -1: the loss comes while the problem is made
    const char *status, *more;
  } const table[] = {{-1, "failed", ""}, {0, "failed", ""},   {0, "timeout", ""},
                     {12, "failed", ""}, {12, "timeout", ""}, {0, "failed", "--measurements /dev/null "}};
  for (const auto& [launches, status, more] : table) {
    world = World();
    forget();
    const auto lose = [status = std::string(status)] {
      if (status == "failed") throw DeviceFault("an illegal address");
      throw DeviceTimeout("no end");
    };
    world.seconds = slow_32;
    world.on_make = [&, launches = launches](const Case& config) {
      if (launches < 0 && tile_is(config, 32)) lose();
    };
    world.on_launch_of = [&, left = launches](double seconds) mutable {
      if (seconds == 2e-3 && left-- == 0) lose();
    };
    const std::string line = "--axis n=8 --axis tile=16,32,64 --seed 5 " + std::string(more);
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_TRUE(has(outcome.out, "2 ok, ")) << outcome.out;
    EXPECT_EQ(world.workers, launches < 0 ? 1 : 2);
    if (*more) continue;
    for (const int tile : {16, 64}) EXPECT_EQ(measurement(8, tile)["status"], "ok") << tile;
    EXPECT_EQ(measurement(8, 32)["status"], status);
    EXPECT_TRUE(measurement(8, 32)["reason"].get<std::string>().starts_with("device lost: "));
    EXPECT_FALSE(measurement(8, 32)["pipeline"].is_null()) << "the record must name the kernels";
    EXPECT_EQ(run(line + "--resume").status, 1);
    EXPECT_EQ(measurements().size(), 3u);
  }
}

TEST_F(ExperimentTest, ProcessesMeasureTheComparisons) {
  world.seconds = [](const Case& config) {
    return tile_is(config, 32) ? 0.5e-3 * (1 + 0.01 * static_cast<double>(world.tasks.size())) : 1e-3;
  };
  EXPECT_EQ(run("--processes 3 --budget 60").status, 0);
  ASSERT_EQ(world.tasks.size(), 3u);
  EXPECT_EQ(world.workers, 4);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(world.tasks[i]["budget_s"].get<double>(), 60.0 / static_cast<double>(3 - i));
    EXPECT_EQ(world.tasks[i]["duels"].size(), 3u) << "the claims' pairs, not all pairs of cases";
    EXPECT_TRUE(world.tasks[i]["groups"].empty());
  }
  EXPECT_EQ(measurements().size(), 6u) << "the processes of --processes must write no records of cases";
  ASSERT_EQ(findings().size(), 3u);
  for (const Json& finding : findings()) {
    const Json& data = finding["data"];
    ASSERT_EQ(data["parts"].size(), 3u);
    for (int i : {0, 1, 2}) EXPECT_NEAR(data["parts"][i]["value"].get<double>(), 0.5 * (1 + 0.01 * (i + 1)), 1e-4);
    EXPECT_NEAR(data["compare"]["ratio"].get<double>(), 0.51, 1e-4);
    EXPECT_GE(data["compare"]["time"][0]["rounds"], 15);
    EXPECT_EQ(data["estimate"]["processes"], 3);
    EXPECT_NEAR(data["estimate"]["tau"].get<double>(), 0.0098, 1e-3);
  }
  EXPECT_EQ(run("--resume --processes 3").status, 0);
  EXPECT_EQ(world.tasks.size(), 3u) << "the findings have all pairs, so no process may start";
}

TEST_F(ExperimentTest, TheSamplesGiveTheFiguresAgain) {
  EXPECT_EQ(run("--processes 2").status, 0);
  const std::vector<Json> samples = records("measurements.samples.jsonl");
  std::map<int, int> lines;  // by process
  for (const Json& line : samples) {
    EXPECT_EQ(line["schema"], "samples/1");
    EXPECT_EQ(line["run"], measurements()[0]["run_id"]);
    ++lines[line["process"]];
    for (const char* side : {"samples_s", "baseline_s", "contender_s", "again_s"}) {
      for (const Json& sample : line.value(side, Json::array())) EXPECT_LE(sample.dump().size(), 14u) << sample;
    }
  }
  EXPECT_EQ(lines, (std::map<int, int>{{0, 6}, {1, 3}, {2, 3}})) << "6 cases of the sweep, and 3 pairs a process";
  const Json compare = findings().at(0)["data"]["compare"];
  for (const Json& part : compare["parts"]) {
    const auto line = std::ranges::find_if(samples, [&](const Json& other) {
      return other["process"] == part["process"] && other.value("contender", Json()) == compare["contender"];
    });
    ASSERT_NE(line, samples.end());
    EXPECT_EQ(ratio(samples_from_json(*line).baseline, samples_from_json(*line).contender, 1).value, part["ratio"]);
    EXPECT_EQ((*line)["clocks"], part["clocks"]);
    EXPECT_GT(part["clocks"]["readings"], 0);
  }
}

TEST_F(ExperimentTest, ProcessesMeasureTheCasesOfAClaimAgain) {
  spec_.claims = [](const DeviceInfo&) {
    return std::vector<Claim>{{.hypothesis = {"fastest", "n=64 takes at most 2 ms", "ms", "<=", 2, "a test"},
                               .takes = [](const Measurement& result) { return result.config.integer("n") == 64; },
                               .varies = {"tile"},
                               .pick = [](const Results& group) { return std::vector<Results>{{fastest(group)}}; },
                               .compared = false,
                               .figure = milliseconds_of,
                               .title = "{estimate.value:.1f} ms"}};
  };
  // The sweep finds tile 32 fast, by luck.
  world.seconds = [](const Case& config) { return world.tasks.empty() && tile_is(config, 32) ? 0.5e-3 : 1e-3; };
  EXPECT_EQ(run("--processes 2").status, 0);
  EXPECT_EQ(world.tasks.size(), 2u);
  ASSERT_EQ(findings().size(), 1u);
  EXPECT_EQ(findings()[0]["title"], "1.0 ms") << "the figure must not be the time that picked the case";
  EXPECT_EQ(findings()[0]["data"]["measurements"], Json::array({measurement(64, 32)["id"]}));
}

TEST_F(ExperimentTest, TheBaselineIsMeasuredAgainOnInputsOfItsOwn) {
  static std::vector<const void*> makers;
  makers.clear();
  spec_.make = [inputs = std::vector<int>(1)](Experiment&, const Case& config, const Plan&) {
    makers.push_back(inputs.data());
    return std::make_unique<FakeProblem>(config);
  };
  EXPECT_EQ(run(two).status, 0);
  ASSERT_EQ(makers.size(), 2u + 3u);  // the sweep's two cases; then A, B and A' of the comparison
  EXPECT_EQ(makers[2], makers[3]);
  EXPECT_NE(makers[2], makers[4]);
}

// A round measures the baseline A, the contender B and the repeated baseline A'. If times grow during a round, A' takes
// longer than A in the order A B A'. In the order A' B A it takes less time than A.
TEST_F(ExperimentTest, EverySecondProcessBeginsWithTheRepeatedBaseline) {
  // The sweep makes two problems, and each process makes A, B and A'.
  spec_.make = [](Experiment& lab, const Case& config, const Plan&) {
    return std::make_unique<FakeProblem>(config, lab.is_part() && world.makes % 3 == 1 ? 1.25 : 1);
  };
  std::vector<std::vector<double>> launches(4);  // of the sweep and of each process
  world.on_launch_of = [&](double seconds) { launches.at(world.tasks.size()).push_back(seconds); };
  EXPECT_EQ(run(two + "--processes 3").status, 0);
  // The first three launches of each problem decide how many launches a sample has. Then the first problem of the round
  // warms up.
  for (const auto& [process, first] : {std::pair{1, 1e-3}, {2, 1.25e-3}, {3, 1e-3}}) {
    ASSERT_GT(launches[process].size(), 9u);
    EXPECT_EQ(launches[process][6], 1.25e-3) << "A' must be the last problem";
    EXPECT_EQ(launches[process][9], first) << process;
  }
}

TEST_F(ExperimentTest, ProcessesShareTheRoundsOfTheFullProfile) {
  for (const auto& [on_host, each] : {std::pair{false, 10}, {true, 6}}) {  // an interval needs six rounds
    forget();
    world.on_host = on_host;
    EXPECT_EQ(run(two + "--profile full --processes 5 --axis variant=tuned").status, 0);
    const Json compare = findings().at(0)["data"]["compare"];
    ASSERT_EQ(compare["parts"].size(), 5u);
    for (const Json& part : compare["parts"]) EXPECT_EQ(part["time"][0]["rounds"], each);
  }
}

TEST_F(ExperimentTest, WhatGoesWrongInAProcess) {
  world.on_make = [](const Case& config) {
    if (!world.tasks.empty() && config.integer("n") == 128 && tile_is(config, 32)) throw DeviceLost("a fault");
  };
  EXPECT_EQ(run("--processes 2").status, 1);
  std::set<int> judged;
  for (const Json& finding : findings()) {
    judged.insert(finding["data"]["cases"][0]["n"].get<int>());
    EXPECT_EQ(finding["data"]["parts"].size(), 2u);
  }
  EXPECT_EQ(judged, (std::set<int>{64, 256})) << "a lost device costs one case";
  EXPECT_EQ(measurements().back()["case"]["n"], 128);
  EXPECT_EQ(measurements().back()["status"], "failed");

  world = World();
  forget();
  world.workers_end = true;
  const Outcome ended = run("--processes 2");
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(has(ended.err, "process 2 of 2 that repeat measurements: was ended by signal 9")) << ended.err;
  EXPECT_TRUE(has(ended.out, "\n6 ok, ")) << ended.out;

  world = World();
  forget();
  world.on_launch = [raised = false]() mutable {
    if (world.tasks.size() == 2 && !raised) raised = std::raise(SIGINT) == 0;
  };
  EXPECT_EQ(run("--processes 3").status, 130);
  EXPECT_EQ(measurements().size(), 6u);
  EXPECT_TRUE(findings().empty());

  world = World();
  forget();
  world.correct = [](const Case& config, int) { return !(tile_is(config, 32) && world.makes > 2); };
  EXPECT_EQ(run(two).status, 1) << "a wrong result in a comparison";
  ASSERT_EQ(measurements().size(), 3u);
  EXPECT_EQ(measurements()[2]["status"], "wrong");
  EXPECT_EQ(measurements()[2]["case"]["tile"], 32);
  EXPECT_TRUE(findings().empty());
}

// ---- files and streams

// If the disk is full or nobody reads a pipe, records are lost, but the table still has all results.
TEST_F(ExperimentTest, ARunWhoseRecordsCannotBeWrittenGoesOn) {
  fs::create_symlink("/dev/full", path("full.jsonl"));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  for (const std::string& where :
       std::vector<std::string>{"--measurements " + path("full.jsonl"), "--out " + path("full.jsonl"), std::string(),
                                "--measurements " + path("pipe"), "--out " + path("pipe")}) {
    forget();
    int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
    world.seconds = [&](const Case&) {
      close(std::exchange(reader, -1));
      return 1e-3;
    };
    if (where.empty()) fs::create_symlink("/dev/full", path("measurements.samples.jsonl"));
    const Outcome outcome = run(four + where);
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    const size_t said = outcome.err.find("the run goes on");
    EXPECT_NE(said, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("the run goes on", said + 1), std::string::npos) << outcome.err;
    EXPECT_TRUE(has(outcome.out, "\n4 ok, ")) << outcome.out;
    for (const Json& record : measurements()) EXPECT_EQ(record["status"], "ok");
  }
  EXPECT_EQ(run("--measurements " + path("pipe")).status, 2) << "a pipe that no process reads must be refused";
}

TEST_F(ExperimentTest, WhatARunPrints) {
  const auto lines_of = [](const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  };
  std::vector<Json> printed;
  for (const std::string& line : lines_of(run("--json " + two).out)) printed.push_back(parse_json(line));
  std::vector<Json> recorded = measurements();
  for (const Json& finding : findings()) recorded.push_back(finding);
  ASSERT_EQ(printed.size(), 4u);
  EXPECT_EQ(printed.back()["schema"], "answer/1");
  EXPECT_EQ(printed.back()["run"], recorded.front()["run_id"]);
  EXPECT_EQ(printed.back()["counts"]["ok"], 2);
  printed.pop_back();
  EXPECT_EQ(printed, recorded);

  Outcome outcome = run("--csv --quiet " + two);
  EXPECT_EQ(lines_of(outcome.out).size(), 3u) << outcome.out;
  EXPECT_TRUE(outcome.out.starts_with("n,m,tile,variant,id,status,")) << outcome.out;
  EXPECT_EQ(outcome.err, "");
  fs::remove_all(path("cache"));
  std::ofstream(path("cache")) << "not a folder";
  outcome = run("--json --quiet " + one);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(has(outcome.err, "kernel cache")) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with('{')) << "warnings must leave stdout to the results: " << outcome.out;
  for (const auto& [baseline, warned] : {std::pair{"tile=64", true}, {"tile=16", false}}) {
    EXPECT_EQ(has(run(two + "--baseline " + baseline).err, "no measured case"), warned) << baseline;
  }
}

TEST_F(ExperimentTest, ARunEndsWithAnAnswerAndTheNextCommands) {
  world.seconds = [](const Case& config) { return tile_is(config, 32) ? 0.5e-3 : tile_is(config, 24) ? 0.8e-3 : 1e-3; };
  const std::string line = "--axis n=8,4096 --axis tile=16,24,32 --axis variant=tuned";
  const Outcome outcome = run(line);
  const std::string id = measurement(8, 32)["id"].get<std::string>().substr(0, 6);
  for (const std::string& text :
       {std::string("ANSWER for fake, 2 units"), std::string("take 32 tuned of 3; 24 tuned 1.60x ["),
        std::string("tile32: 0.50 ["), std::string("3 ok, 0 wrong, 3 skipped"),
        "records: " + path("measurements.jsonl") + " " + path("out.jsonl"), " --replay " + id}) {
    EXPECT_TRUE(has(outcome.out, text)) << text << "\n" << outcome.out;
  }
  EXPECT_FALSE(has(outcome.out, "SUPPORTED")) << "without --verdicts no verdict may be printed";
  EXPECT_EQ(run("--replay " + id).status, 0);
  world.seconds = [](const Case& config) { return tile_is(config, 16) ? 0.5e-3 : 1e-3; };
  EXPECT_TRUE(has(run(line).out, "take 16 tuned of 3; ")) << "other times must give another answer";
}

// ---- budget, interruption, resume

TEST_F(ExperimentTest, TheBudgetIsSharedAndResumeMeasuresTheCasesThatItMissed) {
  EXPECT_EQ(run("--budget 1e-9").status, 0);
  std::map<std::string, int> counts;
  for (const Json& record : measurements()) ++counts[record["status"] == "ok" ? "ok" : record["reason"]];
  EXPECT_EQ(counts, (std::map<std::string, int>{{"ok", 2}, {"budget spent", 4}})) << "the first group took all";
  EXPECT_TRUE(findings().empty());

  const int makes = world.makes;
  EXPECT_EQ(run("--resume").status, 0);
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
}

TEST_F(ExperimentTest, ResumeMakesTheFindingsThatAreMissing) {
  Claim same = spec_.claims({}).front();
  same.hypothesis.id = "same_pair";
  spec_.claims = [claims = spec_.claims, same](const DeviceInfo& device) {
    std::vector<Claim> all = claims(device);
    all.push_back(same);
    return all;
  };
  run("");
  const std::vector<Json> whole = findings();
  const Json run_line = header();
  ASSERT_EQ(whole.size(), 6u);
  // No pair is compared again if another finding has the comparison.
  for (const auto& [begin, end, compares] : {std::tuple{0, 6, false}, {1, 6, false}, {0, 2, true}, {0, 0, true}}) {
    std::ofstream file(path("out.jsonl"));
    if (end > 0) file << run_line.dump() << "\n";
    for (int i = begin; i < end; ++i) file << whole[i].dump() << "\n";
    file.close();
    const Outcome outcome = run("--resume");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(has(outcome.err, " against "), compares) << outcome.err;
    EXPECT_EQ(measurements().size(), 6u);
    std::set<std::string> claims;
    for (const Json& finding : findings()) claims.insert(finding["claim_key"].get<std::string>());
    EXPECT_EQ(findings().size(), 6u);
    EXPECT_EQ(claims.size(), 6u);
    EXPECT_EQ(records("out.jsonl").size(), 6u + 1u) << "the run must have one header";
  }
}

// A claim about a single case is measured again in other processes; a claim about several pairs keeps only one of them
// in its finding. Neither is measured again by --resume.
TEST_F(ExperimentTest, ResumeOfAFinishedRunMeasuresNothing) {
  Claim each_case = {.hypothesis = {"absolute", "a case is fast", "ms", "<", 100, "a test"},
                     .pick = each,
                     .compared = false,
                     .figure = milliseconds_of,
                     .subject = subject_without({"m", "variant"}),
                     .title = "fast",
                     .content = "fast"};
  Claim gathered = spec_.claims({}).front();
  gathered.hypothesis.id = "gathered";
  gathered.gather = [](const std::vector<Comparison>& comparisons) {
    std::vector<const Comparison*> all;
    for (const Comparison& comparison : comparisons) all.push_back(&comparison);
    return all.empty() ? std::vector<std::vector<const Comparison*>>()
                       : std::vector<std::vector<const Comparison*>>{all};
  };
  gathered.subject = [](const Evidence&) { return std::string(); };
  spec_.claims = [each_case, gathered](const DeviceInfo&) { return std::vector{each_case, gathered}; };
  for (const std::string line : {"--verdicts --processes 1 ", "--verdicts --processes 3 "}) {
    SCOPED_TRACE(line);
    forget();
    const Outcome first = run(line);
    EXPECT_EQ(first.status, 0) << first.err;
    ASSERT_EQ(findings().size(), 6u + 1u);
    const size_t before = records("out.jsonl").size() + measurements().size();
    const int workers = world.workers;
    const Outcome again = run(line + "--resume");
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_EQ(world.workers, workers) << "no process may start";
    EXPECT_EQ(records("out.jsonl").size() + measurements().size(), before);
    EXPECT_TRUE(has(again.err, "nothing is left to measure")) << again.err;
    EXPECT_TRUE(has(again.out, "6 verdicts")) << "the verdicts must be shown again: " << again.out;
    std::ranges::reverse(spec_.axes);
    EXPECT_EQ(run(line + "--resume").status, 0);
    EXPECT_EQ(world.workers, workers) << "the order of the axes is no part of a case";
  }
}

TEST_F(ExperimentTest, ResumeMeasuresCasesAgainUnderOtherConditions) {
  const std::string line = one + "--axis variant=tuned ";
  run(line);
  std::ofstream(path("extra")) << "eightbyt";
  spec_.file_options = {file_option()};
  for (const auto& [more, count] : {std::pair<std::string, size_t>{"", 1},
                                    {"--seed 2", 2},
                                    {"--device cpu:threads=1", 3},
                                    {"--profile full", 4},
                                    {"--threadgroup-memory 4096", 5},
                                    {"--extra " + path("extra"), 6},
                                    {"", 6}}) {
    EXPECT_EQ(run(line + "--resume " + more).status, 0);
    EXPECT_EQ(measurements().size(), count) << more;
  }
  std::ofstream(path("extra")) << "othertxt";
  run(line + "--resume --extra " + path("extra"));
  EXPECT_EQ(measurements().size(), 7u) << "a case whose file has another text must be measured";
  world.source = "int two;";
  for (int times : {1, 2}) EXPECT_EQ(run(line + "--resume").status, 0) << times;
  EXPECT_EQ(measurements().size(), 8u);
  run(line);  // without --resume everything is measured again
  EXPECT_EQ(measurements().size(), 9u);
  EXPECT_NE(measurements()[8]["run_id"], measurements()[7]["run_id"]);
}

TEST_F(ExperimentTest, ResumeRefusesAnotherCommitAndAnotherMachine) {
  run(one);
  const Json mine = measurements().at(0);
  for (const std::string field : {"commit", "diff", "machine"}) {
    Json record = mine;
    record["run"][field] = "0123456789abcdef";
    std::ofstream(path("measurements.jsonl")) << record.dump() << "\n";
    const Outcome outcome = run(one + "--resume");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_TRUE(has(outcome.err, "another " + field)) << outcome.err;
    EXPECT_EQ(measurements().size(), 1u);
  }
}

TEST_F(ExperimentTest, ResumeKeepsWrongAndSkippedButTriesFailedAgain) {
  world.correct = [](const Case& config, int) { return config.integer("n") != 1; };
  world.on_make = [](const Case& config) {
    if (config.integer("n") == 2) throw CompileError("no");
  };
  const std::string line = "--axis n=1,2,4096 --axis tile=16 --resume";
  EXPECT_EQ(run(line).status, 1);
  EXPECT_EQ(measurements().size(), 3u);
  world.on_make = [](const Case&) {};
  EXPECT_EQ(run(line).status, 1);  // the wrong case still counts
  ASSERT_EQ(measurements().size(), 4u);
  EXPECT_EQ(measurements()[3]["case"]["n"], 2);
  EXPECT_EQ(measurements()[3]["status"], "ok");
}

TEST_F(ExperimentTest, ResumeReportsTornAndDamagedLines) {
  run(one);
  {
    std::ofstream file(path("measurements.jsonl"), std::ios::app);
    file << R"({"schema":"measurement/1","experiment":"fake_experiment","id":"abc"})" << "\n"
         << R"({"schema":5})" << "\n";
    for (int line = 0; line < 10; ++line) file << "oops\n";
    file << R"({"schema":"mea)";
  }
  const Outcome outcome = run("--axis n=8,9 --axis tile=16 --resume");
  EXPECT_EQ(outcome.status, 0);
  for (const char* text : {"line 3", "and 7 more bad lines", "\"abc\" is damaged"}) {
    EXPECT_TRUE(has(outcome.err, text)) << outcome.err;
  }
  for (const int n : {8, 9}) EXPECT_EQ(measurement(n, 16)["status"], "ok");
}

TEST_F(ExperimentTest, InterruptionKeepsTheMeasurements) {
  struct {
    int makes, launches;  // the signal comes in the launch with this number, after so many problems were made
    size_t recorded;
  } const table[] = {{1, 1, 0}, {4, 62, 4}, {6 + 2, 1, 6}};  // while verifying, while timing, in a comparison
  for (const auto& [makes, launches, recorded] : table) {
    SCOPED_TRACE(makes);
    world = World();
    forget();
    world.on_launch = [&, raised = false, makes = makes, launches = launches]() mutable {
      if (raised || world.makes < makes || world.launches < launches) return;
      raised = std::raise(makes == 4 ? SIGINT : SIGTERM) == 0;
    };
    const Outcome outcome = run("");
    EXPECT_EQ(outcome.status, 130);
    EXPECT_TRUE(has(outcome.err, "--resume"));
    ASSERT_EQ(measurements().size(), recorded);
    EXPECT_EQ(outcome.out.empty(), recorded == 0) << "the table must have what was measured";
    EXPECT_TRUE(findings().empty());
    EXPECT_EQ(run("--resume").status, 0);
    std::map<std::string, int> complete;
    for (const Json& record : measurements()) {
      complete[record["case"].dump()] += record["time"][0]["stop"] != "interrupted";
    }
    EXPECT_EQ(complete.size(), 6u);
    for (const auto& [config, count] : complete) EXPECT_EQ(count, 1) << config;
    EXPECT_EQ(findings().size(), 3u);
  }
}

// ---- replay

TEST_F(ExperimentTest, ReplayOfAMeasurement) {
  run(two + "--device cpu:threads=1 --seed 7 --threadgroup-memory 4096");
  const std::string id = measurement(8, 32)["id"];
  world.opened.clear();
  world.last_seed = 0;
  Outcome outcome = run("--replay " + id.substr(0, 8));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "AGREES") && has(outcome.out, id)) << outcome.out;
  EXPECT_EQ(world.opened, (std::vector<std::string>{"cpu:threads=1", "cpu:threads=1"}));
  EXPECT_EQ(world.last_seed, 7u);
  EXPECT_EQ(world.threadgroup_memory, 4096u);
  ASSERT_EQ(measurements().size(), 3u);
  EXPECT_EQ(measurements()[2]["case"], measurements()[1]["case"]);
  outcome = run("--csv --replay " + id);
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2) << outcome.out;
  world.seconds = [](const Case&) { return 2e-3; };
  outcome = run("--replay " + id);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(has(outcome.out, "DIFFERS: now 2.000 of the recorded median")) << outcome.out;
  world.correct = [](const Case&, int) { return false; };
  outcome = run("--replay " + id);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(has(outcome.out, "DIFFERS: recorded ok, now wrong")) << outcome.out;
}

TEST_F(ExperimentTest, ReplayOfAFinding) {
  world.seconds = fast_32;
  run("--seed 7");
  const Json finding = findings().at(1);
  const std::string id = finding["id"];
  Outcome outcome = run("--replay " + id);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "AGREES       with the replayed finding " + id)) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "NOT JUDGED"));
  EXPECT_EQ(measurements().size(), 6u + 2u);  // only the finding's two cases
  ASSERT_EQ(findings().size(), 4u);
  EXPECT_EQ(findings()[3]["claim_key"], finding["claim_key"]);
  EXPECT_NE(findings()[3]["data"]["run"], finding["data"]["run"]);
  const std::vector<Json> all = records("out.jsonl");
  const Json again = all.at(all.size() - 2)["run"];
  EXPECT_EQ(again["seed"], 7);
  EXPECT_EQ(again["replay"], header()["run"]["replay"]);
  world.seconds = slow_32;
  outcome = run("--replay " + id);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(findings().back()["data"]["verdict"]["state"], "refuted");
  EXPECT_TRUE(has(outcome.out, "REFUTED")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "DIFFERS      from the replayed finding " + id)) << outcome.out;

  forget();  // the command line in the record repeats the run
  run(two + "--resume");
  std::string command = header()["run"]["replay"];
  EXPECT_FALSE(has(command, "--resume"));
  EXPECT_EQ(run(command.substr(command.find(' '))).status, 0);
  ASSERT_EQ(findings().size(), 2u);
  EXPECT_EQ(findings()[1]["claim_key"], findings()[0]["claim_key"]);
}

// Pages name records by ids that are in findings/recorded only.
TEST_F(ExperimentTest, ReplayFindsARecordOfThePages) {
  world.seconds = fast_32;
  run("--seed 7");
  const std::string finding = findings().at(1)["id"], measured = measurement(64, 32)["id"];
  const fs::path tree = folder_.path() / "tree";
  fs::create_directories(tree / "findings/recorded/fake");
  fs::create_directory_symlink(fs::path(source_root()) / "common", tree / "common");
  const std::string packed = (tree / "findings/recorded/fake/2026-11-23-fake_experiment-1.jsonl.gz").string();
  ASSERT_EQ(
      std::system(("cat " + path("measurements.jsonl") + " " + path("out.jsonl") + " | gzip > " + packed).c_str()), 0);
  forget();
  setenv("ATTENTION_PROTO_SOURCE", tree.c_str(), 1);
  const Outcome of_finding = run("--replay " + finding.substr(0, 8));
  const Outcome of_measurement = run("--replay " + measured);
  const Outcome of_none = run("--replay 0123456789abcdef");
  setenv("ATTENTION_PROTO_SOURCE", "/nonexistent", 1);
  const Outcome of_no_tree = run("--dry-run");
  unsetenv("ATTENTION_PROTO_SOURCE");
  EXPECT_EQ(of_finding.status, 0) << of_finding.err;
  EXPECT_TRUE(has(of_finding.out, "AGREES       with the replayed finding " + finding)) << of_finding.out;
  EXPECT_EQ(of_measurement.status, 0) << of_measurement.err;
  EXPECT_TRUE(has(of_measurement.out, "recorded  " + measured)) << of_measurement.out;
  EXPECT_EQ(of_none.status, 2);
  EXPECT_TRUE(has(of_none.err, "/findings/recorded")) << of_none.err;
  EXPECT_EQ(of_no_tree.status, 2);
  EXPECT_TRUE(has(of_no_tree.err, "no source tree")) << of_no_tree.err;
}

TEST_F(ExperimentTest, AReplayNeedsTheRecordAndItsFiles) {
  spec_.file_options = {file_option()};
  for (const char* file : {"input", "extra"}) std::ofstream(path(file)) << "eightbyt";
  for (const std::string option : {"--input", "--extra"}) {
    forget();
    const std::string file = path(option.substr(2));
    run(option + " " + file + " --axis tile=16");
    const std::string id = measurements().at(0)["id"];
    EXPECT_EQ(run("--replay " + id).status, 0);
    for (const std::string& more : {option + " " + file, std::string("--seed 3")}) {
      EXPECT_EQ(run("--replay " + id + " " + more).status, 2) << more;
    }
    std::ofstream(file) << "othertxt";
    const Outcome changed = run("--replay " + id);
    EXPECT_EQ(changed.status, 2);
    EXPECT_TRUE(has(changed.err, option + " " + file + " has changed")) << changed.err;
  }
  EXPECT_EQ(run("--replay 0000000").status, 2);
  spec_.name = "another_experiment";
  const Outcome outcome = run("--replay " + measurements().at(0)["id"].get<std::string>());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(has(outcome.err, "fake_experiment")) << outcome.err;
}

// ---- selection

TEST_F(ExperimentTest, TheCommandLineSelectsCases) {
  std::ofstream(path("input")) << "tensors";
  std::ofstream(path("extra")) << "eightbyt";
  spec_.file_options = {file_option(), {"--other", "another file", [](const std::string&) {
                                          return std::vector<Axis>{{"m", {int64_t{9}}}};
                                        }}};
  const std::string tuned = "n=8 m=8 tile=24 variant=tuned", of_input = "n=96 m=96 tile=24 variant=tuned";
  const std::string input = "--input " + path("input"), extra = "--extra " + path("extra");
  struct {
    std::string line;
    size_t count;
    std::string only;  // the key of the one case
  } const table[] = {
      {"", 6, ""},
      {"--profile full", 9, ""},
      {"--axis n=8:32:pow2", 6, ""},
      {"--axis n=8", 1, tuned},  // a single shape runs its default tile
      {"--profile full --axis n=8", 1, tuned},
      {"--axis n=8 --axis variant=naive", 1, "n=8 m=8 tile=24 variant=naive"},
      {"--axis n=8 --axis tile=16", 1, "n=8 m=8 tile=16 variant=tuned"},
      {"--axis n=8,9", 4, ""},  // two shapes run with the profile's tiles
      {"--axis n=8 --axis m=8,9", 4, ""},
      {input, 1, of_input},
      {input + " --axis n=96", 1, of_input},
      {extra + " --axis tile=16,32", 2, ""},
      {extra + " --other " + path("extra"), 1, "n=8 m=9 tile=24 variant=tuned"},
  };
  for (const auto& [line, count, only] : table) {
    const std::vector<std::string> cases = cases_of(line);
    EXPECT_EQ(cases.size(), count) << line;
    EXPECT_TRUE(only.empty() || cases.front() == only) << line;
  }
  for (const std::string& conflict : {input + " --axis n=64,96", extra + " --axis n=9"}) {
    const Outcome outcome = run("--dry-run " + conflict);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_TRUE(has(outcome.err, "leave the axis out")) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(path("measurements.jsonl")));
  EXPECT_EQ(world.makes, 0);
  std::string seen;
  run(extra + " --axis tile=16", [&](Experiment& lab) {
    seen = lab.file("--extra");
    return lab.run();
  });
  EXPECT_EQ(seen, path("extra"));
  EXPECT_EQ(measurement(8, 16)["run"]["files"]["--extra"]["sha256"], sha256("eightbyt"));
  spec_.file_sweep = [](const std::string&, const DeviceInfo&) { return Sweep{{{{"n", {int64_t{1}}}}}}; };
  EXPECT_EQ(cases_of("--other " + path("extra")).size(), 1u) << "a sweep of its own for files";
  spec_.study_sweep = [](const DeviceInfo&) { return Sweep{{{{"n", {int64_t{2}}}}}}; };
  EXPECT_EQ(cases_of("--profile study").size(), 1u) << "a sweep of its own for the study";
  const std::string foreign = "no case of the study has this value";
  EXPECT_EQ(cases_of("--profile study --axis n=3").size(), 1u) << "a named axis replaces the study's values";
  EXPECT_TRUE(has(run("--dry-run --profile study --axis n=2,3").err, "--axis n=3: " + foreign + "; they have 2"));
  EXPECT_FALSE(has(run("--dry-run --profile study --axis n=2").err, foreign));
  EXPECT_FALSE(has(run("--dry-run --axis n=3").err, foreign));
  const Outcome refused = run("--profile study --other " + path("extra"));
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(has(refused.err, "--profile study: not allowed with a function of yours")) << refused.err;
  spec_.default_tile = false;
  EXPECT_EQ(cases_of("--axis n=8").size(), 2u);
  spec_.complete = [](Case& config, const DeviceInfo&) { config.set("tile", int64_t{24}); };
  EXPECT_TRUE(has(run("--dry-run --axis n=8 --axis m=8 --axis tile=16,24").err, "no case has this value"));
}

TEST_F(ExperimentTest, RanksThatDoNotShareTheWorkAreReported) {
  for (const auto& [rank, more, says] : {std::tuple{"0", "", true},
                                         {"0", "--shard 1/4", false},
                                         {"0", "--resume", false},
                                         {"1", "", false}}) {  // only rank 0 may print the line
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_RANK", rank, 1);
    EXPECT_EQ(has(run(one + "--only verify " + more).err, "each of the 4 ranks"), says) << more;
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}) unsetenv(name);
}

TEST_F(ExperimentTest, ShardsAreDisjointAndTogetherEverything) {
  std::multiset<std::string> parts, recorded;
  for (const std::string shard : {"--shard 1/2", "--shard 2/2"}) {
    const auto part = cases_of(shard);
    EXPECT_FALSE(part.empty());
    parts.insert(part.begin(), part.end());
    EXPECT_EQ(run("--only verify " + shard).status, 0);
  }
  const auto all = cases_of("");
  EXPECT_EQ(parts, (std::multiset<std::string>(all.begin(), all.end())));
  for (const Json& record : measurements()) recorded.insert(Case::from_json(record["case"]).key());
  EXPECT_EQ(recorded, parts);
  EXPECT_EQ(run("--shard 9/9").status, 0);  // this shard has no cases
}

TEST_F(ExperimentTest, DumpOutputNeedsOneCase) {
  const std::string dump = "--dump-output " + path("o.safetensors");
  const Outcome outcome = run(dump);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(has(outcome.err, "3 cases are selected, which differ in n, m")) << outcome.err;
  EXPECT_FALSE(fs::exists(path("o.safetensors")));
  EXPECT_EQ(run(dump + " --axis n=8").status, 0);
  EXPECT_TRUE(fs::exists(path("o.safetensors")));
  EXPECT_EQ(world.dumps, 1);
  EXPECT_EQ(run(dump + " --axis n=4096").status, 2);  // this case would be skipped
}

TEST_F(ExperimentTest, OptionsThatOnlyPrint) {
  const std::pair<const char*, std::vector<const char*>> table[] = {
      {"--list", {"64, 128, 256", "8..64 by 8", "tuned naive", "tile32", "ratio of medians < 1", "a test"}},
      {"--list --json", {"\"hypothesis\":\"tile32\""}},
      {"--dry-run --axis n=8,4096",
       {"4096    16  skipped", "skipped (n=4096 m=4096 tile=16): needs 65536", "2 of 4 cases"}},
      {"--dry-run --json", {"\"runs\":true"}},
      {"--version", {"fake_experiment "}},
      {"--help", {"--device", "--resume", "--shard", "cpu:threads=N", "EXIT STATUS", "DIFFERS", "  130  "}}};
  for (const auto& [line, texts] : table) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.status, 0);
    for (const char* text : texts) EXPECT_TRUE(has(outcome.out, text)) << text << "\n" << outcome.out;
  }
  EXPECT_FALSE(fs::exists(path("measurements.jsonl")));
}

// ---- command line

TEST_F(ExperimentTest, BadArgumentsAreOneLineAndStatus2) {
  spec_.file_options = {file_option()};
  std::ofstream(path("short")) << "short";
  std::ofstream(path("in")) << "the inputs";
  fs::create_hard_link(path("in"), path("other_name"));
  const std::string in = path("in"), same = "names the same file";
  const std::pair<std::string, std::string> table[] = {
      {"--nonsense", "--nonsense: no such option; --help"},
      {"--tsak", "--tsak: no such option; --help"},  // --task is the program's own
      {"--axis varaint=tuned", "unknown axis 'varaint' (did you mean variant?); known: n, m"},
      {"--profile medium", "quick or full"},
      {"--profile 'a\nb'", "a b: not allowed"},
      {"--profile study", "--profile study: not allowed; quick or full"},
      {"--columns few", "all"},
      {"--baseline variant=", "'' is not allowed"},
      {"--csv --json", "--json"},
      {"--budget nan", "--budget nan: not allowed; a number from 0 to 10000000"},
      {"--max-launch 1s", "--max-launch 1s: not allowed; a number from 1e-06"},
      {"--budget ''", "--budget is empty"},
      {"--seed 1 --seed 2", "--seed"},
      {"--shard 0/4", "1 <= I <= N"},
      {"--threadgroup-memory 9999999", "8192"},
      {"--axis tile=9", "multiple of 8"},
      {"--axis n=8 --axis n=9", "twice"},
      {"--axis n=8 --axis m=4", "m must be at least n"},
      {"--replay xyz", "hex"},
      {"--replay 123456 --axis n=8", "--axis"},
      {"--input /nowhere/x.safetensors", "/nowhere/x.safetensors"},
      {"--extra /nowhere", "/nowhere: cannot be read"},
      {"--measurements /nowhere/m.jsonl", "/nowhere/m.jsonl"},
      {one + "--input " + in + " --dump-output " + in, "--input " + same},
      {one + "--input " + in + " --dump-output " + path("other_name"), same},
      {one + "--extra " + in + " --dump-output " + path("./in"), "--extra " + same},
      {one + "--input " + in + " --out " + in, same},
      {one + "--dump-output " + path("out.jsonl"), "--out " + same},
      {one + "--dump-output " + path("measurements.samples.jsonl"), "samples file of --measurements " + same},
      {one + "--out " + path("measurements.samples.jsonl"), "samples file of --measurements " + same},
  };
  for (const auto& [line, mentions] : table) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.status, 2) << line;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << line << ": " << outcome.err;
    EXPECT_TRUE(has(outcome.err, mentions)) << line << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << line;
  }
  EXPECT_EQ(world.makes, 0);
  EXPECT_EQ(read_file(in), "the inputs");
  const Outcome of_file = run("--extra " + path("short"));
  EXPECT_EQ(of_file.status, 2);
  EXPECT_TRUE(has(of_file.err, "too short\nfor what follows")) << "bad input is told in full: " << of_file.err;
  EXPECT_EQ(run("--out /dev/null --dump-output /dev/null --axis n=8").status, 0);
  spec_.input_axes = nullptr;
  EXPECT_TRUE(has(run("--input x").err, "takes no --input"));
  const Outcome missing = run("--device gone");
  EXPECT_EQ(missing.status, 3);
  EXPECT_EQ(missing.err, "fake_experiment: gone: is not there\n");
}

TEST(Options, NoSamplesFileNextToADeviceFile) {
  Options options;
  for (const auto& [path, samples] : {std::pair{"measurements.jsonl", "measurements.samples.jsonl"},
                                      {"/dev/shm/nosuch/m", "/dev/shm/nosuch/m.samples.jsonl"},
                                      {"/dev/null", ""},
                                      {"/dev/stdout", ""},
                                      {"/dev/fd/1", ""},
                                      {"/", ""}}) {
    options.measurements_path = path;
    EXPECT_EQ(options.samples_path(), samples) << path;
  }
}

TEST(Options, ProcessesOfAProfile) {
  for (const auto& [profile, given, cpu, gpu] : {std::tuple{"quick", 0, 3, 3}, {"full", 0, 5, 3}, {"full", 7, 7, 7}}) {
    Options options;
    options.profile = profile;
    options.processes = given;
    EXPECT_EQ(options.process_count(test::avx2()), cpu);
    EXPECT_EQ(options.process_count(test::hopper()), gpu);
  }
}

TEST(Options, BudgetOfAProfile) {
  for (const auto& [profile, cpu, gpu] :
       {std::tuple{"quick", 120.0, 120.0}, {"study", 600.0, 600.0}, {"full", 3600.0, 300.0}}) {
    Options options;
    options.profile = profile;
    EXPECT_EQ(options.budget(test::avx2()), cpu);
    EXPECT_EQ(options.budget(test::hopper()), gpu);
    options.budget_s = 7;
    EXPECT_EQ(options.budget(test::hopper()), 7);
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
  EXPECT_EQ(clean["machine"].get<std::string>().size(), 16u);
  for (const std::string& text : {machine_and_boot(), processor_name()}) {
    EXPECT_NE(clean["machine"], sha256(text).substr(0, 16));
  }
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
