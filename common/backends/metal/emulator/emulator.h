// The emulator compiles a kernel in Metal's language (MSL) with clang, and runs it on the host. Threads take turns in a
// chosen order, and the emulator checks each access to memory. The emulator knows nothing of attention, and needs none
// of Apple's tools.
//
// These are the checks. The message of a fault begins with the name of the check:
//   race         two threads access a byte, at least one access writes, at least one is not atomic, and no barrier or
//                fence orders the two
//   coherence    a threadgroup accesses what another threadgroup wrote, a fence orders the two, but not both accesses
//   are
//                atomic or through pointers with coherent(device)
//   divergence   not all threads reach a barrier; not all lanes of a simdgroup reach a simdgroup function; a shuffle
//                reads a lane that does not exist
//   unwritten    a thread reads threadgroup memory that no thread has written
//   bounds       an access outside of all buffers, or outside of an array in threadgroup memory
//   alignment    an access at an address that is no multiple of the element's alignment
//   number       infinity or NaN in arithmetic, where fast mathematics assumes finite numbers; an integer divided by
//                zero, or the least integer divided by -1
//   limits       more than 32 KB of threadgroup memory, or more than 1024 threads
// A kernel with a pointer to the wrong address space does not compile.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/launch/plan.h"
#include "common/source/binary.h"

namespace attn::msl {

inline constexpr size_t most_threadgroup_bytes = 32768;
inline constexpr uint32_t most_threads = 1024;
inline constexpr uint32_t lanes_per_simdgroup = 32;
inline constexpr int newest_language = 320;  // Metal 3.2, for macOS 15

/// A kernel's text, and everything else that decides the kernel's code.
struct Source {
  std::string path;         // the file's path, which errors and faults name
  std::string function;     // the kernel's name, or an instance of a template: "attention<float, 64>"
  std::string before = {};  // text before the file's text, on separate lines
  std::map<std::string, std::string> texts = {};  // texts to read instead of files, by path; may include `path`
  std::vector<std::string> folders = {};          // #include "NAME" looks in these folders after the file's own folder
  /// Functions that are compiled separately: their names, and their texts. The kernel declares them or has a table.
  std::vector<std::pair<std::string, std::string>> linked = {};
  /// Values of [[function_constant(n)]], by the constant's name, or by n in decimal digits.
  std::map<std::string, double> constants = {};
  /// The version of the language that the kernel is written for, as __METAL_VERSION__: 300, 310 or 320. A feature of a
  /// later version does not compile.
  int language = newest_language;
  bool fast_math = true;  // Metal's default: the compiler assumes that no number is infinite or NaN
  std::string key = {};   // the name in errors; empty: the function
};

/// Safe to use from several threads.
class Compiler {
 public:
  Compiler();
  ~Compiler();
  /// Returns the compiler's version and options as a text: everything that decides the code, except the source.
  std::string identity() const;
  /// Throws CompileError, and BadInput if the file cannot be read.
  Binary compile(const Source& source) const;

 private:
  Binary compile_here(const Source& source) const;

  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

/// What differs between generations of Apple's GPUs.
enum class Generation {
  m1,  // the M1 to the M4: lane l has elements of row (l >> 4 & 1) * 4 + (l >> 1 & 3) of a simdgroup matrix, from
       // column (l >> 3 & 1) * 4 + (l & 1) * 2 on. Apple does not document this order; public reverse engineering found
       // it.
  other_fragments,  // lane l has elements of row l / 4, from column l % 4 * 2 on: an order that no kernel may rest on
  tf32,             // as m1, but a product of matrices rounds operands of type float to TF32, as reported of the M5
};

/// The names of the generations, in their order: "m1", ...
inline constexpr const char* generations[] = {"m1", "other_fragments", "tf32"};

/// Memory that a kernel may touch through pointers to `device` or `constant` memory.
struct Memory {
  std::string name;  // in faults: "buffer 0"
  const void* data = nullptr;
  size_t bytes = 0;
};

struct Run {
  Grid grid = {};                                     // threadgroups
  Grid threads = {};                                  // of a threadgroup
  std::map<uint32_t, const void*> buffers = {};       // the address of [[buffer(n)]]
  std::map<uint32_t, size_t> threadgroup_bytes = {};  // of [[threadgroup(n)]]
  std::vector<Memory> memory = {};                    // must not overlap
  /// The order of the threadgroups, and of the threads in a threadgroup: 0 is from first to last, 1 is from last to
  /// first. Each other number is a seed of random orders. Threads run in rounds: in a round each thread that can go on
  /// has one turn. With a seed, each round has a new random order.
  uint32_t order = 0;
  Generation generation = Generation::m1;
};

/// A loaded kernel.
class Kernel {
 public:
  /// Throws CompileError.
  explicit Kernel(const Binary& binary);
  ~Kernel();

  /// Runs the kernel on this thread. At the first fault, throws DeviceFault with a message of one line. Throws BadInput
  /// if an argument is missing. A process does one run at a time; other callers wait.
  void run(const Run& run) const;
  /// Bytes of threadgroup memory that the kernel declares.
  size_t threadgroup_bytes() const;
  /// The numbers n of the kernel's parameters with the attribute "buffer" or "threadgroup", such as [[buffer(n)]].
  std::vector<uint32_t> indices(const std::string& attribute) const;
  /// The addresses of the functions in Source::linked. A visible_function_table is the address of an array of them.
  const std::vector<const void*>& functions() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace attn::msl
