#include "proto4_constants/problem.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/base/error.h"
#include "common/base/stopwatch.h"
#include "common/base/temporary_folder.h"
#include "proto4_constants/sweep.h"
#include "proto4_constants/variants.h"

namespace attn {
namespace {

namespace fs = std::filesystem;

constexpr size_t launched_variants = 16;      // of those that a check has, as many are launched
constexpr size_t traced_variants = 4;         // of those that a case compiles
constexpr double least_sample_s = 200e-6;     // look-ups in memory are repeated until a sample takes this long
constexpr int64_t look_ups_per_reading = 64;  // of the clock

/// Of this process: the most memory it has had since reset(), where the system lets it be reset.
class PeakMemory {
 public:
  void reset() {
    std::ofstream file("/proc/self/clear_refs");
    known_ = static_cast<bool>(file << "5" << std::flush);
    before_ = field("VmRSS:");
  }
  bool known() const { return known_; }
  int64_t bytes() const { return field("VmHWM:"); }
  int64_t grown_bytes() const { return bytes() - before_; }

 private:
  static int64_t field(const std::string& name) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(name)) return std::strtoll(line.c_str() + name.size(), nullptr, 10) * 1024;  // "123 kB"
    }
    return 0;
  }
  bool known_ = false;
  int64_t before_ = 0;
};

/// A folder of cache entries, and archives, of the first variants of a grid: made when they are first asked for.
class Prepared {
 public:
  Prepared(Device& device, std::vector<KernelSource> sources) : device_(device), sources_(std::move(sources)) {}

  /// A cache folder that has at least `count`.
  std::string cache(size_t count) {
    const std::string path = folder_.path() / "cache";
    if (count > cached_) {
      PipelineCache(device_, path).prepare(first(count), std::max(1u, std::thread::hardware_concurrency()));
      cached_ = count;
    }
    return path;
  }
  /// An archive of exactly `count`.
  std::string archive(size_t count) {
    const std::string path = folder_.path() / fmt::format("archive-{}", count);
    if (!fs::exists(path)) {
      PipelineCache from_disk(device_, cache(count));
      from_disk.prepare(first(count), 1);
      from_disk.archive().save(path);
    }
    return path;
  }
  /// Where a new archive may be written.
  std::string new_archive() const { return folder_.path() / "archive-new"; }

