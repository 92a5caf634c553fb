#include "common/experiment/setting.h"

namespace attn {

std::string file_of(const Files& files, const std::string& option) {
  const auto given = files.find(option);
  return given == files.end() ? std::string() : given->second;
}

}  // namespace attn
