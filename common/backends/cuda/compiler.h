// Compiles kernel source to a cubin, by NVRTC. A compilation needs no GPU and no driver.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/source/binary.h"

namespace attn {

struct NvJitLink;
struct Nvrtc;

class CudaCompiler {
 public:
  /// `arch`: for example "sm_90a". Throws DeviceMissing if there is no NVRTC.
  explicit CudaCompiler(std::string arch);

  const std::string& arch() const { return arch_; }
  std::string toolchain() const { return toolchain_; }
  std::string identity() const;

  /// Whether NVRTC is of version 12.8 or later, which can precompile headers and report the times of its phases. An
  /// earlier NVRTC can do neither, so with an earlier NVRTC compile() ignores the argument `options`.
  bool is_12_8_or_later() const { return is_12_8_or_later_; }

  /// If the source is machine code, returns this code, with times of zero. Throws CompileError; BadInput if the source
  /// does not exist; DeviceMissing if the source has fragments and there is no nvJitLink.
  Binary compile(const KernelSource& source, const CompileOptions& options = {}) const;

 private:
  std::shared_ptr<const Nvrtc> nvrtc_;
  std::shared_ptr<const NvJitLink> linker_;  // null if this machine has no nvJitLink
  std::string arch_, toolchain_;
  std::vector<std::string> options_;  // NVRTC's options for every kernel
  bool is_12_8_or_later_ = false;
};

}  // namespace attn
