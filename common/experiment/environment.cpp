#include "common/experiment/environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/file.h"
#include "common/base/platform.h"
#include "common/base/process.h"
#include "common/base/sha256.h"

namespace attn {
namespace {

/// Empty if the command fails.
std::optional<std::string> output_of(const std::vector<std::string>& arguments) {
  const ProcessResult result = run_process(arguments);
  return result.status == 0 ? std::optional(result.output) : std::nullopt;
}

/// A hash of the names and contents of all files of a folder.
std::string hash_of_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(folder, error), end; at != end; at.increment(error)) {
    if (at->is_regular_file(error)) paths.push_back(at->path());
  }
  std::ranges::sort(paths);
  std::string text;
  for (const std::filesystem::path& path : paths) {
    text += path.lexically_relative(folder).string() + " " + sha256(read_file(path.string()).value_or("")) + "\n";
  }
  return sha256(text).substr(0, 16);
}

}  // namespace

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

int ranks_started_here() {
  const auto number = [](const char* name) {
    const char* const text = std::getenv(name);
    return text ? std::atoi(text) : -1;
  };
  // The inner launcher comes first, as in scripts/run_all: torchrun, for example, may run within srun.
  for (const auto& [rank, count] : {std::pair{"RANK", "WORLD_SIZE"},
                                    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                    {"PMI_RANK", "PMI_SIZE"},
                                    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}) {
    if (number(rank) >= 0 && number(count) > 1) return number(rank) == 0 ? number(count) : 1;
  }
  return 1;
}

std::string host_compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

Json git_state(const std::string& folder) {
  // The folder must be the top of a work tree, because an unpacked archive may lie inside the work tree of another
  // project. At the top git prints an empty prefix, and then the commit.
  const auto commit = output_of({"git", "-C", folder, "rev-parse", "--show-prefix", "HEAD"});
  const auto status = output_of({"git", "-C", folder, "status", "--porcelain", "--untracked-files=no"});
  if (!commit || !commit->starts_with('\n') || !status) return nullptr;
  return {{"commit", commit->substr(1, commit->find('\n', 1) - 1)}, {"dirty", !status->empty()}};
}

Json session(const std::string& folder, const std::vector<std::string>& folders) {
  const Json git = git_state(folder);
  Json diff;
  if (git.is_object() && git["dirty"] == true) {
    diff = sha256(output_of({"git", "-C", folder, "diff", "HEAD"}).value_or("")).substr(0, 16);
  }
  Json files = Json::object();
  for (const std::string& each : folders) files[each] = hash_of_files(std::filesystem::path(folder) / each);
  const std::string machine =
      fmt::format("attention-proto {} {}", machine_and_boot(), std::thread::hardware_concurrency());
  Json found = {{"commit", git.is_object() ? git["commit"] : nullptr},
                {"diff", diff},
                {"machine", sha256(machine).substr(0, 16)},
                {"files", files}};
  if (is_emulated()) found["emulated"] = true;
  return found;
}

}  // namespace attn
