// Feature maps in double precision, for the oracle.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "common/cases/user_functions.h"
#include "common/device/pipeline_cache.h"
#include "common/linear/feature.h"

namespace attn {

/// Applies a feature map to each value, in place. Only one thread at a time may call a FeatureFunction.
using FeatureFunction = std::function<void(std::span<double> values)>;
/// Returns the function of a feature map. For a named map, the function is a formula. A user's map runs on a
/// device; user_functions.h says on which device. The function of a user's map keeps references to `device` and
/// `pipelines`.
FeatureFunction double_precision(const Feature& feature, Device& device, PipelineCache& pipelines);
FeatureFunction double_precision(const std::string& name);

}  // namespace attn
