// proto5_codegen_tune: searches the constants of the generator `search` and the schedules of the generator
// `halide_tuned`. The search takes the same time for each case. The program writes the winners, with the log of the
// search, to findings/tuning/ARCH.json.
//
// Candidates are drawn at random. In the second half of the time, every second candidate is the best one so far with
// one constant drawn anew. A candidate is timed by the fastest of a few launches, and checked against the oracle before
// it becomes the best. At the end the best candidate and the usual constants are launched in turn. If the usual
// constants are no slower, the winner has no constants of its own.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include "common/attention/tuning.h"
#include "common/base/command_line.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/run_program.h"
#include "common/base/standard_streams.h"
#include "common/base/stopwatch.h"
#include "common/experiment/sweep_span.h"
#include "proto5_codegen/problem.h"
#include "proto5_codegen/tuning.h"

namespace attn {
namespace {

constexpr int launches = 3;       // at most this many launches time a candidate
constexpr int turns = 20;         // rounds of in_turn() at the end, after a first round
constexpr double hopeless = 1.5;  // a candidate that takes this many times the best time is not launched again
constexpr uint64_t seed_of_search = 1;

struct Search {
  Device& device;
  PipelineCache& pipelines;
  CodegenCase config;
  std::shared_ptr<CodegenInputs> inputs;
  SearchSpace space;
  double best_s = 0;
  FunctionConstants best = {};

  std::unique_ptr<CodegenProblem> problem(const FunctionConstants& constants) const {
    CodegenCase one = config;
    one.constants = constants;
    return std::make_unique<CodegenProblem>(device, pipelines, inputs, one, codegen_plan(one, device.info()));
  }

  double launch_s(const CodegenProblem& made) const {
    CommandEncoder encoder;
    encoder.timestamp();
    made.encode(encoder);
    encoder.timestamp();
    return device.submit(encoder).at(0);
  }

  /// Returns the seconds of the fastest launch of a candidate.
  double time(const FunctionConstants& constants) const {
    const std::unique_ptr<CodegenProblem> made = problem(constants);
    double fastest = launch_s(*made);
    for (int i = 1; i < launches && (best_s == 0 || fastest < hopeless * best_s); ++i) {
      fastest = std::min(fastest, launch_s(*made));
    }
    return fastest;
  }

  /// Launches two kernels in turn. Returns the seconds of the fastest launch of each kernel.
  std::pair<double, double> in_turn(const FunctionConstants& a, const FunctionConstants& b) const {
    const std::unique_ptr<CodegenProblem> first = problem(a), second = problem(b);
    std::pair<double, double> fastest = {launch_s(*first), launch_s(*second)};
    for (int i = 0; i < turns; ++i) {
      fastest.first = std::min(fastest.first, launch_s(*first));
      fastest.second = std::min(fastest.second, launch_s(*second));
    }
    return fastest;
  }

