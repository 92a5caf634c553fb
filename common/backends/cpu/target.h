// The target for which kernels of the cpu device are compiled: this host, or a named family of processors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/device/device.h"

namespace attn {

struct CpuTarget {
  std::string triple;
  std::string arch;                   // "znver3", as LLVM names it
  std::vector<std::string> features;  // sorted: "avx2", "fma", ... as LLVM names them
  std::vector<std::string> switches;  // sorted: "+avx2", "-avx512f", ...: differences from LLVM's features of the arch

  bool has(std::string_view feature) const;
  /// The arguments of clang's front end that name triple, arch and calling convention.
  std::vector<std::string> arguments() const;

  /// Returns the target of this host. On a host with AMX, asks the system for permission to use the tile registers in
  /// this process.
  static CpuTarget host();
  /// Returns the target of a family of processors that LLVM knows, for example x86-64-v2, znver4 or neoverse-n1. Throws
  /// BadInput for a name that LLVM does not know.
  static CpuTarget named(const std::string& family);
  /// Returns this target without the features that `host` lacks, so that `host` can run code that is compiled for the
  /// returned target. Throws BadInput if the two have different architectures.
  CpuTarget within(const CpuTarget& host) const;
};

/// The first call in a process starts the parts of LLVM that compile for this host. Later calls do nothing.
void initialize_llvm();

/// Returns what the target says of a device: backend, arch, toolchain, features, vector width and number of vector
/// registers. A target does not say how many units and which caches the device has. So the info has one unit, 256 KiB
/// of cache, and a first-level cache of 8 ways. Most cores of servers have at least as much cache. Intel's cores up to
/// Cascade Lake have first-level caches of 8 ways.
DeviceInfo cpu_info(const CpuTarget& target);

}  // namespace attn
