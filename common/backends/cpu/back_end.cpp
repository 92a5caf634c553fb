#include "common/backends/cpu/back_end.h"

#include <llvm/ADT/StringExtras.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/Linker/Linker.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/IPO/Inliner.h>
#include <llvm/Transforms/IPO/Internalize.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Instrumentation/AddressSanitizer.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/LoopRotation.h>
#include <llvm/Transforms/Scalar/LoopUnrollPass.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Vectorize/LoopVectorize.h>

#include <utility>

#include "common/backends/cpu/sanitizers.h"
#include "common/base/error.h"

namespace attn {

namespace {

std::unique_ptr<llvm::TargetMachine> make_machine(const CpuTarget& target) {
  std::string error;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(target.triple, error);
  if (!found) throw DeviceMissing("cpu: LLVM cannot compile for " + target.triple + ": " + error);
  return std::unique_ptr<llvm::TargetMachine>(
      found->createTargetMachine(target.triple, target.arch, llvm::join(target.switches, ","), {}, llvm::Reloc::PIC_,
                                 llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default));
}

// Returns the passes of LLVM's O1 that a kernel needs, in O1's order. These passes take two thirds of O1's time, and
// kernels are as fast as with all passes. LLVM unrolls and vectorises only the loops that a kernel marks (#pragma clang
// loop). Without this limit LLVM would also unroll every cold loop.
llvm::ModulePassManager kernel_pipeline() {
  constexpr bool only_when_forced = true, with_memory_ssa = true;
  llvm::FunctionPassManager early;
  early.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  early.addPass(llvm::EarlyCSEPass());
  early.addPass(llvm::SimplifyCFGPass());

  llvm::LoopPassManager rotate, unroll, hoist;
  rotate.addPass(llvm::LICMPass(llvm::LICMOptions()));
  rotate.addPass(llvm::LoopRotatePass());
  rotate.addPass(llvm::LICMPass(llvm::LICMOptions()));
  unroll.addPass(llvm::LoopFullUnrollPass(1, only_when_forced));
  hoist.addPass(llvm::LICMPass(llvm::LICMOptions()));

  llvm::FunctionPassManager simplify;  // takes callees before callers, so that callers may inline them
  simplify.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  simplify.addPass(llvm::EarlyCSEPass(with_memory_ssa));
  simplify.addPass(llvm::SimplifyCFGPass());
  simplify.addPass(llvm::InstCombinePass());
  simplify.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(rotate), with_memory_ssa));
  simplify.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(unroll)));
  simplify.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  simplify.addPass(llvm::EarlyCSEPass(with_memory_ssa));
  simplify.addPass(llvm::InstCombinePass());
  simplify.addPass(llvm::SimplifyCFGPass());
  llvm::ModuleInlinerWrapperPass inliner(llvm::getInlineParams(1, 0));
  inliner.getPM().addPass(llvm::createCGSCCToFunctionPassAdaptor(std::move(simplify)));

  llvm::FunctionPassManager late;
  late.addPass(llvm::LoopVectorizePass(llvm::LoopVectorizeOptions(only_when_forced, only_when_forced)));
  late.addPass(llvm::LoopUnrollPass(llvm::LoopUnrollOptions(1, only_when_forced)));
  late.addPass(llvm::EarlyCSEPass(with_memory_ssa));
  late.addPass(llvm::InstCombinePass());
  late.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(hoist), with_memory_ssa));
  late.addPass(llvm::SimplifyCFGPass());

  llvm::ModulePassManager passes;
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(early)));
  passes.addPass(llvm::AlwaysInlinerPass());
  passes.addPass(std::move(inliner));
  passes.addPass(llvm::GlobalDCEPass());
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(late)));
  return passes;
}

}  // namespace

TargetMachines::TargetMachines(CpuTarget target) : target_(std::move(target)) {}

TargetMachines::~TargetMachines() = default;

std::shared_ptr<llvm::TargetMachine> TargetMachines::take() const {
  std::unique_ptr<llvm::TargetMachine> machine;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      machine = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!machine) machine = make_machine(target_);
  return {machine.release(), [this](llvm::TargetMachine* used) {
            const std::lock_guard lock(mutex_);
            idle_.emplace_back(used);
          }};
}

void collect_errors(llvm::LLVMContext& context, std::string& errors) {
  context.setDiagnosticHandlerCallBack(
      [](const llvm::DiagnosticInfo* info, void* collected) {
        if (info->getSeverity() != llvm::DS_Error) return;
        llvm::raw_string_ostream stream(*static_cast<std::string*>(collected));
        llvm::DiagnosticPrinterRawOStream printer(stream);
        info->print(printer);
        stream << '\n';
      },
      &errors);
}

bool link_modules(std::vector<std::unique_ptr<llvm::Module>>& modules, const std::string& entry) {
  if (modules.size() == 1) return true;
  llvm::Module& whole = *modules.front();
  for (size_t i = 1; i < modules.size(); ++i) {
    if (llvm::Linker::linkModules(whole, std::move(modules[i]))) return false;
  }
  modules.resize(1);
  // Makes all functions but the entry private to the module, so that LLVM drops a function once all its calls are
  // inlined.
  llvm::internalizeModule(whole, [&](const llvm::GlobalValue& value) { return value.getName() == entry; });
  return true;
}

void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  module.setDataLayout(machine.createDataLayout());
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  llvm::ModulePassManager passes = kernel_pipeline();
  if constexpr (sanitizes("address")) {
    // Gives constants no red zones. Red zones need constructors, and constructors do not run for a kernel.
    for (llvm::GlobalVariable& constant : module.globals()) {
      llvm::GlobalValue::SanitizerMetadata metadata;
      metadata.NoAddress = true;
      constant.setSanitizerMetadata(metadata);
    }
    passes.addPass(llvm::AddressSanitizerPass({}, true, true, llvm::AsanDtorKind::None, llvm::AsanCtorKind::None));
  }
  passes.run(module, modules);
}

std::string generate_code(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    throw DeviceMissing("cpu: LLVM cannot write object files for " + machine.getTargetTriple().str());
  }
  passes.run(module);
  return std::string(object.begin(), object.end());
}

}  // namespace attn
