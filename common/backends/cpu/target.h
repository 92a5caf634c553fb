// What kernels of the cpu device are compiled for: the host at hand, or another.
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
  std::vector<std::string> switches;  // sorted: "+avx2", "-avx512f", ... where it is not as LLVM knows its arch

  bool has(std::string_view feature) const;

  /// The host at hand. Asks the system for the tile registers of AMX, which are then this process's.
  static CpuTarget host();
  /// Hosts of a family, as LLVM knows it: x86-64-v2, cascadelake, znver4, neoverse-n1. Throws BadInput for a name that
  /// LLVM does not know.
  static CpuTarget named(const std::string& family);
  /// The same without the features that `host` lacks, so that `host` runs what is compiled for it. Throws BadInput
  /// where the two are of different architectures.
  CpuTarget within(const CpuTarget& host) const;
};

/// Starts the parts of LLVM that compile for this host, once a process.
void initialize_llvm();

/// What a device tells that has this target: backend, arch, toolchain, features and vectors. One unit with the cache
/// that every core of the last decade has, where the target says nothing.
DeviceInfo cpu_info(const CpuTarget& target);

}  // namespace attn
