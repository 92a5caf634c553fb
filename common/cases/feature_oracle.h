// Feature maps in double precision, for the oracle.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "common/cases/user_functions.h"
#include "common/device/pipeline_cache.h"
#include "common/linear/feature.h"

namespace attn {

/// Applies the function to each value, in place. Called from one thread at a time.
using FeatureFunction = std::function<void(std::span<double> values)>;
/// A named feature by its formula, a user's on the device; it then holds on to both.
FeatureFunction double_precision(const Feature& feature, Device& device, PipelineCache& pipelines);
FeatureFunction double_precision(const std::string& name);

}  // namespace attn
