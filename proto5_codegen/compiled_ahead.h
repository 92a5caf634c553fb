// Kernels that a generator elsewhere has compiled ahead of time: what proto5_codegen/tools/generate_cuda.py keeps in
// proto5_codegen/generated, NAME.json with a description of each cubin. A build needs none of these generators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/device/encoder.h"
#include "proto5_codegen/generators.h"

namespace attn {

/// A parameter as the generator's calling convention wants it.
struct AheadParameter {
  /// tensor_map: of [heads, rows, columns], a box of one head; null: a pointer to nothing.
  enum Kind { tensor_map, pointer, null, int32, int64, number } kind = null;
  std::string tensor = {};              // "q", "k", "v", "in", "out", "slopes": of a map or a pointer
  std::string rows = {}, columns = {};  // of a map: the names of lengths
  uint32_t box_rows = 0, box_columns = 0;
  int swizzle = 0;                   // of a map: in bytes
  std::vector<std::string> of = {};  // of int32 and int64: a product of lengths; of a number: "scale" or "cap"
  int64_t per = 1;                   // of int32 and int64: what the product is divided by, rounded up
};

struct AheadKernel {
  /// A side of the grid: so many threadgroups for the product of lengths, `per` of it each.
  struct Side {
    std::vector<std::string> of;
    int64_t per = 1;
  };

  std::string file = {}, cubin_sha256 = {}, entry = {};
  std::string work = {}, dtype = {};
  int64_t head_dim = 0, causal = 0;
  int64_t most_kv_len = 0;      // 0: any
  int64_t kv_len_multiple = 1;  // of which kv_len has to be one
  std::vector<Side> grid = {};
  uint32_t threads = 1;
  size_t threadgroup_bytes = 0;
  std::vector<AheadParameter> parameters = {};
  nlohmann::ordered_json tile = {}, search = {};  // constants, and what the search for them found
  double compile_s = 0;
  int64_t source_lines = 0;  // that say something, of the work's function and those that it calls
};

/// All that one generator has made.
struct AheadIndex {
  std::string generator, version, source_sha256;
  std::vector<AheadKernel> kernels;
};

/// Throws BadInput, with `name`, for what is none.
AheadIndex parse_ahead_index(const std::string& text, const std::string& name);
/// Nothing where none of the generator's kernels is kept. The generator as a case names it, as in all functions here.
std::optional<AheadIndex> read_ahead_index(const std::string& generator);

/// That of a case; null where there is none.
const AheadKernel* find_ahead(const AheadIndex& index, const CodegenCase& config);

/// The launch of a case, but for its work, or why there is none.
Plan ahead_plan(const CodegenCase& config, const DeviceInfo& device);

/// Whether the generator's kernels are such.
bool is_ahead(std::string_view generator);

/// A case's parameters; `pointers` has the tensors on the device. Throws BadInput for a tensor that no map describes,
/// and DeviceMissing without a driver.
Arguments ahead_arguments(const AheadKernel& kernel, const CodegenCase& config, const CodegenParams& pointers);

}  // namespace attn