  FunctionConstants candidate(std::mt19937_64& random, bool near) const {
    FunctionConstants constants = near ? best : FunctionConstants{};
    const auto draw = [&](const auto& values) { return values[random() % values.size()]; };
    if (near) {
      const auto& [name, values] = draw(space);
      constants[name] = draw(values);
      return constants;
    }
    for (const auto& [name, values] : space) constants[name] = draw(values);
    return constants;
  }
};

Json as_json(const FunctionConstants& constants) {
  Json json = Json::object();
  for (const auto& [name, value] : constants) json[name] = value;
  return json;
}

/// Returns the winner of a case with the log of the search, or null if there is none.
Json search(Device& device, PipelineCache& pipelines, const CodegenCase& config, double seconds) {
  const SearchSpace space = search_space(config, device.info());
  if (space.empty() || !codegen_plan(config, device.info()).unable.empty()) return nullptr;
  Search state{device, pipelines, config,
               std::make_shared<CodegenInputs>(device, config, seed_of_search, random_tensors(config, seed_of_search)),
               space};
  const Stopwatch stopwatch;
  std::mt19937_64 random(seed_of_search);
  int tried = 0, failed = 0;
  Json log = Json::array();
  while (stopwatch.seconds() < seconds) {
    const bool near = state.best_s > 0 && stopwatch.seconds() > seconds / 2 && tried % 2 == 0;
    const FunctionConstants constants = state.candidate(random, near);
    if (!unfit(config, device.info(), constants).empty()) continue;
    ++tried;
    try {
      const double s = state.time(constants);
      if (state.best_s > 0 && s >= state.best_s) continue;
      // The check is needed, because a wrong kernel may be the fastest.
      const std::unique_ptr<CodegenProblem> made = state.problem(constants);
      made->poison();
      state.launch_s(*made);
      if (!made->check().ok) {
        ++failed;
        continue;
      }
      state.best_s = s;
      state.best = constants;
      log.push_back({{"tried", tried}, {"us", 1e6 * s}, {"constants", as_json(constants)}});
    } catch (const CompileError&) {
      ++failed;
    } catch (const BadInput&) {
      ++failed;  // for example, the kernel needs too much threadgroup memory
    }
  }
  if (state.best_s == 0) return nullptr;
  const auto [usual_s, best_s] = state.in_turn({}, state.best);
  if (best_s >= usual_s) state.best = {};
  return {{"constants", as_json(state.best)},
          {"us", 1e6 * std::min(best_s, usual_s)},
          {"usual_us", 1e6 * usual_s},
          {"q_len", config.shape.q_len},
          {"heads", config.heads()},
          {"seconds", seconds},
          {"tried", tried},
          {"failed", failed},
          {"log", log}};
}

std::vector<CodegenCase> all_cases(DType dtype, int64_t heads, int64_t tokens) {
  std::vector<CodegenCase> cases;
  for (const auto work : {WORK_SCORES, WORK_SOFTMAX, WORK_VALUES, WORK_ATTENTION, WORK_MODIFIED}) {
    for (const int64_t head_dim : {64, 128}) {
      for (const bool causal : {false, true}) {
        CodegenCase one;
        one.work = work;
        one.dtype = dtype;
        one.shape = {.batch = 1,
                     .q_heads = heads,
                     .kv_heads = heads,
                     .q_len = tokens,
                     .kv_len = tokens,
                     .head_dim = work == WORK_SOFTMAX ? 0 : head_dim,
                     .causal = causal};
        const bool repeated = (causal && !one.whole()) || (head_dim == 128 && work == WORK_SOFTMAX);
        if (!repeated) cases.push_back(one);
      }
    }
  }
  return cases;
}

int run(const std::string& spec, double seconds, int64_t heads, int64_t tokens, const std::string& only,
        const std::string& type) {
  const std::unique_ptr<Device> device = Device::open(spec);
  const DType dtype = parse_dtype(type.empty() ? sweep_span(device->info()).dtype : type);
  if (dtype == DType::bf16 && device->info().on_host)
    throw BadInput("dtype bf16 is not allowed on a CPU; its kernels take f32");
  const std::filesystem::path path = source_root() + "/" + tuning_path(device->info());
  Json found = read_tuning(device->info());
  bool none = true;
  for (const CodegenCase& one : all_cases(dtype, heads, tokens)) {
    for (const char* generator : {"search", "halide_tuned"}) {
      if (!only.empty() && only != work_names()[one.work]) continue;
      CodegenCase config = one;
      config.generator = generator;
      PipelineCache pipelines(*device, "");  // without a folder, so that candidates are not kept on disk
      const Json winner = search(*device, pipelines, config, seconds);
      if (winner.is_null()) continue;
      none = false;
      to_stdout(fmt::format("{} {}: {} us with the usual constants, {} us with the best of {} candidates: {}\n",
                            generator, tuning_key(config), winner.at("usual_us").dump(), winner.at("us").dump(),
                            winner.at("tried").dump(), winner.at("constants").dump()));
      found["generated"][generator][tuning_key(config)] = winner;
      if (!PendingFile(path).write(found.dump(1) + "\n")) {
        throw std::runtime_error(fmt::format("{}: cannot be written", path.string()));
      }
    }
  }
  if (none) {
    throw BadInput(fmt::format(
        "the search found no right candidate on {}: the device has no kernels to search, or --seconds {:g} is too few",
        device->info().spec, seconds));
  }
  return 0;
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  CLI::App app("Searches constants and schedules for proto5_codegen, and writes the best into findings/tuning.",
               "proto5_codegen_tune");
  attn::add_help_and_version(app);
  std::string device = "cpu", only, dtype;
  double seconds = 20;
  int64_t heads = 8, tokens = 1024;
  app.add_option("--device", device, "where to run: cpu, cuda");
  attn::number_option(app, "--seconds", seconds, 0.001, 1e6, "SECONDS",
                      "time to search for each case and generator; default 20");
  attn::number_option<int64_t, int64_t>(app, "--heads", heads, 1, 1024, "N", "heads of a case; default 8");
  attn::number_option<int64_t, int64_t>(app, "--q-len", tokens, 1, 1 << 20, "N", "tokens of a case; default 1024");
  app.add_option("--work", only, "search only for this work")->check(CLI::IsMember(attn::work_names()));
  app.add_option("--dtype", dtype, "type of all tensors; default bf16 on a GPU, and f32 on a CPU")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.footer(
      "Exit status: 0 done; 1 a launch failed, or the file of tuning or stdout could not be written; 2 bad arguments; "
      "3 the device, or a library that it needs, is missing.");
  return attn::run_program("proto5_codegen_tune", [&] {
    return attn::parse_command_line(app, argc, argv) ? attn::run(device, seconds, heads, tokens, only, dtype) : 0;
  });
}
