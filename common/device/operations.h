// The operations of a device: for each operation of the project, how the device launches it. A device's folder
// (common/backends) lists its operations; code outside that folder does not ask which device it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/tensor.h"
#include "common/source/kernel_source.h"

namespace attn {

struct DeviceInfo;
class FlashOperation;   // common/attention/flash.h
class RopeOperation;    // common/attention/rope.h
class DecodeOperation;  // common/paged/decode.h
class LinearOperation;  // common/linear/launch.h

/// Arithmetic whose ceiling is measured.
struct CeilingArithmetic {
  std::string entry;                 // of the kernel
  double group_flops = 0;            // of a threadgroup in an iteration
  FunctionConstants constants = {};  // constants that differ from CeilingKernels::constants
};

/// The kernels that measure a device's ceilings (common/device/kernels/ceiling.h).
struct CeilingKernels {
  std::string file;             // the file of all kernels, under the source root
  FunctionConstants constants;  // the constants of all of the file's kernels
  uint32_t threads;             // of a threadgroup
  double lanes;                 // f32 numbers that a threadgroup works on at once
  double fma_flops;             // of a threadgroup in an iteration of ceiling_fma
  uint32_t copy_threads;
  size_t read_floats;      // floats that a threadgroup of ceiling_read writes
  size_t copy_bytes;       // of source and of target, far larger than the caches
  int copy_slices;         // a repetition copies one slice; by the slice's next turn the others have evicted it
  size_t copy_part_bytes;  // of a threadgroup; 0: as many threadgroups as the arithmetic has
  size_t read_part_bytes;  // likewise
};

class CeilingOperation {
 public:
  virtual ~CeilingOperation() = default;
  virtual CeilingKernels kernels(const DeviceInfo& device) const = 0;
  /// Matrix products that are faster than multiply-adds; for f32 products of tf32. Nothing if the device has none.
  virtual std::optional<CeilingArithmetic> products(const DeviceInfo& device, DType dtype) const = 0;
};

/// A kernel of independent elements.
struct ElementKernel {
  uint32_t threads = 1;  // of a threadgroup
  int64_t elements = 0;  // of a threadgroup; 0: one threadgroup has all elements
};

/// The span of sweeps on the device.
struct SweepSpan {
  /// Which of an experiment's two loads takes the device some milliseconds: the load for a few cores, or for a GPU.
  enum class Load { small, large } load = Load::small;
  std::string dtype = "f32";                            // the default type of elements
  std::string other_dtype = "bf16";                     // the type that is compared with it
  int64_t heads = 8;                                    // query heads, if a launch has all heads of a layer
  std::vector<std::string> ladder = {};                 // variants of attention that are compared; empty: all
  std::vector<int64_t> block_r = {64}, block_c = {64};  // tiles of attention that are compared

  bool large() const { return load == Load::large; }
};

/// A member that is null or nothing: the device has no kernel for that operation.
struct Operations {
  std::string_view kernel_ending = {};              // of the files of its kernels: "cpu.cpp"; empty: no files
  const FlashOperation* flash = nullptr;            // attention; with pages also of prompts over caches
  const RopeOperation* rope = nullptr;              // a launch that turns Q and K
  const DecodeOperation* decode = nullptr;          // few queries over a cache, also over shared pages
  const LinearOperation* linear = nullptr;          // linear attention
  const CeilingOperation* ceilings = nullptr;       // measurements of the device's ceilings
  std::optional<uint32_t> mask_list_threads = {};   // lists of key blocks for masks
  std::optional<uint32_t> append_threads = {};      // new keys and values into a cache
  std::optional<ElementKernel> stage = {};          // tables of a caller, copied in the order of its stream
  std::optional<ElementKernel> user_function = {};  // a user's function on its own, for the oracle
  /// The kind of code, compiled ahead of time, that the device loads: "object" or "cubin"; empty: none.
  std::string_view ahead_of_time = {};
  SweepSpan span = {};

  /// The file of a kernel, from its path without the ending.
  std::string kernel_file(std::string_view path) const;
};

/// The operations of a device that has no kernels of the project.
const Operations& no_operations();

/// "this device has no kernel for WHAT"
std::string no_kernel_for(std::string_view what);

}  // namespace attn
