#include "common/base/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "common/base/platform.h"

namespace attn {
namespace {

namespace fs = std::filesystem;

/// Returns the number after the word `name` in a file of "name number" lines. If `name` is empty, returns the number
/// with which the file begins. Returns nothing if there is no such number: the limit of a control group may be the word
/// "max".
std::optional<double> number_in(const fs::path& file, const std::string& name = "") {
  std::ifstream stream(file);
  for (std::string word; !name.empty() && stream >> word && word != name;) {
  }
  double number = 0;
  return stream >> number ? std::optional(number) : std::nullopt;
}

/// The free bytes of one control group; infinity for a group without a limit.
double free_of_group(const fs::path& group, const char* limit_file, const char* used_file, const char* cached_name) {
  const auto limit = number_in(group / limit_file), used = number_in(group / used_file);
  if (!limit || !used) return std::numeric_limits<double>::infinity();
  return std::max(0.0, *limit - *used + number_in(group / "memory.stat", cached_name).value_or(0));
}

}  // namespace

double available_host_bytes(const fs::path& root) {
  double available = free_memory_bytes(root);
  rlimit limit{};
  if (const auto pages = number_in(root / "proc/self/statm");
      pages && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const double used = *pages * static_cast<double>(sysconf(_SC_PAGESIZE));
    available = std::min(available, std::max(0.0, static_cast<double>(limit.rlim_cur) - used));
  }
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:/PATH
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const fs::path mount = root / (version_2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    // The process's group and every group that contains it may have a limit. In a container, the container's own group
    // may be the folder `mount`.
    for (fs::path inside = fs::path(line.substr(second + 1)).relative_path();; inside = inside.parent_path()) {
      const fs::path group = mount / inside;
      available = std::min(available, version_2 ? free_of_group(group, "memory.max", "memory.current", "inactive_file")
                                                : free_of_group(group, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                                                "total_inactive_file"));
      if (inside.empty()) break;
    }
  }
  return available;
}

}  // namespace attn
