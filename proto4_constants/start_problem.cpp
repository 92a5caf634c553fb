#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/platform.h"
#include "common/base/stopwatch.h"
#include "common/cases/problem.h"
#include "proto4_constants/problem.h"
#include "proto4_constants/variants.h"

namespace attn {
namespace {

namespace fs = std::filesystem;

/// Times a new process from its start to its first result.
class StartProblem : public HostProblem {
 public:
  StartProblem(Experiment& lab, Case config, size_t variants, Variant first, std::shared_ptr<Prepared> prepared)
      : lab_(lab),
        config_(std::move(config)),
        variants_(variants),
        first_(std::move(first)),
        prepared_(std::move(prepared)),
        program_(program_to_start()) {}

  double sample() override {
    const std::string& task = config_.text("task");
    return start({program_, first_result_option, lab_.device().info().spec, config_.text("kernel"),
                  config_.text("dtype"), std::to_string(lab_.seed()),
                  task == "start_disk" ? prepared_->cache(variants_) : "",
                  task == "start_archive" ? prepared_->archive(variants_) : ""});
  }
  Check check() override { return check_; }

  Json values() const override {
    Json values = {{"variants", variants_}};
    for (const auto& [name, samples] : samples_) values[name] = median(samples);
    return values;
  }

 private:
  /// Returns the path of this program. In a test program, returns the path of proto4_constants in the same folder.
  static std::string program_to_start() {
    const fs::path own = fs::canonical(own_program());
    return own.stem().string().ends_with("_test") ? own.parent_path() / "proto4_constants" : own;
  }

  /// Starts the process. Returns the seconds from its start to the line that reports its first result.
  double start(std::vector<std::string> arguments) {
    std::array<int, 2> ends{};
    if (!make_pipe(ends)) throw std::runtime_error("no pipe to the new process can be made");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> argv, environment;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    // A precaution: the driver caches the code that it compiles from PTX. The kernels here are machine code.
    std::string no_driver_cache = "CUDA_CACHE_DISABLE=1";
    environment.push_back(no_driver_cache.data());  // if a variable has two entries, the first entry counts
    for (char** variable = own_environment(); *variable; ++variable) environment.push_back(*variable);
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
    const Json report = parse_json(line, false);
    if (!report.is_object()) throw std::runtime_error(fmt::format("{} ended without a result", program_));
    const std::string& task = config_.text("task");
    const std::string origin = task == "start_compile" ? "compiled" : task.substr(std::strlen("start_"));
    check_ = {};
    check_.rows_checked = first_.config.shape.q_heads * first_.config.shape.q_len;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) check_.fail("the result of the new process is wrong");
    if (report.at("origin") != origin) {
      check_.fail(fmt::format("the kernel has the origin {}; it must have the origin {}",
                              report.at("origin").get<std::string>(), origin));
    }
    for (const char* name : {"open_s", "pipeline_s", "launch_s"}) samples_[name].push_back(report.at(name));
    samples_["peak_bytes"].push_back(peak_bytes(usage));
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

}  // namespace

std::unique_ptr<HostProblem> start_problem(Experiment& lab, const Case& config, size_t variants, Variant first,
                                           std::shared_ptr<Prepared> prepared) {
  return std::make_unique<StartProblem>(lab, config, variants, std::move(first), std::move(prepared));
}

int first_result(const std::vector<std::string>& arguments) {
  if (arguments.size() != 6)
    throw BadInput("the child process must get device, kernel, dtype, seed, folder and archive");
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
                       variant.plan(device->info()), variant.hook());
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
