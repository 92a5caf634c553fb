#include "proto4_constants/prepared.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "common/device/pipeline_cache.h"

namespace attn {

std::string Prepared::cache(size_t count) {
  const std::string path = folder_.path() / "cache";
  if (count > cached_) {
    PipelineCache(device_, path).prepare(first(count), std::max(1u, std::thread::hardware_concurrency()));
    cached_ = count;
  }
  return path;
}

std::string Prepared::archive(size_t count) {
  const std::string path = folder_.path() / fmt::format("archive-{}", count);
  if (!std::filesystem::exists(path)) {
    PipelineCache from_disk(device_, cache(count));
    from_disk.prepare(first(count), 1);
    from_disk.archive().save(path);
  }
  return path;
}

std::vector<KernelSource> Prepared::first(size_t count) const {
  return {sources_.begin(), sources_.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace attn
