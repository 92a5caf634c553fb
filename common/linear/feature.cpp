#include "common/linear/feature.h"

#include <fmt/format.h>

#include <cmath>

#include "common/base/error.h"

namespace attn {

std::map<std::string, std::string> Feature::includes() const {
  if (text.empty()) return {};
  return {{"common/linear/kernels/feature.h", text}};
}

Feature named_feature(const std::string& name) {
  if (name == "identity") return {};
  if (name == "elu1" || name == "relu") {
    Feature feature;
    feature.name = name;
    feature.text = fmt::format("#include \"common/linear/kernels/features/{}.h\"\n", name);
    return feature;
  }
  throw BadInput(fmt::format("feature '{}' is not allowed; identity, elu1 and relu are", name));
}

Feature user_feature(const UserFunction& function) {
  return {.name = function.axis_value(),
          .text = "namespace user_feature {\n" + function.header() +
                  "\n}\n#define FEATURE_IS_IDENTITY 0\nstatic inline float feature(float x, const void*) { return "
                  "user_feature::feature(x); }\n",
          .user = function};
}

FeatureFunction double_precision(const Feature& feature, Device& device, PipelineCache& pipelines) {
  return feature.user ? double_precision(device, pipelines, *feature.user) : double_precision(feature.name);
}

FeatureFunction double_precision(const std::string& name) {
  return [name](std::span<double> values) {
    if (name == "elu1") {
      for (double& x : values) x = x > 0 ? x + 1 : std::exp(x);
    } else if (name == "relu") {
      for (double& x : values) x = x < 0 ? 0 : x;
    }
  };
}

}  // namespace attn
