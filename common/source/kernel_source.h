// What is compiled: a kernel's text, its function constants, and the identity of both.
//
// A function constant is a compile-time integer that a kernel declares nowhere: the device's compiler puts a
// `constexpr` line for it before the source (the term is Metal's), and, as NAME_VALUE, a symbol of the preprocessor. A
// kernel has no defaults, so that a misspelt constant does not compile, and a constant that the kernel does not use
// does not compile either.
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

/// Function constants, sorted by name, so that equal sets print, hash and compile equally.
class FunctionConstants {
 public:
  using Entry = std::pair<std::string, int64_t>;

  FunctionConstants() = default;
  FunctionConstants(std::initializer_list<Entry> entries);

  int64_t& operator[](std::string_view name);  // 0 where it is new
  int64_t at(std::string_view name) const;     // throws std::out_of_range
  bool contains(std::string_view name) const;
  void erase(std::string_view name);
  /// Adds those of `others` whose names are new.
  void merge(const FunctionConstants& others);

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  bool operator==(const FunctionConstants&) const = default;

 private:
  std::vector<Entry> entries_;
};

/// When the code of a source's fragments joins the kernel's: as what the optimiser sees of both at once (LLVM IR on the
/// cpu, NVIDIA's LTO IR on a GPU), or as machine code.
enum class Linking { before_optimizer, after_code_generation };

/// Everything that says which code is wanted.
struct KernelSource {
  std::string path;   // under the source root, e.g. "common/attention/kernels/tuned.cpu.cpp"
  std::string entry;  // the extern "C" function
  FunctionConstants constants = {};
  std::map<std::string, std::string> includes = {};  // text that stands in for the file of an #include "NAME"
  /// Compiled apart, each with its own constants, and linked in: what the kernel declares extern "C" and does not
  /// define. A fragment's entry is the function that it brings; it has no fragments itself. A fragment that is linked
  /// as machine code may be a program (is_program).
  std::vector<KernelSource> fragments = {};
  Linking linking = Linking::before_optimizer;
  /// Those of the constants that the code reads when it runs: globals of the same names, which Device::load() sets. One
  /// binary then serves all their values, and the kernel's text stays as it is; but it does not compile where it needs
  /// one of them at compile time (a size of an array or vector, an argument of a template, another constexpr).
  /// A fragment has none.
  std::set<std::string> run_time = {};
  std::string assembler = {};  // an option of the assembler (ptxas), as "-O1"; the cpu's compiler has none
  /// It has text that somebody else wrote: a device survives what that does wrong, as far as it can. The code is the
  /// same.
  bool guarded = false;

  /// The values of `run_time`. Throws BadInput for a name that is no constant, or a value that is no int.
  FunctionConstants run_time_values() const;

  /// One readable line, the name in logs and records: flash_forward[BLOCK_C=128,BLOCK_R=64,...], and behind it
  /// +ENTRY[...] for a fragment that the optimiser sees, |ENTRY[...] for one that is linked as machine code. Equal for
  /// sources that differ in values of `run_time` alone: flash_forward[BLOCK_C=run_time,...]. The assembler's option
  /// stands last: [...,assembler=-O1].
  std::string key() const;

  bool operator==(const KernelSource&) const = default;
};

/// KernelSource::key() read back, but for the paths, which are not in it. Nothing for another text, and where the key
/// has replaced headers or values read at run time, which it does not tell.
std::optional<KernelSource> parse_key(std::string_view key);

/// For tables of what was made of a source; quick, good for this process only.
struct KernelSourceHash {
  size_t operator()(const KernelSource& source) const;
};

/// The lines of C++ that stand before a source: a constexpr line and a #define NAME_VALUE for each constant, what
/// `declare` says of each that is read at run time, and a #line directive for the source itself.
std::string cxx_prologue(const KernelSource& source,
                         const std::function<std::string(const std::string& run_time_name)>& declare);

/// The folder kernels are read from, as an absolute path: $ATTENTION_PROTO_SOURCE, else what was installed with libattn,
/// else the tree this was built from.
std::string source_root();

/// Whether the file is a program that writes machine code, *.py, and no C++.
bool is_program(std::string_view path);

/// Whether the file is a GPU's machine code, *.cubin, which a compiler elsewhere has made. Device::compile() takes it as
/// it is; such a source has no constants.
bool is_machine_code(std::string_view path);

/// Paths of the kernels under the root: the *.cpp, *.cu and *.py of folders that are called `kernels`, and machine code.
std::vector<std::string> kernel_files();

/// Text of a kernel source or header, from KernelSource::includes, else from the source root. Throws BadInput.
std::string read_source(const KernelSource& source, const std::string& path);

struct SourceFile {
  std::string path, text;
};
/// The source and every header it reaches through #include "NAME", each once, the source first. Throws BadInput.
std::vector<SourceFile> reached_sources(const KernelSource& source);

/// The text with each #include "NAME" replaced by the file's text, the first time, and without comments, blank lines
/// and #pragma once: all of the text that can change the code, whatever its files are called. Of a program, and of
/// machine code, all of it. Throws BadInput.
std::string expanded_text(const KernelSource& source);

/// Identity of a source: SHA-256 over entry, constants (without values of `run_time`), the assembler's option, the
/// expanded text, and the same of every fragment. Equal for a file that is moved or whose comments change.
std::string source_sha256(const KernelSource& source);

}  // namespace attn
