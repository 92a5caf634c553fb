#include "common/linear/feature.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace attn {

std::map<std::string, std::string> Feature::includes() const {
  if (text.empty()) return {};
  std::map<std::string, std::string> all = {{"common/linear/kernels/feature.h", text}};
  if (user) user->add_to(all, "common/attention/kernels/user_feature.h");
  return all;
}

Feature named_feature(const std::string& name) {
  if (name == "identity") return {};
  if (name == "elu1" || name == "relu") {
    Feature feature;
    feature.name = name;
    feature.text = fmt::format("#include \"common/linear/kernels/features/{}.h\"\n", name);
    return feature;
  }
  throw BadInput(fmt::format("feature '{}' is not allowed; allowed are identity, elu1 and relu", name));
}

Feature user_feature(const UserFunction& function) {
  return {.name = function.text_name(),
          .text =
              "#include \"common/kernel/spaces.h\"\nnamespace user_feature {\n"
              "#include \"common/attention/kernels/user_feature.h\"\n}\n#define FEATURE_IS_IDENTITY 0\n"
              "static inline float feature(float x, const GLOBAL void*) { return user_feature::feature(x); }\n",
          .user = function};
}

}  // namespace attn
