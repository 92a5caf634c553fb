// Functions of the user's as an experiment takes them: files, what is refused before anything runs, and the oracle's
// evaluation of them on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/attention/hook.h"
#include "common/attention/shape.h"
#include "common/attention/user_function.h"
#include "common/device/device.h"
#include "common/device/pipeline_cache.h"

namespace attn {

/// A user's file. Throws BadInput in one line where it is no regular file or cannot be read, is empty, too large, or
/// refused_text() says why it is no function's.
UserFunction read_function(FunctionKind kind, const std::string& path);

/// read_function(), of the file that a case names by `value`. Throws BadInput where `path` is empty, or the file's text
/// another one. `axis` and `option` are for the message.
UserFunction function_of_case(FunctionKind kind, const std::string& axis, const std::string& value,
                              const std::string& option, const std::string& path);

/// Why there is no oracle for functions of that kind where `device` is under test; empty where there is one.
std::string function_unable(FunctionKind kind, const DeviceInfo& device);

/// Throws BadInput with the compiler's first error, in which line numbers are those of the function's own text, or with
/// the name of a function that the text calls and nobody defines.
void require_compiles(Device& device, const UserFunction& function);

/// The kernel that applies a function to whole rows for the oracle: a score function in double, or as kernels do.
KernelSource function_oracle(const DeviceInfo& device, const UserFunction& function, bool in_double);

/// A score function for the oracle: a device applies it in double precision, the cpu where there is one. It holds on to
/// `device` and `pipelines`.
ScoreFunction double_precision(Device& device, PipelineCache& pipelines, const UserFunction& function,
                               const AttentionShape& shape);

/// A feature map for the oracle: applies it to numbers in place, in double precision, as above. From one thread at a
/// time. It holds on to `device` and `pipelines`.
std::function<void(std::span<double>)> double_precision(Device& device, PipelineCache& pipelines,
                                                        const UserFunction& function);

/// A mask function for the oracle. The device evaluates it in float, as kernels do: a pair is seen or it is not. It
/// holds on to `device` and `pipelines`.
class MaskOracle {
 public:
  MaskOracle(Device& device, PipelineCache& pipelines, const UserFunction& function, const AttentionShape& shape);

  /// Sets the scores of pairs to -infinity that are not seen.
  ScoreFunction reference() const;

  /// First key, and last key plus one, that other rules leave to a query.
  using Range = std::function<std::pair<int64_t, int64_t>(int64_t batch, int64_t q)>;
  /// Whether other rules, that are no range, let a query see a key.
  using Seen = std::function<bool(int64_t q, int64_t k)>;
  /// Query-key pairs within `range` that `seen`, which may be empty, and the function leave, over the whole batch;
  /// where there are more than 2^28 pairs, by the rows of every n-th query. Throws std::runtime_error where an end of
  /// keys() decreases from a row to the next that was looked at.
  double visible_pairs(const Range& range, const Seen& seen = {}) const;

 private:
  struct Rows;
  std::shared_ptr<Rows> rows_;
};

}  // namespace attn