 private:
  std::vector<KernelSource> first(size_t count) const {
    return {sources_.begin(), sources_.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  Device& device_;
  const std::vector<KernelSource> sources_;
  TemporaryFolder folder_;
  size_t cached_ = 0;
};

Check launch(Device& device, PipelineCache& cache, const Variant& variant, uint64_t seed) {
  FlashProblem problem(device, cache, std::make_shared<FlashInputs>(device, variant.config, seed, ""), variant.config,
                       variant.hook());
  problem.poison();
  CommandEncoder encoder;
  problem.encode(encoder);
  device.submit(encoder);
  return problem.check();
}

void fail(Check& check, const std::string& why) {
  if (check.ok) check.worst = why;
  check.ok = false;
}

/// Getting many variants in one of the ways there are.
class VariantsProblem : public Problem {
 public:
  VariantsProblem(Experiment& lab, const Case& config, std::vector<Variant> variants,
                  std::shared_ptr<Prepared> prepared)
      : lab_(lab),
        device_(lab.device()),
        task_(config.text("task")),
        dtype_(parse_dtype(config.text("dtype"))),
        workers_(static_cast<unsigned>(config.integer("workers"))),
        pch_(config.integer("pch") != 0),
        variants_(std::move(variants)),
        prepared_(std::move(prepared)) {
    for (const Variant& variant : variants_) sources_.push_back(variant.source(device_.info()));
  }

  void encode(CommandEncoder&) const override { throw std::logic_error("getting variants is no launch"); }
  void poison() override {}
  Work work() const override { return {}; }
  DType dtype() const override { return dtype_; }
  const Pipeline& pipeline() const override { return lab_.pipelines().get(sources_.front()); }
  size_t threadgroup_bytes() const override {
    return FlashBackend::of(device_.info())
        .kernel(variants_.front().config, device_.info(), variants_.front().alibi)
        .threadgroup_bytes;
  }
  void dump(const std::string&) const override {
    throw BadInput("--dump-output: a case that launches nothing has none");
  }

  Sampler host_sampler() override {
    const size_t count = sources_.size();
    if (task_.starts_with("compile")) return [this] { return get_all("", ""); };
    if (task_ == "disk") return [this, folder = prepared_->cache(count)] { return get_all(folder, ""); };
    if (task_ == "archive") return [this, file = prepared_->archive(count)] { return get_all("", file); };
    if (task_ == "archive_load") {
      return [this, file = prepared_->archive(count)]() -> std::vector<double> {
        const Stopwatch stopwatch;
        loaded_ = PipelineArchive::load(file);
        return {stopwatch.seconds()};
      };
    }
    get_all("", prepared_->archive(count));
    if (task_ == "memory") return [this] { return look_up_all(); };
    return [this]() -> std::vector<double> {  // archive_create
      const Stopwatch stopwatch;
      cache_->archive().save(prepared_->new_archive());
      return {stopwatch.seconds()};
    };
  }

  /// Whether each variant came from where the task says, is the code that a compilation gives, and computes attention.
  Check check() override {
    Check check;
    std::optional<PipelineCache> archived;
    if (task_ == "archive_create" || task_ == "archive_load") {
      archived.emplace(device_, "");
      archived->attach(task_ == "archive_load" ? *loaded_ : PipelineArchive::load(prepared_->new_archive()));
    }
    PipelineCache& cache = archived ? *archived : *cache_;
    const std::string origin = task_.starts_with("compile") ? "compiled" : task_ == "disk" ? "disk" : "archive";
    for (const KernelSource& source : sources_) {
      const Pipeline& pipeline = cache.get(source);
      if (pipeline.origin != origin) {
        fail(check, fmt::format("{} is {}, not from {}", pipeline.binary.key, pipeline.origin, origin));
      }
    }
    const size_t launches = std::min(launched_variants, variants_.size());
    for (size_t i = 0; i < launches; ++i) {
      check.merge(launch(device_, cache, variants_[i * variants_.size() / launches], lab_.seed()));
    }
    return check;
  }

  Json values() const override {
    Json values = {{"variants", variants_.size()}};
    for (const auto& [name, samples] : samples_) values[name] = median(samples);
    if (task_ == "archive_load" || task_ == "archive") {
      values["archive_bytes"] = fs::file_size(prepared_->archive(sources_.size()));
    }
    if (task_ == "archive_create") values["archive_bytes"] = fs::file_size(prepared_->new_archive());
    return values;
  }

 private:
  /// All variants through a new cache: seconds, archive and loading included. Keeps what the phases took.
  std::vector<double> get_all(const std::string& folder, const std::string& archive) {
    cache_.reset();  // unloads what the sample before has loaded
    cache_.emplace(device_, folder, CompileOptions{.precompile_headers = pch_});
    PeakMemory peak;
    peak.reset();
    const Stopwatch stopwatch;
    if (!archive.empty()) cache_->attach(PipelineArchive::load(archive));
    cache_->prepare(sources_, workers_);
    const double seconds = stopwatch.seconds();
    if (peak.known()) {
      note("peak_bytes", static_cast<double>(peak.bytes()));
      note("peak_grown_bytes", static_cast<double>(peak.grown_bytes()));
    }
    CompileTimes times;
    double load_s = 0, binary_bytes = 0;
    for (const KernelSource& source : sources_) {
      const Pipeline& pipeline = cache_->get(source);
      times += pipeline.binary.times;
      load_s += pipeline.load_s;
      binary_bytes += static_cast<double>(pipeline.binary.code.size());
    }
    if (task_.starts_with("compile")) {
      if (times.optimizer_s == 0) times = apportioned(times);
      note("front_end_s", times.front_end_s);
      note("optimizer_s", times.optimizer_s);
      note("code_generation_s", times.code_generation_s);
    }
    note("load_s", load_s);
    note("binary_bytes", binary_bytes);
    return {seconds};
  }

  /// What a compiler that does not tell its optimiser's time took, in the proportions of some variants that are
  /// compiled again with a trace, which takes a tenth longer. As it is where there is no trace.
  CompileTimes apportioned(const CompileTimes& times) {
    if (!traced_) {
      traced_.emplace();
      const CompileOptions options{.precompile_headers = pch_, .trace_phases = true};
      const size_t count = std::min(sources_.size(), traced_variants);
      for (size_t i = 0; i < count; ++i) {
        *traced_ += device_.compile(sources_[i * sources_.size() / count], options).times;
      }
    }
    if (traced_->optimizer_s == 0) return times;
    const double scale = times.total_s() / traced_->total_s();
    return {traced_->front_end_s * scale, traced_->optimizer_s * scale, traced_->code_generation_s * scale};
  }

  /// All variants, as often as a sample needs: seconds for one round of all of them.
  std::vector<double> look_up_all() {
    const Stopwatch stopwatch;
    int64_t rounds = 0;
    const int64_t batch = std::max<int64_t>(1, look_ups_per_reading / static_cast<int64_t>(sources_.size()));
    do {
      for (int64_t i = 0; i < batch; ++i) {
        for (const KernelSource& source : sources_) found_ = &cache_->get(source);
      }
      rounds += batch;
    } while (stopwatch.seconds() < least_sample_s);
    return {stopwatch.seconds() / static_cast<double>(rounds)};
  }

  void note(const std::string& name, double value) { samples_[name].push_back(value); }

  Experiment& lab_;
  Device& device_;
  const std::string task_;
  const DType dtype_;
  const unsigned workers_;
  const bool pch_;
  const std::vector<Variant> variants_;
  std::vector<KernelSource> sources_;
  std::shared_ptr<Prepared> prepared_;
  std::optional<PipelineCache> cache_;
  std::optional<CompileTimes> traced_;
  std::optional<PipelineArchive> loaded_;
  const Pipeline* volatile found_ = nullptr;  // so that look-ups are not left out
  std::map<std::string, std::vector<double>> samples_;
};

/// A new process, from its start to its first result.
class StartProblem : public Problem {
 public:
  StartProblem(Experiment& lab, Case config, size_t variants, Variant first, std::shared_ptr<Prepared> prepared)
      : lab_(lab),
        config_(std::move(config)),
        variants_(variants),
        first_(std::move(first)),
        prepared_(std::move(prepared)),
        // Beside this program, which may be a test.
        program_((fs::read_symlink("/proc/self/exe").parent_path() / "proto4_constants").string()) {}

  void encode(CommandEncoder&) const override { throw std::logic_error("starting a process is no launch"); }
  void poison() override {}
  Work work() const override { return {}; }
  DType dtype() const override { return first_.config.dtype; }
  const Pipeline& pipeline() const override { return lab_.pipelines().get(first_.source(lab_.device().info())); }
  size_t threadgroup_bytes() const override { return 0; }
  void dump(const std::string&) const override {
    throw BadInput("--dump-output: a case that launches nothing has none");
  }

  Sampler host_sampler() override {
    const std::string& task = config_.text("task");
    std::vector<std::string> arguments = {program_,
                                          first_result_option,
                                          lab_.device().info().spec,
                                          config_.text("kernel"),
                                          config_.text("dtype"),
                                          std::to_string(lab_.seed()),
                                          task == "start_disk" ? prepared_->cache(variants_) : "",
                                          task == "start_archive" ? prepared_->archive(variants_) : ""};
    return [this, arguments]() -> std::vector<double> { return {start(arguments)}; };
  }

  Check check() override { return check_; }

  Json values() const override {
    Json values = {{"variants", variants_}};
    for (const auto& [name, samples] : samples_) values[name] = median(samples);
    return values;
  }

 private:
  /// Seconds from the start of the process to the line that says that there is a result.
  double start(std::vector<std::string> arguments) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> argv, environment;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    for (char** variable = environ; *variable; ++variable) environment.push_back(*variable);
    // The driver caches what it compiles from PTX. Kernels here are machine code, which it does not; off all the same.
    std::string no_driver_cache = "CUDA_CACHE_DISABLE=1";
    environment.push_back(no_driver_cache.data());
    environment.push_back(nullptr);

    const Stopwatch stopwatch;
    pid_t child = -1;
    const int error = posix_spawn(&child, program_.c_str(), &actions, nullptr, argv.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    std::string line;
    double seconds = 0;
    for (char c = 0; error == 0 && read(ends[0], &c, 1) == 1;) {
      if (c == '\n') {
        seconds = stopwatch.seconds();
        break;
      }
      line += c;
    }
    close(ends[0]);
    if (error != 0) throw std::runtime_error(fmt::format("{} does not start: {}", program_, std::strerror(error)));
    int status = 0;
    rusage usage{};
    while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    const Json report = Json::parse(line, nullptr, false);
    if (!report.is_object()) throw std::runtime_error(fmt::format("{} ended without a result", program_));
    const std::string& task = config_.text("task");
    const std::string origin = task == "start_compile" ? "compiled" : task.substr(std::strlen("start_"));
    check_ = {};
    check_.rows_checked = first_.config.shape.q_heads * first_.config.shape.q_len;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail(check_, "the result of the new process is wrong");
    if (report.at("origin") != origin) {
      fail(check_, fmt::format("the kernel was {}, not from {}", report.at("origin").get<std::string>(), origin));
    }
    for (const char* name : {"open_s", "pipeline_s", "launch_s"}) samples_[name].push_back(report.at(name));
    samples_["peak_bytes"].push_back(static_cast<double>(usage.ru_maxrss) * 1024);
    return seconds;
  }

  Experiment& lab_;
  const Case config_;
  const size_t variants_;
  const Variant first_;
  std::shared_ptr<Prepared> prepared_;
  const std::string program_;
  Check check_;
  std::map<std::string, std::vector<double>> samples_;
};

/// Problems of one shape share their tensors; when the last of them goes, so do these.
std::unique_ptr<Problem> make_run(Experiment& lab, const Case& config, std::weak_ptr<FlashInputs>& last) {
  const Variant variant = run_variant(config);
  const DeviceInfo& info = lab.device().info();
  const auto same = [&](const FlashConfig& other) {
    return other.shape == variant.config.shape && other.dtype == variant.config.dtype;
  };
  std::shared_ptr<FlashInputs> inputs = last.lock();
  if (!inputs || !same(inputs->config())) {
    last = inputs = std::make_shared<FlashInputs>(lab.device(), variant.config, lab.seed(), "");
  }
  return std::make_unique<FlashProblem>(lab.device(), lab.pipelines(), inputs, variant.config, variant.hook(),
                                        run_time_constants(config.text("run_time"), variant.config.variant, info));
}

}  // namespace

std::function<std::unique_ptr<Problem>(Experiment&, const Case&)> constants_problems() {
  struct Shared {
    std::weak_ptr<FlashInputs> inputs;
    std::map<std::string, std::shared_ptr<Prepared>> prepared;  // by kernel and dtype
  };
  return [shared = std::make_shared<Shared>()](Experiment& lab, const Case& config) -> std::unique_ptr<Problem> {
    const std::string& task = config.text("task");
    if (task == "run") return make_run(lab, config, shared->inputs);
    if (task == "compile_one") {
      return std::make_unique<VariantsProblem>(lab, config, std::vector<Variant>{compiled_variant(config)}, nullptr);
    }
    const DeviceInfo& info = lab.device().info();
    std::vector<Variant> grid = variant_grid(config.text("kernel"), parse_dtype(config.text("dtype")), info);
    auto& prepared = shared->prepared[config.key({"kernel", "dtype"})];
    if (!prepared) {
      std::vector<KernelSource> sources;
      for (const Variant& variant : grid) sources.push_back(variant.source(info));
      prepared = std::make_shared<Prepared>(lab.device(), std::move(sources));
    }
    const auto count = static_cast<size_t>(config.integer("variants"));
    if (task.starts_with("start_")) return std::make_unique<StartProblem>(lab, config, count, grid.front(), prepared);
    grid.erase(grid.begin() + static_cast<std::ptrdiff_t>(count), grid.end());
    return std::make_unique<VariantsProblem>(lab, config, std::move(grid), prepared);
  };
}

int first_result(const std::vector<std::string>& arguments) {
  if (arguments.size() != 6) throw BadInput("the child process takes device, kernel, dtype, seed, folder and archive");
  Stopwatch stopwatch;
  const std::unique_ptr<Device> device = Device::open(arguments[0]);
  const double open_s = stopwatch.seconds();
  stopwatch = {};
  const uint64_t seed = std::strtoull(arguments[3].c_str(), nullptr, 10);
  const std::vector<Variant> grid = variant_grid(arguments[1], parse_dtype(arguments[2]), device->info());
  if (grid.empty()) throw BadInput(fmt::format("{} does not run on {}", arguments[1], arguments[0]));
  PipelineCache cache(*device, arguments[4]);
  if (!arguments[5].empty()) cache.attach(PipelineArchive::load(arguments[5]));
  const Variant& variant = grid.front();
  const Pipeline& pipeline = cache.get(variant.source(device->info()));
  const double pipeline_s = stopwatch.seconds();
  stopwatch = {};
  FlashProblem problem(*device, cache, std::make_shared<FlashInputs>(*device, variant.config, seed, ""), variant.config,
                       variant.hook());
  problem.poison();
  CommandEncoder encoder;
  problem.encode(encoder);
  device->submit(encoder);
  const double launch_s = stopwatch.seconds();
  const Json report = {
      {"origin", pipeline.origin}, {"open_s", open_s}, {"pipeline_s", pipeline_s}, {"launch_s", launch_s}};
  fmt::print("{}\n", report.dump());
  std::fflush(stdout);
  return problem.check().ok ? 0 : 1;
}

}  // namespace attn
