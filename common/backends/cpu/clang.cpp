#include "common/backends/cpu/clang.h"

#include <clang/Basic/DiagnosticOptions.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/raw_ostream.h>

namespace attn {

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
  const bool ok = clang.ExecuteAction(action);
  return ok ? action.takeModule() : nullptr;
}

}  // namespace attn
