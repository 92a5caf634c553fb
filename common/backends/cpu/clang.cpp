#include "common/backends/cpu/clang.h"

#include <clang/Basic/DiagnosticOptions.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <fmt/format.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/raw_ostream.h>

#include "common/source/kernel_source.h"

namespace attn {

namespace {

// Whether a user's text may call a function that the module does not define: a function that only computes, a copy of
// memory, or an end of the kernel.
bool may_call(const llvm::Function& callee) {
  switch (callee.getIntrinsicID()) {
    case llvm::Intrinsic::not_intrinsic:
      // The sanitizers' functions report faults.
      return callee.doesNotAccessMemory() || callee.getName() == "abort" || callee.getName().starts_with("__ubsan_");
    case llvm::Intrinsic::assume:
    case llvm::Intrinsic::debugtrap:
    case llvm::Intrinsic::experimental_noalias_scope_decl:
    case llvm::Intrinsic::lifetime_end:
    case llvm::Intrinsic::lifetime_start:
    case llvm::Intrinsic::memcpy:
    case llvm::Intrinsic::memcpy_inline:
    case llvm::Intrinsic::memmove:
    case llvm::Intrinsic::memset:
    case llvm::Intrinsic::memset_inline:
    case llvm::Intrinsic::stackrestore:
    case llvm::Intrinsic::stacksave:
    case llvm::Intrinsic::trap:
    case llvm::Intrinsic::ubsantrap:
      return true;
    default:
      return callee.doesNotAccessMemory();
  }
}

// Returns the first function that a user's text calls and may not call; an empty text if there is none. Builtins reach
// functions that a text cannot declare: __builtin_printf calls printf.
std::string refused_call(const llvm::Module& module) {
  for (const llvm::Function& function : module) {
    if (!function.getName().contains(users_namespace)) continue;
    for (const llvm::Instruction& instruction : llvm::instructions(function)) {
      const auto* const call = llvm::dyn_cast<llvm::CallBase>(&instruction);
      const llvm::Function* const callee = call ? call->getCalledFunction() : nullptr;
      if (callee && callee->isDeclaration() && !may_call(*callee)) return callee->getName().str();
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<llvm::Module> run_clang(const std::string& main_file,
                                        llvm::IntrusiveRefCntPtr<llvm::vfs::FileSystem> files,
                                        const std::vector<std::string>& arguments, llvm::LLVMContext& context,
                                        std::string& messages) {
  std::vector<const char*> raw;
  for (const std::string& argument : arguments) raw.push_back(argument.c_str());
  raw.push_back(main_file.c_str());
  llvm::raw_string_ostream stream(messages);
  clang::CompilerInstance clang;
  clang.createDiagnostics();
  clang::CompilerInvocation::CreateFromArgs(clang.getInvocation(), raw, clang.getDiagnostics());
  // Creates the diagnostics a second time, because the options for warnings are known only now.
  clang.createDiagnostics(new clang::TextDiagnosticPrinter(stream, &clang.getDiagnosticOpts()));
  clang.setVerboseOutputStream(std::make_unique<llvm::raw_null_ostream>());  // drops "1 error generated."
  clang.createFileManager(std::move(files));
  clang::EmitLLVMOnlyAction action(&context);
  if (!clang.ExecuteAction(action)) return nullptr;
  std::unique_ptr<llvm::Module> module = action.takeModule();
  const std::string refused = module ? refused_call(*module) : std::string();
  if (refused.empty()) return module;
  messages += fmt::format("error: function \"{}\" was referenced but not defined\n", refused);
  return nullptr;
}

}  // namespace attn
