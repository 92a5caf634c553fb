// Kernel source to a cubin, by NVRTC. Needs no GPU and no driver.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/pipeline.h"

namespace attn {

struct Nvrtc;

class CudaCompiler {
 public:
  /// `arch` as in "sm_90a". Throws DeviceMissing where there is no NVRTC.
  explicit CudaCompiler(std::string arch);

  const std::string& arch() const { return arch_; }
  std::string toolchain() const { return toolchain_; }
  std::string identity() const;

  /// Whether NVRTC keeps what it made of headers (12.8 or later); see Device.
  bool has_precompiled_headers() const { return has_precompiled_headers_; }
  void precompile_headers(bool wanted) { precompile_headers_ = wanted && has_precompiled_headers_; }

  /// Throws CompileError, BadInput for a source that is not there.
  Binary compile(const KernelSource& source) const;

 private:
  std::shared_ptr<const Nvrtc> nvrtc_;
  std::string arch_, toolchain_;
  std::vector<std::string> options_;  // the same for every kernel
  bool has_precompiled_headers_ = false, precompile_headers_ = false;
};

/// How often each instruction stands in a kernel's machine code ("HGMMA": 16), without its modifiers. Empty where no
/// disassembler (nvdisasm) is installed.
std::map<std::string, int> count_instructions(const Binary& binary);

}  // namespace attn
