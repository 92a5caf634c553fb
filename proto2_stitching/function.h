// The score function under measurement: a built-in one, or a file of the user's. Its text goes into kernels of every
// form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/reference.h"
#include "common/device/device.h"
#include "common/device/pipeline_cache.h"

namespace attn {

/// Text and name of a score function; docs/score_functions.md says what the text may use.
struct UserFunction {
  std::string name;  // what messages call it: a path
  std::string text;
  int64_t work = -1;  // WORK in the text; negative: there is none

  /// The text as kernels include it, in float or in double, with line numbers of its own. Tells it from all others.
  std::string header(bool in_double = false) const;
};

/// Value of the axis `function` that stands for the file of --score-function.
inline constexpr const char* file_function = "file";

/// The functions of proto2_stitching/functions, by name.
std::vector<std::string> built_in_functions();
/// `work` is the cost of `chain`. Throws BadInput for another name.
UserFunction built_in_function(const std::string& name, int64_t work);
/// Throws BadInput where the file cannot be read.
UserFunction read_function(const std::string& path);

/// Throws BadInput with the compiler's message, in which line numbers are those of the function's own text.
void require_compiles(Device& device, const UserFunction& function);

/// The function for the oracle: the device applies it in double precision. It holds on to `device` and `pipelines`.
ScoreFunction double_precision(Device& device, PipelineCache& pipelines, const UserFunction& function,
                               const AttentionShape& shape);

}  // namespace attn
