// Feature maps on the host: what a kernel is compiled with, and the same in double for the oracle.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "common/attention/user_function.h"
#include "common/device/pipeline_cache.h"

namespace attn {

/// Of the command line: a file of the user's.
inline constexpr const char* feature_option = "--feature-function";

/// A function of one element. The identity where `text` is empty.
struct Feature {
  std::string name = "identity";  // as an axis has it: of a user's it tells the text
  std::string text = {};          // in the place of kernels/feature.h
  std::optional<UserFunction> user = {};

  std::map<std::string, std::string> includes() const;
  bool guarded() const { return user && user->guarded; }
};

/// "identity", "elu1" or "relu"; throws BadInput.
Feature named_feature(const std::string& name);
/// One with a text of its own, `float feature(float x)`.
Feature user_feature(const UserFunction& function);

/// Applies the function to each value, in place. Called from one thread at a time.
using FeatureFunction = std::function<void(std::span<double> values)>;
/// A named feature by its formula, a user's on the device; it then holds on to both.
FeatureFunction double_precision(const Feature& feature, Device& device, PipelineCache& pipelines);
FeatureFunction double_precision(const std::string& name);

}  // namespace attn
