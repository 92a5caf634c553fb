#include "common/source/python.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "common/base/process.h"
#include "common/source/kernel_source.h"

namespace attn {

std::string python() {
  const char* named = std::getenv("ATTENTION_PROTO_PYTHON");
  if (named && *named) return named;
  const std::string own = source_root() + "/.venv/bin/python";
  return std::filesystem::exists(own) ? own : "python3";
}

int64_t python_package(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, int64_t> known;
  const std::lock_guard lock(mutex);
  const auto [place, added] = known.try_emplace(name, 0);
  if (!added) return place->second;
  const std::string program = fmt::format(
      "import importlib.metadata as m; v = [int(p) for p in m.version('{}').split('.')[:3]]; "
      "print(v[0] * 10000 + v[1] * 100 + v[2])",
      name);
  const ProcessResult result = run_process({python(), "-c", program});
  if (result.status == 0) place->second = std::strtoll(result.output.c_str(), nullptr, 10);
  return place->second;
}

}  // namespace attn
