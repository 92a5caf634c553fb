#include "common/source/archive.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/log.h"

namespace attn {
namespace {

constexpr std::string_view archive_magic = "attention-proto archive 1\n";

}  // namespace

PipelineArchive PipelineArchive::load(const std::string& path) {
  const std::optional<std::string> file = read_file(path);
  if (!file) throw BadInput(fmt::format("pipeline archive {} cannot be read", path));
  std::string_view rest = *file;
  if (!rest.starts_with(archive_magic)) throw BadInput(fmt::format("{} is not a pipeline archive", path));
  rest.remove_prefix(archive_magic.size());
  PipelineArchive archive;
  // An entry is the line "CACHE_KEY BYTES\n", and then BYTES bytes.
  while (!rest.empty()) {
    const size_t newline = rest.find('\n');
    const size_t space = rest.substr(0, newline).rfind(' ');
    size_t bytes = 0;
    if (newline == std::string_view::npos || space == std::string_view::npos ||
        std::from_chars(rest.data() + space + 1, rest.data() + newline, bytes).ptr != rest.data() + newline ||
        bytes > rest.size() - newline - 1) {
      ++archive.damaged_;  // where the next entry begins is unknown
      break;
    }
    const std::string key(rest.substr(0, space));
    if (auto binary = deserialize(key, rest.substr(newline + 1, bytes))) {
      archive.entries_[key] = std::move(*binary);
    } else {
      ++archive.damaged_;
    }
    rest.remove_prefix(newline + 1 + bytes);
  }
  if (archive.damaged_ > 0) {
    logger()->warn("pipeline archive {}: damaged entries: {}, good entries: {}; missing kernels are compiled again",
                   path, archive.damaged_, archive.size());
  }
  return archive;
}

const Binary* PipelineArchive::find(const std::string& cache_key) const {
  const auto found = entries_.find(cache_key);
  return found == entries_.end() ? nullptr : &found->second;
}

void PipelineArchive::save(const std::string& path) const {
  std::string text(archive_magic);
  for (const auto& [key, binary] : entries_) {
    const std::string entry = serialize(key, binary);
    text += fmt::format("{} {}\n", key, entry.size()) + entry;
  }
  if (!PendingFile(path).write(text)) throw BadInput(fmt::format("pipeline archive {} cannot be written", path));
}

}  // namespace attn
