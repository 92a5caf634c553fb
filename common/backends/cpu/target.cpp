#include "common/backends/cpu/target.h"

#include <clang/Basic/Version.h>
#include <fmt/format.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/TargetParser/AArch64TargetParser.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/TargetParser/Triple.h>
#include <llvm/TargetParser/X86TargetParser.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>

#include "common/backends/cpu/operations.h"
#include "common/base/error.h"
#include "common/base/platform.h"

namespace attn {

namespace {

llvm::StringMap<bool> host_features() {
#if LLVM_VERSION_MAJOR >= 19
  llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
#else
  llvm::StringMap<bool> features;
  llvm::sys::getHostCPUFeatures(features);
#endif
  for (const ArmFeature& feature : arm_features()) features[feature.name] = feature.present;
  if (features.lookup("amx-tile") && !may_use_tiles()) {
    for (auto& feature : features) {
      if (feature.first().starts_with("amx-")) feature.second = false;
    }
  }
  return features;
}

// Returns the features that LLVM assigns to the processor family `arch`.
std::unique_ptr<const llvm::MCSubtargetInfo> usual_features(const std::string& triple, const std::string& arch) {
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) throw DeviceMissing("cpu: LLVM cannot compile for " + triple + ": " + error);
  return std::unique_ptr<const llvm::MCSubtargetInfo>(target->createMCSubtargetInfo(triple, arch, ""));
}

// Returns this system's triple, with the architecture `arch`. If `arch` is not this system's architecture, initialises
// all of LLVM's targets.
std::string triple_with(llvm::Triple::ArchType arch) {
  llvm::Triple triple(llvm::sys::getProcessTriple());
  if (triple.getArch() == arch) return triple.str();
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeAllTargetInfos();
    llvm::InitializeAllTargets();
    llvm::InitializeAllTargetMCs();
    llvm::InitializeAllAsmPrinters();
    llvm::InitializeAllDisassemblers();
  });
  triple.setArch(arch);
  return triple.str();
}

}  // namespace

bool CpuTarget::has(std::string_view feature) const {
  return std::binary_search(features.begin(), features.end(), feature);
}

std::vector<std::string> CpuTarget::arguments() const {
  std::vector<std::string> arguments = {"-triple", triple, "-target-cpu", arch};
  const llvm::Triple system(triple);
  if (system.isOSDarwin() && system.isAArch64()) arguments.insert(arguments.end(), {"-target-abi", "darwinpcs"});
  return arguments;
}

CpuTarget CpuTarget::host() {
  initialize_llvm();
  CpuTarget target{llvm::sys::getProcessTriple(), llvm::sys::getHostCPUName().str(), {}, {}};
  const llvm::StringMap<bool> host = host_features();
  std::unique_ptr<const llvm::MCSubtargetInfo> usual = usual_features(target.triple, target.arch);
  if (host.lookup("amx-tile") && !usual->checkFeatures("+amx-tile")) {
    // A virtual machine may hide its processor's model. In this case LLVM names an older processor.
    target.arch = host.lookup("prefetchi") ? "graniterapids" : "sapphirerapids";
    usual = usual_features(target.triple, target.arch);
  }
  for (const auto& feature : host) {
    const std::string name = feature.first().str();
    // Leaves out avx10: the list also has other features that say the same, and clang warns if avx10 and avx512f are
    // both named.
    if (name.starts_with("avx10.")) continue;
    if (feature.second) target.features.push_back(name);
    // A virtual machine may lack features of its processor. `switches` has only the differences from the usual
    // features: with all features the front end would take 1 ms longer for each kernel.
    const std::string wanted = (feature.second ? "+" : "-") + name;
    if (!usual->checkFeatures(wanted)) target.switches.push_back(wanted);
  }
  std::sort(target.features.begin(), target.features.end());
  std::sort(target.switches.begin(), target.switches.end());
  return target;
}

CpuTarget CpuTarget::named(const std::string& family) {
  initialize_llvm();
  CpuTarget target{"", family, {}, {}};
  constexpr bool only_64_bit = true;
  if (llvm::X86::parseArchX86(family, only_64_bit) != llvm::X86::CK_None) {
    target.triple = triple_with(llvm::Triple::x86_64);
    llvm::SmallVector<llvm::StringRef> names;
    llvm::X86::getFeaturesForCPU(family, names);
    llvm::StringMap<bool> all;
    for (const llvm::StringRef name : names) {
      all[name] = true;
      llvm::X86::updateImpliedFeatures(name, true, all);
    }
    for (const auto& feature : all) {
      if (feature.first() != "x87")
        target.features.push_back(feature.first().str());  // a host's list does not have x87
    }
  } else if (const auto core = llvm::AArch64::parseCpu(family)) {
    target.triple = triple_with(llvm::Triple::aarch64);
    std::vector<llvm::StringRef> names;
    llvm::AArch64::getExtensionFeatures(core->getImpliedExtensions(), names);
    for (const llvm::StringRef name : names) target.features.push_back(name.ltrim('+').str());
  } else {
    throw BadInput(fmt::format("LLVM knows no 64-bit x86 or ARM processor '{}'", family));
  }
  std::sort(target.features.begin(), target.features.end());
  return target;
}

CpuTarget CpuTarget::within(const CpuTarget& host) const {
  if (llvm::Triple(triple).getArch() != llvm::Triple(host.triple).getArch()) {
    throw BadInput(fmt::format("{} does not run code that is compiled for {}", host.arch, arch));
  }
  CpuTarget result{triple, arch, {}, switches};
  std::set_intersection(features.begin(), features.end(), host.features.begin(), host.features.end(),
                        std::back_inserter(result.features));
  for (const std::string& feature : features) {
    if (!host.has(feature)) result.switches.push_back("-" + feature);
  }
  std::sort(result.switches.begin(), result.switches.end());
  return result;
}

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetDisassembler();
    // Turns off loop strength reduction, which takes a fifth of the time of code generation. LLVM has only a global
    // option for this. Kernels write the addresses of inner loops in the form that the host needs, and so do not need
    // this pass.
    if (llvm::cl::Option* const option = llvm::cl::getRegisteredOptions().lookup("disable-lsr")) {
      static_cast<llvm::cl::opt<bool>*>(option)->setValue(true);
    }
  });
}

DeviceInfo cpu_info(const CpuTarget& target) {
  DeviceInfo info;
  info.spec = info.backend = "cpu";
  info.on_host = true;
  info.operations = &cpu_operations();
  info.name = info.arch = target.arch;
  info.toolchain = "clang " CLANG_VERSION_STRING;
  info.features = target.features;
  if (llvm::Triple(target.triple).isX86()) {
    const bool avx512 = target.has("avx512f");
    info.simd_width = avx512 ? 16 : target.has("avx") ? 8 : 4;
    info.vector_registers = avx512 ? 32 : 16;
  } else {
    info.simd_width = 4;
    info.vector_registers = 32;
  }
  info.threadgroup_memory_bytes = info.last_level_cache_bytes = size_t{256} << 10;
  return info;
}

}  // namespace attn
