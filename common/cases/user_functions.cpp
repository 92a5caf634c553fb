#include "common/cases/user_functions.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "common/attention/function_text.h"
#include "common/attention/kernels/feature_oracle.h"
#include "common/attention/kernels/mask_oracle.h"
#include "common/attention/kernels/score_oracle.h"
#include "common/base/divided_up.h"
#include "common/base/error.h"
#include "common/base/file.h"

namespace attn {
namespace {

constexpr size_t most_bytes = size_t{1} << 20;                // the largest file
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // some editors begin a file with this mark
constexpr size_t most_message_bytes = 400;                    // of a compiler's message that BadInput repeats
// About the most query-key pairs that visible_pairs() evaluates, and that one launch evaluates (a byte each).
constexpr int64_t most_pairs = int64_t{1} << 28, most_chunk_bytes = int64_t{1} << 24;

std::string kind_name(FunctionKind kind) {
  return kind == FunctionKind::mask      ? "mask function"
         : kind == FunctionKind::feature ? "feature map"
                                         : "score function";
}

std::string wanted(FunctionKind kind) {
  return kind == FunctionKind::mask      ? "bool visible(int q, int k, const MaskContext& context)"
         : kind == FunctionKind::feature ? "float feature(float x)"
                                         : "float score(float s, int q, int k, const ScoreContext& context)";
}

std::string shortened(std::string line) {
  if (line.size() > most_message_bytes) line = line.substr(0, most_message_bytes) + " ...";
  return line;
}

/// Returns a compiler's text without the namespaces of a user's text, which are names like user_text_0123456789ab.
std::string without_scopes(std::string text) {
  for (const std::string_view scope : {"(anonymous namespace)::", "<unnamed>::"}) {
    for (size_t at; (at = text.find(scope)) != text.npos;) text.erase(at, scope.size());
  }
  const std::string_view own = users_namespace;
  for (size_t at = 0; (at = text.find(own, at)) != text.npos;) {
    const size_t end = std::min(at + own.size() + 12, text.size());
    if (text.compare(end, 2, "::") == 0) {
      text.erase(at, end + 2 - at);
    } else {
      at = end;
    }
  }
  return text;
}

/// Returns the first error that lies in the function's own text, or else the first error of the message.
std::string first_error(const CompileError& error, const std::string& file) {
  std::istringstream lines{std::string(error.log())};
  std::string first, own;
  int errors = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("error") == std::string::npos) continue;
    if (line.find(": error") == std::string::npos && line.find("fatal") == std::string::npos) continue;
    ++errors;
    if (first.empty()) first = line;
    if (own.empty() && line.starts_with(file)) own = line;
  }
  if (first.empty()) first = std::string(error.log().substr(0, error.log().find('\n')));
  return shortened(without_scopes(own.empty() ? first : own)) +
         (errors > 1 ? fmt::format(" (and {} more)", errors - 1) : "");
}

/// Returns an empty text if a mark is missing.
std::string between(std::string_view text, std::string_view open, std::string_view close) {
  const size_t begin = text.find(open);
  const size_t end = begin == text.npos ? begin : text.find(close, begin + open.size());
  return end == text.npos ? std::string() : std::string(text.substr(begin + open.size(), end - begin - open.size()));
}

/// Returns the first function that clang's linker or NVRTC reports as undefined; an empty text if there is none.
std::string undefined_function(std::string_view message) {
  std::string name = between(message, "Symbols not found: [ ", " ]");
  if (name.empty()) name = between(message, "error: function \"", "\" was referenced but not defined");
  name.resize(std::min(name.find(','), name.size()));
  int status = 0;
  if (char* const readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status)) {
    name = readable;
    std::free(readable);
  }
  return without_scopes(name);
}

ScoreContext context_of(const AttentionShape& shape, int64_t batch, int64_t head) {
  return {static_cast<int>(batch),       static_cast<int>(head),         static_cast<int>(shape.q_heads),
          static_cast<int>(shape.q_len), static_cast<int>(shape.kv_len), nullptr};
}

/// Opens a cpu device, because some devices have no double precision. Returns null if the device under test serves, or
/// if the build has no cpu device.
std::unique_ptr<Device> open_for_double(const Device& under_test) {
  const bool itself = under_test.info().on_host && under_test.info().operations->user_function;
  return itself || !Device::is_built("cpu") ? nullptr : Device::open("cpu:threads=1");
}

/// A function in double precision, on the device of open_for_double() or else on the device under test.
class InDouble {
 public:
  InDouble(Device& under_test, PipelineCache& pipelines, const UserFunction& function)
      : own_(open_for_double(under_test)), on_(own_ ? *own_ : under_test) {
    if (own_) own_pipelines_.emplace(*own_, PipelineCache::default_folder());
    pipeline_ = &(own_ ? *own_pipelines_ : pipelines).get(function_oracle(on_.info(), function, true));
  }

