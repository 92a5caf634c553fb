// Machine code, its properties, and its form in a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/source/kernel_source.h"

namespace attn {

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
  bool operator==(const CompileTimes&) const = default;
};

struct Binary {
  std::string key;
  std::string source_sha256;  // attn::source_sha256() of the source
  std::string code_sha256;    // over the machine code in `code`
  /// cpu: an object file, or an archive of several. cuda: a cubin. metal: a line of JSON, then texts and Metal's
  /// archive; metal:emulated: a line of JSON, then an object file.
  std::string code;
  CompileTimes times;             // of the compilation that made the code, even in an earlier process
  int registers = -1;             // per thread; -1 if the device does not report it
  int64_t spill_bytes = -1;       // stack bytes of a thread's spills; -1 if the device does not report it
  int64_t threadgroup_bytes = 0;  // bytes of threadgroup memory that the kernel itself declares; a dispatch adds more
  FunctionConstants run_time;     // values that Device::load() sets; not part of the code, and not in a file
  bool operator==(const Binary&) const = default;
};

/// Returns a text: a line with the checksum of the rest of the text, a line of JSON, and the code. The JSON has the
/// cache key, so that deserialize() refuses the text of another entry.
std::string serialize(const std::string& cache_key, const Binary& binary);
/// Returns nullopt if serialize() did not write the text for this key, or the text is damaged.
std::optional<Binary> deserialize(const std::string& cache_key, std::string_view text);

}  // namespace attn
