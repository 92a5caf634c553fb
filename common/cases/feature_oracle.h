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
/// Computes a named feature map by its formula, and a user's feature map on `device`. The function of a user's feature
/// map keeps references to `device` and `pipelines`.
FeatureFunction double_precision(const Feature& feature, Device& device, PipelineCache& pipelines);
FeatureFunction double_precision(const std::string& name);

}  // namespace attn
