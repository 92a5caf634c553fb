// What a device can do beside running kernels that it is given: for each operation of the project how it launches it.
// A device's folder (common/backends) has its page of operations; nothing outside asks which device it is.
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

/// Arithmetic of which a ceiling is measured.
struct CeilingArithmetic {
  std::string entry;                 // of the kernel
  double group_flops = 0;            // of a threadgroup in an iteration
  FunctionConstants constants = {};  // that differ from those of the file
};

/// The kernels that find out what a device reaches (common/device/kernels/ceiling.h).
struct CeilingKernels {
  std::string file;             // of all of them, under the source root
  FunctionConstants constants;  // what is the same for all of the file's kernels
  uint32_t threads;             // of a threadgroup
  double lanes;                 // f32 numbers that a threadgroup works on at once
  double fma_flops;             // of a threadgroup in an iteration of ceiling_fma
  uint32_t copy_threads;
  size_t read_floats;      // that a threadgroup of ceiling_read writes
  size_t copy_bytes;       // of source and of target, far larger than the caches
  int copy_slices;         // a repetition copies one of them; by its next turn the others have evicted it
  size_t copy_part_bytes;  // of a threadgroup; 0 for as many threadgroups as the arithmetic has
  size_t read_part_bytes;  // likewise
};

class CeilingOperation {
 public:
  virtual ~CeilingOperation() = default;
  virtual CeilingKernels kernels(const DeviceInfo& device) const = 0;
  /// Products that are faster than multiply-adds; of f32 products of tf32. Nothing: the device has none.
  virtual std::optional<CeilingArithmetic> products(const DeviceInfo& device, DType dtype) const = 0;
};

/// A kernel of independent elements.
struct ElementKernel {
  uint32_t threads = 1;  // of a threadgroup
  int64_t elements = 0;  // of a threadgroup; 0: one threadgroup does all
};

/// What sweeps span on the device.
struct SweepSpan {
  /// Which of an experiment's two loads takes the device some milliseconds: that of a few cores, or that of a GPU.
  enum class Load { small, large } load = Load::small;
  std::string dtype = "f32";                            // of elements, where nothing else is said
  std::string other_dtype = "bf16";                     // that is compared with it
  int64_t heads = 8;                                    // of queries, where a launch has all of a layer's
  std::vector<std::string> ladder = {};                 // variants of attention that are compared; empty: all
  std::vector<int64_t> block_r = {64}, block_c = {64};  // tiles of attention that are compared

  bool large() const { return load == Load::large; }
};

/// Null and nothing: the device has no kernel for it.
struct Operations {
  std::string_view kernel_ending = {};              // of the files of its kernels: "cpu.cpp"; empty: no files
  const FlashOperation* flash = nullptr;            // attention; with pages also of prompts over caches
  const RopeOperation* rope = nullptr;              // a launch that turns Q and K
  const DecodeOperation* decode = nullptr;          // few queries over a cache, also over shared pages
  const LinearOperation* linear = nullptr;          // linear attention
  const CeilingOperation* ceilings = nullptr;       // what the device reaches
  std::optional<uint32_t> mask_list_threads = {};   // lists of key blocks for masks
  std::optional<uint32_t> append_threads = {};      // new keys and values into a cache
  std::optional<ElementKernel> stage = {};          // tables of a caller, copied in the order of its stream
  std::optional<ElementKernel> user_function = {};  // a user's function on its own, for the oracle
  /// What was compiled ahead of time and the device loads: "object" or "cubin"; empty: nothing.
  std::string_view ahead_of_time = {};
  SweepSpan span = {};

  /// The file of a kernel, by its path without ending.
  std::string kernel_file(std::string_view path) const;
};

/// Of a device that has no kernels of the project's.
const Operations& no_operations();

/// "this device has no kernel for WHAT"
std::string no_kernel_for(std::string_view what);

}  // namespace attn
