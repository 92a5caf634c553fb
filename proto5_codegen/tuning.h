// Constants that a search found: what is searched, and where the winners are kept.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "proto5_codegen/generators.h"

namespace attn {

/// Constants and the values that a search tries for each.
using SearchSpace = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// Of a generator that has something to search ("search", "halide_tuned"); empty for others.
SearchSpace search_space(const CodegenCase& config, const DeviceInfo& device);

/// Why these constants make no kernel, for what a plan does not say; empty where they do.
std::string unfit(const CodegenCase& config, const DeviceInfo& device, const FunctionConstants& constants);

/// The name of a case in the file of winners: all that decides what is searched, but for the length, which is that of
/// the search.
std::string tuning_key(const CodegenCase& config);

/// The file of a device's winners, under the source root: proto5_codegen/tuned/ARCH.json.
std::string tuning_path(const DeviceInfo& device);

/// What a record says of the search behind a case: "tried", how many variants, and "search_s", the seconds; null where
/// there was none.
nlohmann::ordered_json search_facts(const CodegenCase& config, const DeviceInfo& device);

/// The same case with the constants that were found for it on devices of this arch; as it is where nobody searched.
CodegenCase with_searched(CodegenCase config, const DeviceInfo& device);

}  // namespace attn
