// The spaces in which searches look for constants, and the winners in the files of tuning (common/attention/tuning.h).
// A winner has the best constants that a search found for a case, or no constants if the usual constants are faster.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "proto5_codegen/generators.h"

namespace attn {

/// The names of constants, and the values that a search tries for each constant.
using SearchSpace = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// Returns the search space of the case if its generator is "search" or "halide_tuned", else an empty space.
SearchSpace search_space(const CodegenCase& config, const DeviceInfo& device);

/// Returns the reason why a search does not try these constants, or an empty text. The case's plan may have another
/// reason.
std::string unfit(const CodegenCase& config, const DeviceInfo& device, const FunctionConstants& constants);

/// Returns the name of a case in a file of tuning. A winner serves all lengths and numbers of heads, so they are not
/// in the name.
std::string tuning_key(const CodegenCase& config);

/// Returns facts for the record about the search for a case's constants: "tried", the number of candidates; "search_s",
/// the seconds of the search; "searched_q_len" and "searched_heads", the shape at which the search ran. Returns null if
/// nobody searched.
nlohmann::ordered_json search_facts(const CodegenCase& config, const DeviceInfo& device);

/// Returns the case with the constants that a search found for it on devices of this arch, or the unchanged case if
/// nobody searched. If a constant has a value that search_space() does not have, the log has one line, and the case
/// stays unchanged.
CodegenCase with_searched(CodegenCase config, const DeviceInfo& device);

}  // namespace attn
