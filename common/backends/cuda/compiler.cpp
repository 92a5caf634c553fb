#include "common/backends/cuda/compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/backends/cuda/cubin.h"
#include "common/backends/cuda/driver.h"
#include "common/backends/cuda/link.h"
#include "common/backends/cuda/report.h"
#include "common/backends/cuda/translate.h"
#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/base/stopwatch.h"

namespace attn {

CudaCompiler::CudaCompiler(std::string arch) : nvrtc_(std::make_shared<const Nvrtc>()), arch_(std::move(arch)) {
  int major = 0, minor = 0;
  nvrtc_->nvrtcVersion(&major, &minor);
  toolchain_ = fmt::format("NVRTC {}.{}", major, minor);
  options_ = {"--gpu-architecture=" + arch_,
              "--std=c++20",
              "--generate-line-info",
              "--ftz=true",                           // denormals are zero, as on every device of this project
              "--device-as-default-execution-space",  // headers that cpu and cuda kernels share do not write __device__
              "--no-source-include",                  // NVRTC may read only the files that source_sha256() hashes
              "--ptxas-options=-v"};
  is_12_8_or_later_ = major > 12 || (major == 12 && minor >= 8);
  // Turns off NVRTC's own cache, because code from the cache comes without the assembler's report.
  if (major > 12 || (major == 12 && minor >= 9)) options_.emplace_back("--no-cache");
  try {
    linker_ = std::make_shared<const NvJitLink>();
  } catch (const DeviceMissing&) {
    // Only a source with fragments needs the linker. compile() throws for such a source.
  }
}

std::string CudaCompiler::identity() const {
  std::string text = toolchain_;
  if (unsigned major = 0, minor = 0; linker_ && linker_->version(&major, &minor) == NvJitLink::success) {
    text += fmt::format(" nvJitLink {}.{}", major, minor);
  }
  for (const std::string& option : options_) text += " " + option;
  return text;
}

Binary CudaCompiler::compile(const KernelSource& source, const CompileOptions& options) const {
  Binary binary;
  binary.key = source.key();
  binary.source_sha256 = source_sha256(source);
  binary.run_time = source.run_time_values();
  if (is_machine_code(source.path)) {
    binary.code = read_source(source, source.path);
    if (!read_resources(binary.code, source.entry, binary)) {
      throw CompileError(binary.key, fmt::format("{} is no cubin with a kernel {}", source.path, source.entry));
    }
    binary.code_sha256 = sha256(machine_code(binary.code));
    return binary;
  }
  const Stopwatch stopwatch;
  const auto translated = [&](const KernelSource& part, NvrtcOutput output) {
    return translate(*nvrtc_, part, options_, output,
                     {.precompile_headers = options.precompile_headers && is_12_8_or_later_,
                      .trace_phases = options.trace_phases && is_12_8_or_later_});
  };
  std::string log;
  if (source.fragments.empty()) {
    Translated whole = translated(source, NvrtcOutput::cubin);
    binary.code = std::move(whole.code);
    log = std::move(whole.log);
    binary.times = whole.times.value_or(CompileTimes{.code_generation_s = assembler_seconds(log)});
  } else {
    if (!linker_) throw DeviceMissing("no nvJitLink on this machine (libnvJitLink.so, a part of the CUDA toolkit)");
    const bool optimized = source.linking == Linking::before_optimizer;
    const NvrtcOutput output = optimized ? NvrtcOutput::lto_ir : NvrtcOutput::relocatable_cubin;
    std::vector<Translated> parts = {translated(source, output)};
    for (const KernelSource& fragment : source.fragments) parts.push_back(translated(fragment, output));
    std::string said;
    binary.code = link_cubin(*linker_, source, arch_, parts, said);
    log = parts.front().log + said;
    binary.times.code_generation_s = assembler_seconds(log);
  }
  if (!reports_entry(log, source.entry)) {
    throw CompileError(binary.key,
                       fmt::format("{} defines no extern \"C\" __global__ function {}", source.path, source.entry));
  }
  if (const std::string missing = source.guarded ? undefined_function(binary.code) : ""; !missing.empty()) {
    throw CompileError(binary.key, fmt::format("error: function \"{}\" was referenced but not defined", missing));
  }
  warn_about(log, binary.key);
  binary.code_sha256 = sha256(machine_code(binary.code));
  read_report(log, source.entry, binary);
  // The rest of the total time counts as the front end's time. Without a trace, and for linked code, only the
  // assembler's time is known, and counts as code generation.
  const double total_s = stopwatch.seconds();
  binary.times.front_end_s = std::max(0.0, total_s - binary.times.optimizer_s - binary.times.code_generation_s);
  return binary;
}

}  // namespace attn
