// The user's functions in an experiment: reading and checking their files, and evaluating them for the oracle.
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

/// Reads a user's file. Throws BadInput with a message of one line if the file cannot be used.
UserFunction read_function(FunctionKind kind, const std::string& path);

/// Reads the file `path` for a case whose axis has the value `value`, the name of a text (UserFunction::text_name()).
/// Throws BadInput as read_function() does, and if `path` is empty or the file's text has another name. `axis` and
/// `option` are for the message.
UserFunction function_of_case(FunctionKind kind, const std::string& axis, const std::string& value,
                              const std::string& option, const std::string& path);

/// Returns why there is no oracle for functions of this kind when `device` is under test; an empty text if there is
/// one.
std::string function_unable(FunctionKind kind, const DeviceInfo& device);

/// Throws BadInput if the function does not compile. The message has the compiler's first error, with the line
/// numbers of the user's file, or the name of a function that the text calls and does not define.
void require_compiles(Device& device, const UserFunction& function);

/// Returns the kernel that evaluates a function for the oracle, in double precision or in float, as the kernels of
/// attention do.
KernelSource function_oracle(const DeviceInfo& device, const UserFunction& function, bool in_double);

/// Returns a score function for the oracle, in double precision. The function runs on a cpu device if the build has
/// one, else on `device`. The score function keeps references to `device` and `pipelines`.
ScoreFunction double_precision(Device& device, PipelineCache& pipelines, const UserFunction& function,
                               const AttentionShape& shape);

/// Returns a feature map for the oracle, which changes numbers in place. As above, but only one thread at a time may
/// call the map.
std::function<void(std::span<double>)> double_precision(Device& device, PipelineCache& pipelines,
                                                        const UserFunction& function);

/// A mask function for the oracle, evaluated in float, as in kernels, so that both hide the same pairs. Keeps
/// references to `device` and `pipelines`.
class MaskOracle {
 public:
  MaskOracle(Device& device, PipelineCache& pipelines, const UserFunction& function, const AttentionShape& shape);

  /// Returns a score function that sets the scores of hidden pairs to -infinity.
  ScoreFunction reference() const;

  /// The range [begin, end) of keys that modifiers let a query see (ModifiedAttention::range()).
  using Range = std::function<std::pair<int64_t, int64_t>(int64_t batch, int64_t q)>;
  /// Whether the modifiers' other rules let a query see a key (ModifiedAttention::unmasked()).
  using Seen = std::function<bool(int64_t q, int64_t k)>;
  /// Returns the number of query-key pairs within `range` that `seen` and the mask function let a query see, over all
  /// batch entries and query heads. `seen` may be empty. If the shape has more than 2^28 pairs, only every n-th query
  /// is counted, and the number is scaled. Throws std::runtime_error if the range of the user's function keys() begins
  /// or ends at a lower key than for the counted query before.
  double visible_pairs(const Range& range, const Seen& seen = {}) const;

 private:
  struct Rows;
  std::shared_ptr<Rows> rows_;
};

}  // namespace attn
