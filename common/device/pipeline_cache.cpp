#include "common/device/pipeline_cache.h"

#include <cstdlib>
#include <filesystem>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/parallel.h"
#include "common/base/sha256.h"
#include "common/base/stopwatch.h"
#include "common/device/device.h"

namespace attn {

namespace fs = std::filesystem;

// One pipeline. The mutex makes a second thread wait while the first compiles.
struct PipelineCache::Slot {
  std::atomic<bool> ready{false};  // `cache_key` and `pipeline` are set and will not change
  std::mutex mutex;
  std::string cache_key;
  std::optional<Pipeline> pipeline;
};

PipelineCache::PipelineCache(Device& device, std::string folder, CompileOptions options)
    : device_(device), folder_(std::move(folder)), options_(options) {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    logger()->warn("kernel cache {} cannot be made ({}); kernels are compiled anew in each run", folder_,
                   error.message());
    folder_.clear();
  }
}

PipelineCache::~PipelineCache() = default;

std::string PipelineCache::default_folder() {
  if (const char* named = std::getenv("ATTENTION_PROTO_CACHE")) return named;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg) return std::string(xdg) + "/attention-proto";
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.cache/attention-proto" : std::string();
}

const Pipeline& PipelineCache::get(const KernelSource& source) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& entry = slots_[source];
    if (!entry) entry = std::make_unique<Slot>();
    slot = entry.get();
  }
  if (slot->ready.load(std::memory_order_acquire)) return *slot->pipeline;
  const std::lock_guard lock(slot->mutex);
  if (!slot->pipeline) {
    const Stopwatch since_start;
    Pipeline pipeline;
    // The lines of the text, not its tokens: texts with the same tokens may still differ, for example in what a macro
    // makes of its arguments' blanks; and the lines are at hand five times as soon.
    const auto lines = [](const KernelSource& part) { return expanded_text(part, true); };
    // An entry keeps the source_sha256 of its source. Change the number if the rule of source_sha256() changes.
    constexpr const char* rule = "2 ";
    slot->cache_key = sha256(rule + source_sha256(source, lines) + device_.compiler_identity());
    pipeline.binary = find_or_compile(source, slot->cache_key, pipeline.origin);
    pipeline.binary.key = source.key();  // the cache may hold the code of a source with other comments
    pipeline.binary.run_time = source.run_time_values();
    const Stopwatch loading;
    pipeline.kernel = device_.load(pipeline.binary, source.entry);
    pipeline.kernel->guarded = source.guarded;
    pipeline.load_s = loading.seconds();
    pipeline.ready_s = since_start.seconds();
    slot->pipeline = std::move(pipeline);
    slot->ready.store(true, std::memory_order_release);
  }
  return *slot->pipeline;
}

Binary PipelineCache::find_or_compile(const KernelSource& source, const std::string& cache_key, std::string& origin) {
  if (const Binary* archived = archive_ ? archive_->find(cache_key) : nullptr) {
    origin = "archive";
    return *archived;
  }
  if (folder_.empty()) {
    origin = "compiled";
    return device_.compile(source, options_);
  }
  const fs::path path = fs::path(folder_) / cache_key;
  const auto read = [&](bool report) -> std::optional<Binary> {
    const std::optional<std::string> file = read_file(path);
    std::optional<Binary> binary = file ? deserialize(cache_key, *file) : std::nullopt;
    if (binary) origin = "disk";
    if (file && !binary && report) {
      logger()->warn("kernel cache entry {} is damaged; compiling {} again", path.string(), source.key());
    }
    return binary;
  };
  if (auto binary = read(true)) return std::move(*binary);
  std::optional<PendingFile> pending;
  if (writable_) {
    pending.emplace(path);
    if (auto binary = read(false)) return std::move(*binary);  // another process or cache was quicker
  }
  Binary binary = device_.compile(source, options_);
  origin = "compiled";
  if (pending && !pending->write(serialize(cache_key, binary)) && writable_.exchange(false)) {
    logger()->warn("kernel cache {} cannot be written; new kernels are compiled anew in each run", folder_);
  }
  return binary;
}

void PipelineCache::prepare(const std::vector<KernelSource>& sources, unsigned workers) {
  parallel_for(
      static_cast<int64_t>(sources.size()), 1, [&](int64_t i, int64_t) { get(sources[static_cast<size_t>(i)]); },
      workers);
}

PipelineArchive PipelineCache::archive() const {
  const std::lock_guard lock(mutex_);
  PipelineArchive archive;
  for (const auto& [key, slot] : slots_) {
    if (slot->ready.load(std::memory_order_acquire)) archive.add(slot->cache_key, slot->pipeline->binary);
  }
  return archive;
}

}  // namespace attn
