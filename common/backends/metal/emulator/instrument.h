// Puts the emulator's checks into LLVM's intermediate representation of a kernel.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace llvm {
class Module;
}  // namespace llvm

namespace attn::msl {

/// Followed by a number: the name of a variable that points to a function which is linked.
inline constexpr const char* visible_prefix = "msl_visible_";

/// What the loader needs to know of a kernel; see Code in machine.h.
struct Facts {
  struct Parameter {
    std::string attribute;
    uint32_t index = 0;
  };
  struct Array {
    std::string name;
    uint64_t offset = 0, bytes = 0;
  };
  std::vector<Parameter> parameters;
  std::vector<Array> arrays;
  std::vector<std::string> places;
  uint64_t constants = 0;  // entries of the table `msl_constants`; an entry is an address and a number of bytes
};

/// Gives function constants their values, and lays the kernel's arrays out in threadgroup memory. Puts a check before
/// each access to device, constant and threadgroup memory, and before each division of integers. If `fast_math` is set,
/// also checks whether operands and results of arithmetic are finite. `library` is the path of the emulator's
/// metal_stdlib: a check names a line of the user's text, never a line of metal_stdlib. Returns the facts. `error` gets
/// one line if the kernel is not allowed.
Facts instrument(llvm::Module& module, const std::map<std::string, double>& constants, bool fast_math,
                 const std::string& library, std::string& error);

}  // namespace attn::msl
