#include "proto2_stitching/function.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include "common/base/error.h"
#include "proto2_stitching/kernels/oracle.h"

namespace attn {
namespace {

constexpr uint32_t oracle_threads = 128;

KernelSource oracle(const DeviceInfo& device, const UserFunction& function, bool in_double) {
  const std::string dialect = device.is_cuda() ? "cuda.cu" : "cpu.cpp";
  return {.path = "proto2_stitching/kernels/oracle." + dialect,
          .entry = "score_oracle",
          .includes = {{"proto2_stitching/kernels/function.h", function.header(in_double)}}};
}

// The compiler's message without what is before the first diagnostic: the pipeline's key, and how the text is included.
std::string diagnostics(const std::string& message) {
  std::istringstream lines(message);
  std::string line, kept;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (!line.starts_with("In file included from")) kept += "\n" + line;
  }
  while (kept.ends_with('\n')) kept.pop_back();
  return kept;
}

// What it takes to apply a function to one row after another on the device.
struct OracleRows {
  OracleRows(Device& device, const Pipeline& loaded, int64_t keys)
      : on(device), pipeline(loaded), scores(device, static_cast<size_t>(keys) * sizeof(double)) {}

  Device& on;
  const Pipeline& pipeline;
  Buffer scores;
  std::mutex mutex;  // rows come from several threads
};

}  // namespace

std::string UserFunction::header(bool in_double) const {
  // In the name of a #line a quote or a backslash would end it or begin an escape.
  std::string shown = name;
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c == '"' || c == '\\' || c == '\n'; }, '_');
  // Few functions use all they are given.
  constexpr const char* quiet =
      "#ifdef __clang__\n#pragma clang diagnostic push\n#pragma clang diagnostic ignored "
      "\"-Wunused-parameter\"\n#endif\n";
  constexpr const char* as_before = "#ifdef __clang__\n#pragma clang diagnostic pop\n#endif\n";
  return fmt::format("#include \"common/kernel/{}.h\"\n{}{}#line 1 \"{}\"\n{}\n{}",
                     in_double ? "math_double" : "math", work < 0 ? "" : fmt::format("#define WORK {}\n", work), quiet,
                     shown, text, as_before);
}

std::vector<std::string> built_in_functions() { return {"scale", "alibi", "soft_cap", "chain"}; }

UserFunction built_in_function(const std::string& name, int64_t work) {
  const std::vector<std::string> known = built_in_functions();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string file = name == file_function ? "; --score-function FILE brings one of your own" : "";
    throw BadInput(fmt::format("function={}: not allowed; {}{}", name, fmt::join(known, ", "), file));
  }
  UserFunction function = read_function(fmt::format("{}/proto2_stitching/functions/{}.cpp", source_root(), name));
  function.name = fmt::format("proto2_stitching/functions/{}.cpp", name);
  if (name == "chain") function.work = work;
  return function;
}

UserFunction read_function(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (!stream || !(text << stream.rdbuf())) throw BadInput(fmt::format("score function {} cannot be read", path));
  return {path, std::move(text).str()};
}

void require_compiles(Device& device, const UserFunction& function) {
  for (const bool in_double : {false, true}) {
    try {
      device.compile(oracle(device.info(), function, in_double));
    } catch (const CompileError& error) {
      throw BadInput(fmt::format(
          "score function {} does not compile{}; wanted is float score(float s, int q, int k, "
          "const ScoreContext& context){}",
          function.name, in_double ? " with double for float, as the oracle has it" : "", diagnostics(error.what())));
    }
  }
}

ScoreFunction double_precision(Device& device, PipelineCache& pipelines, const UserFunction& function,
                               const AttentionShape& shape) {
  const Pipeline& pipeline = pipelines.get(oracle(device.info(), function, true));
  const auto rows = std::make_shared<OracleRows>(device, pipeline, shape.kv_len);
  return [rows, shape](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    const std::lock_guard lock(rows->mutex);
    OracleParams params{};
    params.scores = static_cast<double*>(rows->scores.data());
    params.keys = static_cast<int>(scores.size());
    params.q = static_cast<int>(q);
    params.context = {static_cast<int>(batch),       static_cast<int>(head),         static_cast<int>(shape.q_heads),
                      static_cast<int>(shape.q_len), static_cast<int>(shape.kv_len), nullptr};
    rows->scores.upload(scores.data(), scores.size_bytes());
    CommandEncoder encoder;
    const uint32_t groups =
        rows->on.info().is_cuda() ? (static_cast<uint32_t>(scores.size()) + oracle_threads - 1) / oracle_threads : 1;
    encoder.dispatch(*rows->pipeline.kernel, {groups}, oracle_threads, 0, params);
    rows->on.submit(encoder);
    rows->scores.download(scores.data(), scores.size_bytes());
  };
}

}  // namespace attn
