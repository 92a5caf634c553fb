// The input of a compilation: a kernel's text, its function constants, and the identity of both.
//
// A function constant (Metal's term) is an integer that the kernel uses and does not declare. The device's compiler
// declares the constant before the source (cxx_prologue()). A kernel has no default values of its constants, so a
// kernel with a misspelt constant does not compile. The compilers for cpu and cuda also refuse a constant that the
// kernel does not use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attn {

/// Function constants, sorted by name, so that equal sets print, hash and compile alike.
class FunctionConstants {
 public:
  using Entry = std::pair<std::string, int64_t>;

  FunctionConstants() = default;
  FunctionConstants(std::initializer_list<Entry> entries);

  int64_t& operator[](std::string_view name);  // a new constant is 0
  int64_t at(std::string_view name) const;     // throws std::out_of_range
  bool contains(std::string_view name) const;
  void erase(std::string_view name);
  /// Adds the constants of `others` whose names are new.
  void merge(const FunctionConstants& others);

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  bool operator==(const FunctionConstants&) const = default;

 private:
  std::vector<Entry> entries_;
};

/// The stage at which the code of a source's fragments joins the kernel's code. before_optimizer: the optimiser sees
/// the code of kernel and fragments together (as LLVM IR on the cpu, as NVIDIA's LTO IR on cuda).
/// after_code_generation: the linker joins machine code of kernel and fragments.
enum class Linking { before_optimizer, after_code_generation };

/// A kernel's text and constants, and how they are compiled.
struct KernelSource {
  std::string path;   // under the source root, e.g. "common/attention/kernels/tuned.cpu.cpp"
  std::string entry;  // the extern "C" function
  FunctionConstants constants = {};
  std::map<std::string, std::string> includes = {};  // a file's path, and the text that replaces the file
  /// Sources that are compiled separately, each with its own constants, and linked in. Fragments define the functions
  /// that the kernel declares extern "C" and does not define. A fragment's entry is the function that it defines. A
  /// fragment has no fragments. A fragment that is linked as machine code may be a program (is_program).
  std::vector<KernelSource> fragments = {};
  Linking linking = Linking::before_optimizer;
  /// The names of constants that the code reads when it runs. These constants are global variables, which
  /// Device::load() sets. One binary then serves all their values. The kernel uses such a constant by its name, like
  /// any other constant. A kernel that needs the constant at compile time (a size of an array or vector, an argument of
  /// a template, another constexpr) does not compile. A fragment has no run-time constants.
  std::set<std::string> run_time = {};
  std::string assembler = {};  // an option of the assembler (ptxas), for example "-O1"; always empty on the cpu
  /// Whether the source includes a user's text. If so, a device catches faults of the kernel if it can
  /// (common/backends/cpu/guard.h). `guarded` does not change the kernel's code.
  bool guarded = false;

  /// Returns the values of `run_time`. Throws BadInput for a name that is not a constant, or a value that does not fit
  /// int.
  FunctionConstants run_time_values() const;

  /// Returns one readable line, the name in logs and records: flash_forward[BLOCK_C=128,BLOCK_R=64,...], followed by
  /// +ENTRY[...] for a fragment that the optimiser sees, or |ENTRY[...] for a fragment that is linked as machine code.
  /// Sources that differ only in values of `run_time` have equal keys: flash_forward[BLOCK_C=run_time,...]. After
  /// the constants stand the replaced headers, each as NAME:HASH with the first 8 hex digits of the text's SHA-256, and
  /// last the assembler's option: [...,assembler=-O1].
  std::string key() const;

  bool operator==(const KernelSource&) const = default;
};

/// Returns the source whose KernelSource::key() is `key`, but without paths, because a key has no paths. Returns
/// nullopt if the text is no key. Also returns nullopt if the source has replaced headers or constants that are read at
/// run time, because a key has neither the headers' texts nor the constants' values.
std::optional<KernelSource> parse_key(std::string_view key);

/// The hash for tables with a source as key; quick, and valid only in this process.
struct KernelSourceHash {
  size_t operator()(const KernelSource& source) const;
};

/// Returns the lines of C++ that stand before a source. A constant that is read at run time gets the text that
/// `declare` returns. Each other constant gets a constexpr line and a #define NAME_VALUE. The last line is a #line
/// directive.
std::string cxx_prologue(const KernelSource& source,
                         const std::function<std::string(const std::string& run_time_name)>& declare);

/// Returns the folder from which kernels are read, as an absolute path. The folder is $ATTENTION_PROTO_SOURCE if this
/// variable is set and not empty, else the folder of the sources that were installed with libattn, else the source tree
/// of the build.
std::string source_root();

/// Throws BadInput if source_root() has no folder common/kernel.
void require_sources();

/// Whether the file is not C++ but a program, *.py, that writes machine code.
bool is_program(std::string_view path);

/// Whether the file is a GPU's machine code, *.cubin, which another compiler made. Device::compile() does not change
/// the code. A source whose file is machine code has no constants.
bool is_machine_code(std::string_view path);

/// Returns the paths of the kernels under the root: the files *.cpp, *.cu, *.metal and *.py in folders that are called
/// `kernels`, and machine code in any folder. Folders called `build` and hidden folders are left out.
std::vector<std::string> kernel_files();

/// Returns the text of a kernel source or header, from KernelSource::includes or else from the source root. Throws
/// BadInput if the file cannot be read.
std::string read_source(const KernelSource& source, const std::string& path);

struct SourceFile {
  std::string path, text;
};
/// Returns the source, and then every header that it reaches through #include "NAME", each once. Throws BadInput if a
/// file cannot be read.
std::vector<SourceFile> reached_sources(const KernelSource& source);

/// Returns the text of the source with the texts of its headers: a header's text stands in place of the first #include
/// "NAME" that names the header. The result has no comments, no blank lines, no #pragma once, and no further #include
/// lines of the header. If the source is not *.metal, the result has no lines under #ifdef __METAL_VERSION__, and
/// Metal's words GLOBAL, LOCAL, CONSTANT and INT64 (common/kernel/spaces.h) are replaced by their meaning. The result
/// is all text that can change the code; it does not have the names of the files. For a program or machine code,
/// returns the whole file. Throws BadInput if a file cannot be read.
std::string expanded_text(const KernelSource& source);

/// A function that returns expanded_text(), for example from a cache.
using ExpandedText = std::function<std::string(const KernelSource&)>;

/// Returns the identity of a source: SHA-256 over entry, constants (without values of `run_time`), the assembler's
/// option, the expanded text, and for every fragment the same parts and `linking`. The identity does not change if a
/// file is moved, nor if the comments of C++ change.
std::string source_sha256(const KernelSource& source, const ExpandedText& expanded = expanded_text);

}  // namespace attn
