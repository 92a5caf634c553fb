// Runs clang in this process, for every device whose kernels clang compiles.
#pragma once

#include <llvm/Support/VirtualFileSystem.h>

#include <memory>
#include <string>
#include <vector>

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

namespace attn {

/// Compiles a file to LLVM's intermediate representation. `arguments` are arguments of clang's front end (-cc1).
/// `messages` gets clang's messages. Returns null if the file does not compile, or if a user's text in it
/// (`users_text`) calls a function that does more than compute and that the file does not define.
std::unique_ptr<llvm::Module> run_clang(const std::string& main_file,
                                        llvm::IntrusiveRefCntPtr<llvm::vfs::FileSystem> files,
                                        const std::vector<std::string>& arguments, llvm::LLVMContext& context,
                                        std::string& messages);

}  // namespace attn
