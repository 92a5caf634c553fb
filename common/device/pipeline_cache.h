// Pipelines: binaries that are loaded, and the caches that they come from.
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

/// A binary that is loaded and ready to be dispatched.
struct Pipeline {
  Binary binary;
  std::unique_ptr<Kernel> kernel;
  std::string origin;  // "compiled", "disk" or "archive": where this process got it
  double ready_s = 0;  // what getting it took here: compiling or reading, and loading
  double load_s = 0;   // of that, loading
};

/// Pipelines of one device: in memory, then (optionally) an archive, then one file each on disk, then the compiler.
/// Safe to use from several threads and several processes: what one of them compiles, the others wait for. A key is
/// compiled once per cache in memory, and once per folder.
class PipelineCache {
 public:
  /// `folder` empty: no disk cache. A folder that cannot be written is reported once and then only read. `options` are
  /// for what is compiled.
  PipelineCache(Device& device, std::string folder, CompileOptions options = {});
  ~PipelineCache();

  /// The pipeline for a source; throws CompileError, BadInput for a source that is not there.
  const Pipeline& get(const KernelSource& source);

  /// Looked into for all that is not loaded yet. Not while another thread is in get().
  void attach(PipelineArchive archive) { archive_ = std::move(archive); }
  /// What this cache has loaded so far, as an archive.
  PipelineArchive archive() const;
  /// Gets all of them, on as many threads as `workers` says; what fails on any is thrown here.
  void prepare(const std::vector<KernelSource>& sources, unsigned workers);

  /// $ATTENTION_PROTO_CACHE, else $XDG_CACHE_HOME/attention-proto, else ~/.cache/attention-proto.
  static std::string default_folder();

 private:
  struct Slot;
  Binary find_or_compile(const KernelSource& source, const std::string& cache_key, std::string& origin);

  Device& device_;
  std::string folder_;
  const CompileOptions options_;
  std::atomic<bool> writable_{true};
  std::optional<PipelineArchive> archive_;
  mutable std::mutex mutex_;  // of the table; each slot has its own
  std::unordered_map<KernelSource, std::unique_ptr<Slot>, KernelSourceHash> slots_;
};

}  // namespace attn
