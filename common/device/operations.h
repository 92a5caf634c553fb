// How a device launches each operation of the project. A device's folder (common/backends) fills in an Operations, so
// that other code seldom asks which device it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/tensor.h"
#include "common/launch/plan.h"
#include "common/source/kernel_source.h"

namespace attn {

struct DeviceInfo;
class FlashOperation;   // common/attention/flash.h
class RopeOperation;    // common/attention/rope.h
class DecodeOperation;  // common/paged/decode.h
class LinearOperation;  // common/linear/launch.h

/// A kernel that measures the device's highest rate of one kind of arithmetic.
struct CeilingArithmetic {
  std::string entry;                 // the kernel's function
  double group_flops = 0;            // flops of a threadgroup in an iteration
  FunctionConstants constants = {};  // constants that differ from CeilingKernels::constants
};

/// The kernels that measure a device's ceilings (common/device/kernels/ceiling.h).
struct CeilingKernels {
  std::string file;             // under the source root
  FunctionConstants constants;  // of all kernels
  uint32_t threads;             // threads of a threadgroup that does arithmetic
  double lanes;                 // f32 numbers that a threadgroup works on at once
  double fma_flops;             // flops of a threadgroup in an iteration of ceiling_fma
  uint32_t copy_threads;        // threads of a threadgroup of ceiling_copy and ceiling_read
  size_t read_floats;           // floats that a threadgroup of ceiling_read writes
  size_t copy_bytes;            // bytes of the source of ceiling_copy, and of its target
  /// Bytes of source and target together in test_flush() (common/experiment/ceilings.h). The device's caches must hold
  /// them even if other programs use the last-level cache too.
  size_t flush_test_bytes;
  /// Slices of the source. Each repetition copies the next slice, so that with several slices none is cached.
  int copy_slices;
  size_t copy_part_bytes;  // bytes that a threadgroup copies; 0: the copy has as many threadgroups as the arithmetic
  size_t read_part_bytes;  // bytes that a threadgroup reads; 0: the read has as many threadgroups as the arithmetic
};

class CeilingOperation {
 public:
  virtual ~CeilingOperation() = default;
  virtual CeilingKernels kernels(const DeviceInfo& device) const = 0;
  /// Returns the kernel of matrix products (on the cpu also of dot products) of `dtype`, if there is one. The kernel
  /// may be slower than multiply-adds of f32. For DType::f32 a cuda device multiplies tf32.
  virtual std::optional<CeilingArithmetic> products(const DeviceInfo& device, DType dtype) const = 0;
};

/// A kernel that works on independent elements.
struct ElementKernel {
  uint32_t threads = 1;  // threads of a threadgroup
  int64_t elements = 0;  // elements of a threadgroup; 0: one threadgroup has all elements
};

/// The launches of each operation on one device; null or empty if the device has no kernel for the operation.
struct Operations {
  std::string_view kernel_ending = {};              // how kernels' file names end: "cpu.cpp"; empty: no kernel files
  const FlashOperation* flash = nullptr;            // attention, also of prompts over a paged cache
  const RopeOperation* rope = nullptr;              // rotation of Q and K in a separate launch
  const DecodeOperation* decode = nullptr;          // few queries over a cache, also over shared pages
  const LinearOperation* linear = nullptr;          // linear attention
  const CeilingOperation* ceilings = nullptr;       // measurements of the device's ceilings
  std::optional<uint32_t> mask_list_threads = {};   // threads of a threadgroup that lists key blocks for masks
  std::optional<ElementKernel> mask_bits = {};      // reads a caller's mask; an element is a block of keys
  std::optional<uint32_t> append_threads = {};      // threads of a threadgroup that appends keys and values to a cache
  std::optional<ElementKernel> expand = {};         // converts a cache of 8 bits to Q's type; an element is a key
  std::optional<ElementKernel> stage = {};          // copies a caller's tables, on the caller's stream
  std::optional<ElementKernel> user_function = {};  // calls a user's function outside attention, for the oracle
  Grid most_threadgroups = {UINT32_MAX, UINT32_MAX, UINT32_MAX};  // the most that a launch may have in each dimension
  /// The kind of code compiled ahead of time that the device loads: "object" or "cubin"; empty: none.
  std::string_view ahead_of_time = {};

  /// Adds kernel_ending.
  std::string kernel_file(std::string_view path) const;
};

/// For a device without kernels of the project.
const Operations& no_operations();

/// Returns "this device has no kernel for WHAT".
std::string no_kernel_for(std::string_view what);

}  // namespace attn