  void run(int64_t elements, const auto& parameters) {
    CommandEncoder encoder;
    const ElementKernel kernel = on_.info().operations->user_function.value();
    const auto groups = kernel.elements == 0 ? 1 : static_cast<uint32_t>(divided_up(elements, kernel.elements));
    encoder.dispatch(*pipeline_->kernel, {groups}, kernel.threads, 0, parameters);
    on_.submit(encoder);
  }
  Device& device() { return on_; }

 private:
  const std::unique_ptr<Device> own_;
  Device& on_;
  std::optional<PipelineCache> own_pipelines_;
  const Pipeline* pipeline_;
};

}  // namespace

KernelSource function_oracle(const DeviceInfo& device, const UserFunction& function, bool in_double) {
  const std::string kind = function.kind == FunctionKind::mask      ? "mask"
                           : function.kind == FunctionKind::feature ? "feature"
                                                                    : "score";
  KernelSource source{.path = device.operations->kernel_file(fmt::format("common/attention/kernels/{}_oracle", kind)),
                      .entry = kind + "_oracle"};
  function.add_to(source.includes, fmt::format("common/attention/kernels/user_{}.h", kind), in_double);
  source.guarded = function.guarded;
  return source;
}

std::string function_unable(FunctionKind kind, const DeviceInfo& device) {
  const bool elsewhere = kind != FunctionKind::mask && Device::is_built("cpu");
  if (device.operations->user_function || elsewhere) return {};
  return no_kernel_for(fmt::format("evaluating a {} alone, as the oracle does", kind_name(kind)));
}

