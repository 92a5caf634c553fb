// The input of a compilation: a kernel's text, its function constants, and the identity of both.
//
// A function constant (Metal's term) is an integer that the kernel uses and does not declare. The device's compiler
// declares the constant before the source (cxx_prologue()). Constants have no default values, so a kernel with a
// misspelt constant does not compile. The compilers for cpu and cuda also refuse a constant that the kernel does not
// use.
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

/// The stage at which the code of a source's fragments joins the kernel's code. before_optimizer: as an intermediate
/// representation, so that the optimiser sees both together. after_code_generation: as machine code.
enum class Linking { before_optimizer, after_code_generation };

/// Texts of users in KernelSource::includes have this name together. They stand before all other text of a source, also
/// before its constants, so that a user's text sees no macro and no name of a kernel.
inline constexpr const char* users_text = "common/kernel/users_text.h";
/// The names of the namespaces with users' texts begin with this word. No other name in a kernel has it.
inline constexpr const char* users_namespace = "user_text_";

struct KernelSource {
  std::string path;   // under the source root, e.g. "common/attention/kernels/tuned.cpu.cpp"
  std::string entry;  // the extern "C" function
  FunctionConstants constants = {};
  std::map<std::string, std::string> includes = {};  // a file's path, and the text that replaces the file
  /// Sources that are compiled separately, each with its own constants, and linked in. A fragment's entry is a function
  /// that the kernel declares extern "C" and does not define. A fragment has no fragments. A fragment that is linked as
  /// machine code may be a program (is_program).
  std::vector<KernelSource> fragments = {};
  Linking linking = Linking::before_optimizer;
  /// The names of constants that are global variables, which Device::load() sets, so that one binary serves all their
  /// values. A kernel that needs such a constant at compile time, for example as the size of an array, does not
  /// compile. A fragment has no run-time constants.
  std::set<std::string> run_time = {};
  std::string assembler = {};  // an option of the assembler (ptxas): "-O1"; on Metal of the compiler: "-std=metal3.2"
  /// Whether the source includes a user's text, so that a device catches faults of the kernel if it can. `guarded` does
  /// not change the kernel's code.
  bool guarded = false;

  /// Returns the values of `run_time`. Throws BadInput for a name that is not a constant, or a value that does not fit
  /// int.
  FunctionConstants run_time_values() const;

  /// Returns one readable line, the name in logs and records: flash_forward[BLOCK_C=128,BLOCK_R=64,...]. After the
  /// constants, of which those in `run_time` have no value (BLOCK_C=run_time), stand the replaced headers (NAME:HASH
  /// with the first 8 hex digits of the text's SHA-256) and the assembler's option (assembler=-O1). Each fragment
  /// follows as +ENTRY[...] if the optimiser sees the fragment, or as |ENTRY[...] if it is linked as machine code.
  std::string key() const;

  bool operator==(const KernelSource&) const = default;
};

struct SourceFile {
  std::string path, text;
};
/// Returns the replaced headers of a source and of its fragments.
std::vector<SourceFile> hooks_of(const KernelSource& source);

/// Returns the source whose KernelSource::key() is `key`, but without paths and without the values of run-time
/// constants, which a key does not have. `hooks` are the source's hooks_of(). Returns nullopt if the text is no key, or
/// if `hooks` lacks the text of a replaced header.
std::optional<KernelSource> parse_key(std::string_view key, const std::vector<SourceFile>& hooks = {});

/// Quick, and valid only in this process.
struct KernelSourceHash {
  size_t operator()(const KernelSource& source) const;
};

/// Returns the line that includes `users_text`; an empty text if the source has no user's text.
std::string users_text_line(const KernelSource& source);

/// Returns the lines of C++ that stand before a source, users_text_line() first. A run-time constant gets the text that
/// `declare` returns. Each other constant gets a constexpr line and a #define NAME_VALUE.
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

/// Whether the file is a GPU's machine code, *.cubin, which another compiler made. A source whose file is machine code
/// has no constants.
bool is_machine_code(std::string_view path);

/// Returns the paths of the kernels and fragments under the root: the files *.cpp, *.cu, *.metal, *.py and *.h (a
/// header may be a fragment) in folders that are called `kernels`, and machine code in any folder. Folders called
/// `build` and hidden folders are left out.
std::vector<std::string> kernel_files();

/// Returns a file's text from KernelSource::includes or else from the source root. Throws BadInput if the file cannot
/// be read.
std::string read_source(const KernelSource& source, const std::string& path);

/// Returns the source, and then `users_text` and every header that they reach through #include "NAME", each once.
/// Throws BadInput if a file cannot be read.
std::vector<SourceFile> reached_sources(const KernelSource& source);

/// Returns one text for a compiler that opens no files: `users_text` if the source has it, `between`, and the source,
/// with the text of each header in place of each #include "NAME" that names it. A header with #pragma once comes in
/// once. The directives #line keep the files' names and lines for messages. Throws BadInput if a file cannot be read.
std::string joined_text(const KernelSource& source, const std::string& between);

/// Returns all text that can change the source's code: `users_text` and the source with the text of each header in
/// place of the first #include "NAME" that names the header, without comments, blank lines, #pragma once and the names
/// of the files. If the source is not *.metal, lines under #ifdef __METAL_VERSION__ are left out, and the words of
/// common/kernel/spaces.h are replaced by their meaning. With `splice`, a line that ends with a backslash is joined to
/// the next line. For a program or machine code, returns the whole file. Throws BadInput if a file cannot be read.
std::string expanded_text(const KernelSource& source, bool splice = false);

/// Returns the tokens of expanded_text() (tokens_of()); for a program or machine code, the whole file.
std::string identifying_text(const KernelSource& source);

/// A function that returns identifying_text(), for example from a cache.
using IdentifyingText = std::function<std::string(const KernelSource&)>;

/// Returns the identity of a source: SHA-256 over entry, constants (without values of `run_time`), the assembler's
/// option, the identifying text with the texts of hooks in it, and the same of every fragment, with `linking`. The
/// identity does not change if text moves to another file, nor if the comments, blanks and line breaks of C++ change.
std::string source_sha256(const KernelSource& source, const IdentifyingText& text_of = identifying_text);

}  // namespace attn
