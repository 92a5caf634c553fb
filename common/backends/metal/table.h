// Kernels that call functions through a visible_function_table.
#pragma once

#include <cstdint>

#include "common/device/device.h"

namespace attn {

/// A kernel of a Metal device. If its text has a visible_function_table, the functions of KernelSource::fragments are
/// in the table, in their order.
class TableKernel : public Kernel {
 public:
  /// Returns the 8 bytes by which a kernel finds the table in memory; 0 if the kernel has no table.
  virtual uint64_t table() const = 0;
};

}  // namespace attn
