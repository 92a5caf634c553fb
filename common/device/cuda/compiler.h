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

  /// Whether NVRTC keeps what it made of headers (12.8 or later); see Device.
  bool has_precompiled_headers() const { return has_precompiled_headers_; }
  void precompile_headers(bool wanted) { precompile_headers_ = wanted && has_precompiled_headers_; }

  /// Whether NVRTC tells its phases apart (12.8 or later); see Device.
  bool has_phase_trace() const { return has_phase_trace_; }
  void trace_phases(bool wanted) { trace_phases_ = wanted && has_phase_trace_; }

  /// Throws CompileError, BadInput for a source that is not there, DeviceMissing for one with fragments where there is
  /// no nvJitLink.
  Binary compile(const KernelSource& source) const;

 private:
  struct Translated;
  Translated translate(const KernelSource& source, const std::vector<std::string>& more_options) const;
  /// Links what was translated to one cubin; `log` takes what the linker says.
  std::string link(const KernelSource& source, const std::vector<Translated>& parts, std::string& log) const;

  std::shared_ptr<const Nvrtc> nvrtc_;
  std::shared_ptr<const NvJitLink> linker_;  // null where it is not there
  std::string arch_, toolchain_;
  std::vector<std::string> options_;  // the same for every kernel
  bool has_precompiled_headers_ = false, precompile_headers_ = false;
  bool has_phase_trace_ = false, trace_phases_ = false;
};

/// Bytes of a cubin's code, and how often each instruction stands in it ("HGMMA": 16), without its modifiers: of the
/// kernel and of the functions that it calls. No instructions where no disassembler (nvdisasm) is installed.
CodeContents cuda_contents(const Binary& binary);

}  // namespace attn
