// Feature maps: what a kernel is compiled with.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/attention/user_function.h"

namespace attn {

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

}  // namespace attn
