// Runs the threads of a kernel on one host thread. A thread runs until its next barrier, simdgroup function or atomic
// operation, or until it reads threadgroup memory that no thread has written. Then the next thread takes its turn.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/backends/metal/emulator/emulator.h"

namespace attn::msl {

/// What the machine needs to know of compiled code.
struct Code {
  using Entry = void (*)(void* const* arguments);
  struct Parameter {
    std::string attribute;  // "buffer", "threadgroup", "thread_position_in_grid", ...
    uint32_t index = 0;     // of a buffer, or of a threadgroup argument
  };
  struct Array {
    std::string name;
    size_t offset = 0, bytes = 0;  // in the machine's threadgroup memory
  };
  std::string function;
  Entry entry = nullptr;
  std::vector<Parameter> parameters;
  std::vector<Array> arrays;        // variables in threadgroup memory
  std::vector<std::string> places;  // lines of the text: "tuned.metal:44"; compiled code names a place by its index
  std::vector<Memory> constants;    // the kernel's own data in the constant address space
};

/// The gap between two arrays in threadgroup memory, so that an access beyond an array is found.
inline constexpr size_t threadgroup_gap_bytes = 256;
/// The bytes of the array that stands for threadgroup memory. There is room for the 32 KB that a launch may use, and
/// for at least 1900 gaps.
inline constexpr size_t threadgroup_arena_bytes = size_t{1} << 20;

/// The symbols that compiled code calls, and their addresses.
std::vector<std::pair<std::string, const void*>> machine_symbols();

/// Runs a launch. Throws DeviceFault at the first fault, and BadInput if an argument is missing.
void run_on_machine(const Code& code, const Run& run);

}  // namespace attn::msl
