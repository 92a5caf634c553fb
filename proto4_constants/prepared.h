// Cache folders and archives on disk, for cases about the host.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/temporary_folder.h"
#include "common/device/device.h"

namespace attn {

/// A cache folder and archives of the first variants (sets of constants) of a kernel. The folder and each archive are
/// made when a caller first asks for them.
class Prepared {
 public:
  Prepared(Device& device, std::vector<KernelSource> sources) : device_(device), sources_(std::move(sources)) {}

  /// Returns the sources of the first `count` variants.
  std::vector<KernelSource> first(size_t count) const;
  /// Returns the path of a cache folder with at least the first `count` variants.
  std::string cache(size_t count);
  /// Returns the path of an archive of exactly the first `count` variants.
  std::string archive(size_t count);
  /// Returns a path at which a new archive may be written.
  std::string new_archive() const { return folder_.path() / "archive-new"; }

 private:
  Device& device_;
  const std::vector<KernelSource> sources_;
  TemporaryFolder folder_;
  size_t cached_ = 0;
};

}  // namespace attn
