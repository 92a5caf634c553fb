// Kernels that a generator compiled ahead of time. proto5_codegen/tools/generate_cuda.py writes these kernels to
// proto5_codegen/generated: cubins, and for each generator NAME.json with a description of each cubin. A build does not
// need the generators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/json.h"
#include "common/device/encoder.h"
#include "proto5_codegen/generators.h"

namespace attn {

/// A parameter of a kernel, in the generator's calling convention.
struct AheadParameter {
  /// What the kernel takes. tensor_map: a map of a tensor [heads, rows, columns]; each box of the map lies inside one
  /// head. null: a null pointer. number: a float.
  enum Kind { tensor_map, pointer, null, int32, int64, number } kind = null;
  std::string tensor = {};              // of a map or a pointer: "q", "k", "v", "in", "out" or "slopes"
  std::string rows = {}, columns = {};  // of a map: the names of the two lengths, such as "kv_len" and "head_dim"
  uint32_t box_rows = 0, box_columns = 0;
  int swizzle = 0;                   // of a map: the swizzle in bytes
  std::vector<std::string> of = {};  // of an integer: the lengths to multiply; of a number: "scale" or "cap"
  int64_t per = 1;                   // of an integer: the product's divisor; the quotient is rounded up
};

struct AheadKernel {
  /// The number of threadgroups along one dimension of the grid: the product of the lengths that `of` names, divided by
  /// `per` and rounded up.
  struct Side {
    std::vector<std::string> of;
    int64_t per = 1;
  };

  std::string file = {}, cubin_sha256 = {}, entry = {};
  std::string work = {}, dtype = {};
  int64_t head_dim = 0, causal = 0;
  int64_t most_kv_len = 0;      // the longest kv_len that the kernel takes; 0: any
  int64_t kv_len_multiple = 1;  // kv_len must be a multiple of this number
  std::vector<Side> grid = {};
  uint32_t threads = 1;
  size_t threadgroup_bytes = 0;
  std::vector<AheadParameter> parameters = {};
  Json tile = {}, search = {};  // the constants, and the result of the search for the constants
  double compile_s = 0;
  int64_t source_lines = 0;  // lines of the work's function and of the functions that it calls, without comments
};

/// All kernels of one generator.
struct AheadIndex {
  std::string generator, version, source_sha256;
  std::vector<AheadKernel> kernels;
};

/// Parses the text of an index file. If the text is no index, throws BadInput with a message that begins with `name`.
AheadIndex parse_ahead_index(const std::string& text, const std::string& name);
/// Returns the index of a generator's kernels, or nothing if there is no index. Here and in the functions below,
/// `generator` is the name of a generator in a case ("halide_gpu").
std::optional<AheadIndex> read_ahead_index(const std::string& generator);

/// Returns the kernel for the case's work, dtype, head_dim and mask, or null if there is none. The kernel's
/// `most_kv_len` is 0 or at least the case's kv_len. If several kernels fit, returns the kernel with the smallest
/// `most_kv_len`. The function ignores `kv_len_multiple`; ahead_plan() checks it.
const AheadKernel* find_ahead(const AheadIndex& index, const CodegenCase& config);

/// Returns the plan of a case, with `work` unset.
Plan ahead_plan(const CodegenCase& config, const DeviceInfo& device);

bool is_ahead(std::string_view generator);

/// Returns the arguments of a case's kernel; `pointers` has the tensors on the device. Throws BadInput for an unknown
/// name and for a tensor that no tensor map can describe, and DeviceMissing if there is no driver.
Arguments ahead_arguments(const AheadKernel& kernel, const CodegenCase& config, const CodegenParams& pointers);

}  // namespace attn
