#include "common/experiment/setting.h"

#include <algorithm>

namespace attn {

std::string file_of(const Files& files, const std::string& option) {
  const auto given = files.find(option);
  return given == files.end() ? std::string() : given->second;
}

bool has_files(const Files& files) {
  return std::ranges::any_of(files, [](const auto& file) { return !file.second.empty(); });
}

}  // namespace attn
