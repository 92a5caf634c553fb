// A plan: the launches that a case needs on a device. A plan follows from the case, the DeviceInfo and the user's
// files; to make a plan, no code runs on the device. Dry runs, skips, --resume, records and the launches themselves all
// read the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/launch/work.h"
#include "common/source/kernel_source.h"

namespace attn {

/// Threadgroups along each dimension.
struct Grid {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }

  bool operator==(const Grid&) const = default;
};

/// One launch of a kernel.
struct Launch {
  KernelSource source;
  Grid grid = {};
  uint32_t threads = 1;          // of a threadgroup
  size_t threadgroup_bytes = 0;  // of a threadgroup, in addition to memory that the kernel declares itself
  std::string phase = {};        // the name of the launch within its plan
};

struct Plan {
  /// The launches, in the order in which they run. In a case about the host, these are the kernels of the case, and the
  /// experiment's loop does not launch them.
  std::vector<Launch> launches = {};
  Work work = {};           // of all launches together
  bool host = false;        // the case is about the host (HostProblem)
  std::string unable = {};  // the reason, with numbers, why the device cannot run the plan; empty if it can
};

}  // namespace attn
