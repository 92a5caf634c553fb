// Feature maps on the host: what a kernel is compiled with, and the same in double for the oracle.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "common/device/device.h"
#include "common/device/pipeline_cache.h"

namespace attn {

/// A function of one element. The identity where `text` is empty.
struct Feature {
  std::string name = "identity";
  std::string text = {};    // in the place of kernels/feature.h
  bool guarded = false;     // the text is a user's

  std::map<std::string, std::string> includes() const;
};

/// "identity", "elu1" or "relu"; throws BadInput.
Feature named_feature(const std::string& name);

/// Applies the function to each value. Called from one thread.
using FeatureFunction = std::function<void(std::span<double> values)>;
/// Of a named feature.
FeatureFunction double_precision(const std::string& name);

}  // namespace attn
