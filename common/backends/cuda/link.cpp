#include "common/backends/cuda/link.h"

#include <cstdint>
#include <memory>

#include "common/backends/cuda/driver.h"
#include "common/base/error.h"

namespace attn {

std::string link_cubin(const NvJitLink& linker, const KernelSource& source, const std::string& arch,
                       const std::vector<Translated>& parts, std::string& log) {
  const bool optimized = source.linking == Linking::before_optimizer;
  const std::string for_arch = "-arch=" + arch;
  // Turns off nvJitLink's cache. Code from the cache comes without the assembler's report, and the measured time would
  // not include the time of linking.
  std::vector<const char*> options = {for_arch.c_str(), "-Xptxas=-v", "-verbose", "-no-cache"};
  if (optimized) options.insert(options.end(), {"-lto", "-ftz=1", "-lineinfo"});
  const std::string assembler = "-Xptxas=" + source.assembler;
  if (!source.assembler.empty()) options.push_back(assembler.c_str());
  NvJitLink::Handle handle = nullptr;
  if (linker.create(&handle, static_cast<uint32_t>(options.size()), options.data()) != NvJitLink::success) {
    throw CompileError(source.key(), "nvJitLink does not start");
  }
  const auto close = [&linker](void* open) { linker.destroy(&open); };
  const std::unique_ptr<void, decltype(close)> closing(handle, close);
  const auto text = [&](const auto& get_size, const auto& get) {
    size_t bytes = 0;
    std::string result;
    if (get_size(handle, &bytes) == NvJitLink::success) result.resize(bytes);
    if (!result.empty() && get(handle, result.data()) != NvJitLink::success) result.clear();
    return result;
  };
  bool linked = true;
  for (const Translated& part : parts) {
    linked = linked && linker.add(handle, optimized ? NvJitLink::lto_ir : NvJitLink::cubin, part.code.data(),
                                  part.code.size(), part.path.c_str()) == NvJitLink::success;
  }
  linked = linked && linker.complete(handle) == NvJitLink::success;
  log = text(linker.info_bytes, linker.get_info);
  std::string cubin = linked ? text(linker.cubin_bytes, linker.get_cubin) : std::string();
  if (cubin.empty()) {
    const std::string errors = text(linker.error_bytes, linker.get_errors);
    throw CompileError(source.key(), "the fragments do not link:\n" + errors.substr(0, errors.find('\0')));
  }
  return cubin;
}

}  // namespace attn
