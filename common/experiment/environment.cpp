#include "common/experiment/environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>

#include "common/base/shell.h"

namespace attn {
namespace {

/// The output of a command; empty where the command fails.
std::optional<std::string> output_of(const std::vector<std::string>& arguments) {
  std::FILE* pipe = popen((shell_command(arguments) + " 2>/dev/null").c_str(), "r");
  if (!pipe) return std::nullopt;
  std::string text;
  char chunk[256];
  for (size_t got; (got = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) text.append(chunk, got);
  if (pclose(pipe) != 0) return std::nullopt;
  return text;
}

}  // namespace

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

std::string host_compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

nlohmann::ordered_json git_state(const std::string& folder) {
  // The folder must be the top of a work tree: an unpacked archive may lie inside a work tree of something else.
  const auto prefix = output_of({"git", "-C", folder, "rev-parse", "--show-prefix"});
  const auto commit = output_of({"git", "-C", folder, "rev-parse", "HEAD"});
  const auto status = output_of({"git", "-C", folder, "status", "--porcelain", "--untracked-files=no"});
  if (prefix != "\n" || !commit || !status) return nullptr;
  return {{"commit", commit->substr(0, commit->find('\n'))}, {"dirty", !status->empty()}};
}

}  // namespace attn
