// Loaded kernels, and a cache of compiled binaries.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/device/device.h"
#include "common/source/archive.h"
#include "common/source/binary.h"
#include "common/source/kernel_source.h"

namespace attn {

/// A loaded binary that can be dispatched.
struct Pipeline {
  Binary binary;
  std::unique_ptr<Kernel> kernel;
  std::string origin;  // "compiled", "disk" or "archive"
  double ready_s = 0;  // seconds to compile or read the binary, and to load it
  double load_s = 0;   // the part of ready_s for loading
};

/// Pipelines of one device. The cache looks for a binary in memory, in an attached archive, and in the folder on disk,
/// before it compiles. The folder has a file for each cache key, the hash of a source and its compiler. Several threads
/// and several processes may use a folder at once: if several want a source, one compiles and the others wait for the
/// result.
class PipelineCache {
 public:
  /// If `folder` is empty or cannot be made, the cache uses no disk. If the folder cannot be written, the cache logs
  /// one warning and then only reads the folder. The compiler gets `options`.
  PipelineCache(Device& device, std::string folder, CompileOptions options = {});
  ~PipelineCache();

  /// Returns the pipeline for a source. Throws CompileError, and BadInput for a missing source.
  const Pipeline& get(const KernelSource& source);

  /// No thread may be in get() during this call.
  void attach(PipelineArchive archive) { archive_ = std::move(archive); }
  /// Returns the binaries that this cache has loaded so far, as an archive. Waits for no compilation.
  PipelineArchive archive() const;
  /// Calls get() for all sources, on at most `workers` threads. Throws the error of a thread that fails.
  void prepare(const std::vector<KernelSource>& sources, unsigned workers);

  /// Returns $ATTENTION_PROTO_CACHE, else $XDG_CACHE_HOME/attention-proto, else $HOME/.cache/attention-proto. Returns
  /// an empty text if $ATTENTION_PROTO_CACHE is set and empty, or if none of the three variables names a folder.
  static std::string default_folder();

 private:
  struct Slot;
  Binary find_or_compile(const KernelSource& source, const std::string& cache_key, std::string& origin);

  Device& device_;
  std::string folder_;
  const CompileOptions options_;
  std::atomic<bool> writable_{true};
  std::optional<PipelineArchive> archive_;
  mutable std::mutex mutex_;  // for slots_; each Slot has its own mutex
  std::unordered_map<KernelSource, std::unique_ptr<Slot>, KernelSourceHash> slots_;
};

}  // namespace attn
