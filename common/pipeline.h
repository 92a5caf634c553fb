// From kernel source and function constants to machine code: what is compiled, under which name, and where it is kept.
//
// A function constant is a compile-time integer that a kernel declares nowhere: it becomes a `constexpr` line of a
// prologue placed before the source (the term is Metal's), and, as NAME_VALUE, a symbol of the preprocessor. A kernel
// has no defaults, so that a misspelt constant does not compile, and a constant that the kernel does not use does not
// compile either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace attn {

class Device;
class Kernel;

/// Function constants by name and in that order, so that equal sets print, hash and compile equally. A map in one piece
/// of memory, whose names are in the process once: whoever looks for a pipeline compares the constants of two sources.
class FunctionConstants {
 public:
  using Entry = std::pair<std::string_view, int64_t>;  // the name lasts as long as the process, and ends with a 0

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
  bool operator==(const FunctionConstants& other) const;

 private:
  std::vector<Entry> entries_;
};

/// When the code of a source's fragments joins the kernel's: as what the optimiser sees of both at once (LLVM IR on the
/// cpu, NVIDIA's LTO IR on a GPU), or as machine code.
enum class Linking { before_optimizer, after_code_generation };

/// Everything that says which code is wanted.
struct KernelSource {
  std::string path;   // under the source root, e.g. "proto1_flash/kernels/flash.cpu.cpp"
  std::string entry;  // the extern "C" function
  FunctionConstants constants = {};
  std::map<std::string, std::string> includes = {};  // text that stands in for the file of an #include "NAME"
  /// Compiled apart, each with its own constants, and linked in: what the kernel declares extern "C" and does not
  /// define. A fragment's entry is the function that it brings; it has no fragments itself.
  std::vector<KernelSource> fragments = {};
  Linking linking = Linking::before_optimizer;
  /// Those of the constants that the code reads when it runs: globals of the same names, which Device::load() sets. One
  /// binary then serves all their values, and the kernel's text stays as it is; but it does not compile where it needs
  /// one of them at compile time (a size of an array or vector, an argument of a template, another constexpr).
  /// A fragment has none.
  std::set<std::string> run_time = {};

  /// The values of `run_time`. Throws BadInput for a name that is no constant, or a value that is no int.
  FunctionConstants run_time_values() const;

  /// One readable line, the name in logs and records: flash_forward[BLOCK_C=128,BLOCK_R=64,...], and behind it
  /// +ENTRY[...] for a fragment that the optimiser sees, |ENTRY[...] for one that is linked as machine code. Equal for
  /// sources that differ in values of `run_time` alone: flash_forward[BLOCK_C=run_time,...].
  std::string key() const;
  /// The constexpr lines that stand before the source, each with its #define NAME_VALUE, ending with a #line directive
  /// for the source itself.
  std::string prologue() const;

  bool operator==(const KernelSource&) const = default;
};

/// For tables of what was made of a source; quick, good for this process only.
struct KernelSourceHash {
  size_t operator()(const KernelSource& source) const;
};

/// Seconds spent in each phase of a compilation.
struct CompileTimes {
  double front_end_s = 0;
  double optimizer_s = 0;
  double code_generation_s = 0;
  double total_s() const { return front_end_s + optimizer_s + code_generation_s; }
  CompileTimes& operator+=(const CompileTimes& other) {
    front_end_s += other.front_end_s;
    optimizer_s += other.optimizer_s;
    code_generation_s += other.code_generation_s;
    return *this;
  }
};

/// Machine code and what is known of it.
struct Binary {
  std::string key;
  std::string source_sha256;      // over prologue, source and every header it includes, and the same of its fragments
  std::string code_sha256;        // over the machine code in `code`
  std::string code;               // an object file, or an archive of several (cpu), or a cubin (cuda)
  CompileTimes times;             // of the compilation that made it, however long ago
  int registers = -1;             // per thread; -1 where the device does not tell
  int64_t spill_bytes = -1;       // stack bytes a thread's spills take; -1 where the device does not tell
  int64_t threadgroup_bytes = 0;  // threadgroup memory that the kernel itself declares, beside what a dispatch gives it
  FunctionConstants run_time;     // what Device::load() sets; not a part of the code, and not kept with it
};

/// A binary that is loaded and ready to be dispatched.
struct Pipeline {
  Binary binary;
  std::unique_ptr<Kernel> kernel;
  std::string origin;  // "compiled", "disk" or "archive": where this process got it
  double ready_s = 0;  // what getting it took here: compiling or reading, and loading
  double load_s = 0;   // of that, loading
};

/// Many binaries in one file, so that an application ships or warms up its variants at once (Metal's binary archive).
/// The file is written to a temporary name and renamed; each entry carries a checksum.
class PipelineArchive {
 public:
  /// Reads an archive. A missing or foreign file throws BadInput; a damaged entry is left out, counted and reported.
  static PipelineArchive load(const std::string& path);
  void add(const std::string& cache_key, const Binary& binary) { entries_[cache_key] = binary; }
  const Binary* find(const std::string& cache_key) const;
  void save(const std::string& path) const;
  size_t size() const { return entries_.size(); }
  size_t damaged() const { return damaged_; }

 private:
  std::map<std::string, Binary> entries_;
  size_t damaged_ = 0;
};

/// Pipelines of one device: in memory, then (optionally) an archive, then one file each on disk, then the compiler.
/// Safe to use from several threads and several processes: what one of them compiles, the others wait for. A key is
/// compiled once per cache in memory, and once per folder.
class PipelineCache {
 public:
  /// `folder` empty: no disk cache. A folder that cannot be written is reported once and then only read.
  PipelineCache(Device& device, std::string folder);
  ~PipelineCache();

  /// The pipeline for a source; throws CompileError, BadInput for a source that is not there.
  const Pipeline& get(const KernelSource& source);

  /// Looked into for all that is not loaded yet. Not while another thread is in get().
  void attach(PipelineArchive archive) { archive_ = std::move(archive); }
  /// What this cache has loaded so far, as an archive.
  PipelineArchive archive() const;
  /// Gets all of them, on as many threads as `workers` says; what fails on any is thrown here.
  void prepare(const std::vector<KernelSource>& sources, unsigned workers);

  /// $ATTENTION_PROTO_CACHE, else $XDG_CACHE_HOME/attention-proto, else ~/.cache/attention-proto.
  static std::string default_folder();

 private:
  struct Slot;
  Binary find_or_compile(const KernelSource& source, const std::string& cache_key, std::string& origin);

  Device& device_;
  std::string folder_;
  std::atomic<bool> writable_{true};
  std::optional<PipelineArchive> archive_;
  mutable std::mutex mutex_;  // of the table; each slot has its own
  std::unordered_map<KernelSource, std::unique_ptr<Slot>, KernelSourceHash> slots_;
};

/// The folder kernels are read from, as an absolute path: $ATTENTION_PROTO_SOURCE, else the tree this was built from.
std::string source_root();

/// Text of a kernel source or header, from KernelSource::includes, else from the source root. Throws BadInput.
std::string read_source(const KernelSource& source, const std::string& path);

struct SourceFile {
  std::string path, text;
};
/// The source and every header it reaches through #include "NAME", each once, the source first. Throws BadInput.
std::vector<SourceFile> reached_sources(const KernelSource& source);

/// SHA-256 over the prologue, the source and every header reached through #include "NAME" (paths are under the root),
/// and over the same of every fragment.
std::string source_sha256(const KernelSource& source);

}  // namespace attn
