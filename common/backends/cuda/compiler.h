// Kernel source to a cubin, by NVRTC. Needs no GPU and no driver.
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
  /// `arch` as in "sm_90a". Throws DeviceMissing where there is no NVRTC.
  explicit CudaCompiler(std::string arch);

  const std::string& arch() const { return arch_; }
  std::string toolchain() const { return toolchain_; }
  std::string identity() const;

  /// Whether NVRTC keeps what it made of headers, and tells its phases apart: 12.8 and later do both. Where not,
  /// compile() goes on without.
  bool has_precompiled_headers() const { return has_precompiled_headers_; }

  /// Machine code is taken as it is; its times are zero. Throws CompileError, BadInput for a source that is not there,
  /// DeviceMissing for one with fragments where there is no nvJitLink.
  Binary compile(const KernelSource& source, const CompileOptions& options = {}) const;

 private:
  std::shared_ptr<const Nvrtc> nvrtc_;
  std::shared_ptr<const NvJitLink> linker_;  // null where it is not there
  std::string arch_, toolchain_;
  std::vector<std::string> options_;      // the same for every kernel
  bool has_precompiled_headers_ = false;  // and the trace of phases
};

}  // namespace attn