UserFunction read_function(FunctionKind kind, const std::string& path) {
  const auto refuse = [&](const std::string& what) -> UserFunction {
    throw BadInput(fmt::format("{} {} {}", kind_name(kind), path, what));
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (exists(status) && !is_regular_file(status)) return refuse("is no regular file");
  if (is_regular_file(status) && std::filesystem::file_size(path, error) > most_bytes) {
    return refuse(fmt::format("has more than {} bytes", most_bytes));
  }
  std::optional<std::string> text = read_file(path);
  if (!text) return refuse("cannot be read");
  if (text->starts_with(byte_order_mark)) text->erase(0, byte_order_mark.size());
  if (text->find_first_not_of(" \t\r\n") == text->npos) return refuse("is empty; it must define " + wanted(kind));
  if (const auto why = refused_text(*text)) return refuse(*why);
  return {.name = path, .text = *text, .kind = kind, .guarded = true};
}

UserFunction function_of_case(FunctionKind kind, const std::string& axis, const std::string& value,
                              const std::string& option, const std::string& path) {
  if (path.empty()) {
    throw BadInput(fmt::format("{}={} names the text of a file; give the file with {} FILE", axis, value, option));
  }
  UserFunction function = read_function(kind, path);
  if (const std::string has = function.text_name(); has != value) {
    throw BadInput(
        fmt::format("{}={}: the text of {} {} has changed and is now {}={}", axis, value, option, path, axis, has));
  }
  return function;
}

void require_compiles(Device& device, const UserFunction& function) {
  const std::string what = fmt::format("{} {}", kind_name(function.kind), function.name);
  const std::unique_ptr<Device> own = open_for_double(device);
  for (const bool in_double : {false, true}) {
    if (in_double && function.kind == FunctionKind::mask) break;
    Device& on = in_double && own ? *own : device;
    const KernelSource source = function_oracle(on.info(), function, in_double);
    // Metal has the kernels in float only, and none for masks; a device may have no kernel at all. Then the plans
    // report the missing kernel.
    const bool in_float = !in_double && std::filesystem::exists(std::filesystem::path(source_root()) / source.path);
    if (!on.info().operations->user_function && !in_float) continue;
    try {
      const Binary binary = on.compile(source);
      on.load(binary, source.entry);
    } catch (const CompileError& error) {
      if (const std::string missing = undefined_function(error.what()); !missing.empty()) {
        throw BadInput(fmt::format("{} calls {}, which it does not define", what, shortened(missing)));
      }
      throw BadInput(fmt::format("{} does not compile{}; it must define {}\n{}", what,
                                 in_double ? " with double in place of float, as the oracle compiles it" : "",
                                 wanted(function.kind), first_error(error, function.name)));
    }
  }
}

ScoreFunction double_precision(Device& device, PipelineCache& pipelines, const UserFunction& function,
                               const AttentionShape& shape) {
  struct Rows {
    Rows(Device& device, PipelineCache& pipelines, const UserFunction& of, int64_t keys)
        : function(device, pipelines, of), scores(function.device(), static_cast<size_t>(keys) * sizeof(double)) {}

    InDouble function;
    Buffer scores;
    std::mutex mutex;  // several threads ask for rows
  };
  const auto rows = std::make_shared<Rows>(device, pipelines, function, shape.kv_len);
  return [rows, shape](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    const std::lock_guard lock(rows->mutex);
    ScoreOracleParams params{};
    params.scores = static_cast<double*>(rows->scores.data());
    params.keys = static_cast<int>(scores.size());
    params.q = static_cast<int>(q);
    params.context = context_of(shape, batch, head);
    rows->scores.upload(scores.data(), scores.size_bytes());
    rows->function.run(params.keys, params);
    rows->scores.download(scores.data(), scores.size_bytes());
  };
}

std::function<void(std::span<double>)> double_precision(Device& device, PipelineCache& pipelines,
                                                        const UserFunction& function) {
  const auto in_double = std::make_shared<InDouble>(device, pipelines, function);
  return [in_double](std::span<double> values) {
    if (values.empty()) return;
    Buffer buffer(in_double->device(), values.size_bytes());
    buffer.upload(values.data(), values.size_bytes());
    in_double->run(std::ssize(values),
                   FeatureOracleParams{static_cast<double*>(buffer.data()), static_cast<int>(values.size())});
    buffer.download(values.data(), values.size_bytes());
  };
}

// Evaluates a mask function on several rows of a head at once.
struct MaskOracle::Rows {
  Rows(Device& device, const Pipeline& loaded, const AttentionShape& of, int64_t rows)
      : on(device),
        pipeline(loaded),
        shape(of),
        most(rows),
        visible(device, static_cast<size_t>(rows * of.kv_len)),
        bounds(device, static_cast<size_t>(rows) * sizeof(KeyRange)) {}

  /// Sets `seen`, [count][kv_len], and `ranges` for `count` queries: first, first + step, ...
  void evaluate(int64_t batch, int64_t head, int64_t first, int64_t step, int64_t count) {
    MaskOracleParams params{};
    params.visible = static_cast<unsigned char*>(visible.data());
    params.bounds = static_cast<KeyRange*>(bounds.data());
    params.rows = static_cast<int>(count);
    params.first = static_cast<int>(first);
    params.step = static_cast<int>(step);
    params.context = context_of(shape, batch, head);
    CommandEncoder encoder;
    encoder.dispatch(*pipeline.kernel, {static_cast<uint32_t>(count)}, on.info().operations->user_function->threads, 0,
                     params);
    on.submit(encoder);
    seen.resize(static_cast<size_t>(count * shape.kv_len));
    ranges.resize(static_cast<size_t>(count));
    visible.download(seen.data(), seen.size());
    bounds.download(ranges.data(), ranges.size() * sizeof(KeyRange));
  }

  Device& on;
  const Pipeline& pipeline;
  const AttentionShape shape;
  const int64_t most;  // rows that one launch evaluates
  Buffer visible, bounds;
  std::vector<unsigned char> seen;
  std::vector<KeyRange> ranges;
  std::mutex mutex;  // several threads ask for rows
};

MaskOracle::MaskOracle(Device& device, PipelineCache& pipelines, const UserFunction& function,
                       const AttentionShape& shape)
    : rows_(std::make_shared<Rows>(device, pipelines.get(function_oracle(device.info(), function, false)), shape,
                                   std::clamp<int64_t>(most_chunk_bytes / shape.kv_len, 1, shape.q_len))) {}

ScoreFunction MaskOracle::reference() const {
  return [rows = rows_](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    const std::lock_guard lock(rows->mutex);
    rows->evaluate(batch, head, q, 1, 1);
    for (size_t k = 0; k < scores.size(); ++k) {
      if (!rows->seen[k]) scores[k] = -std::numeric_limits<double>::infinity();
    }
  };
}

double MaskOracle::visible_pairs(const Range& range, const Seen& seen) const {
  const std::lock_guard lock(rows_->mutex);
  const AttentionShape& shape = rows_->shape;
  double pairs = 1;  // more than 2^63 for some shapes
  for (const int64_t size : {shape.batch, shape.q_heads, shape.q_len, shape.kv_len}) pairs *= static_cast<double>(size);
  const auto step = static_cast<int64_t>(
      std::min(static_cast<double>(shape.q_len), std::ceil(pairs / static_cast<double>(most_pairs))));
  const int64_t sampled = divided_up(shape.q_len, step);
  double count = 0;
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.q_heads; ++head) {
      KeyRange before{std::numeric_limits<int>::min(), std::numeric_limits<int>::min()};
      for (int64_t first = 0; first < sampled; first += rows_->most) {
        const int64_t rows = std::min(rows_->most, sampled - first);
        rows_->evaluate(batch, head, first * step, step, rows);
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t q = (first + row) * step;
          const KeyRange bound = rows_->ranges[static_cast<size_t>(row)];
          if (bound.begin < before.begin || bound.end < before.end) {
            throw std::runtime_error(fmt::format(
                "keys() of query {} is [{}, {}), but [{}, {}) for an earlier query; neither end may decrease", q,
                bound.begin, bound.end, before.begin, before.end));
          }
          before = bound;
          const auto [begin, end] = range(batch, q);
          const auto row_begin = rows_->seen.begin() + row * shape.kv_len;
          if (!seen && begin < end) count += static_cast<double>(std::count(row_begin + begin, row_begin + end, 1));
          for (int64_t k = begin; seen && k < end; ++k) count += row_begin[k] == 1 && seen(q, k) ? 1 : 0;
        }
      }
    }
  }
  return count * static_cast<double>(shape.q_len) / static_cast<double>(sampled);
}

}  // namespace attn
