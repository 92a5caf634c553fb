// Feature maps of linear attention, and the source text by which a kernel gets its feature map.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/attention/user_function.h"

namespace attn {

/// A function of one element. If `text` is empty, the function is the identity.
struct Feature {
  std::string name = "identity";  // "identity", "elu1", "relu", or UserFunction::text_name()
  std::string text = {};          // replaces kernels/feature.h
  std::optional<UserFunction> user = {};

  /// Returns the value of KernelSource::includes for a kernel with this feature map.
  std::map<std::string, std::string> includes() const;
  bool guarded() const { return user && user->guarded; }
};

/// Returns the feature map "identity", "elu1" or "relu". Throws BadInput for another name.
Feature named_feature(const std::string& name);
/// Returns a feature map with a user's text, `float feature(float x)`.
Feature user_feature(const UserFunction& function);

}  // namespace attn
