// The variants of a kernel of proto1_flash that an application might ship: a grid of head_dims, tiles and flags.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/attention/launch.h"
#include "common/device/device.h"

namespace attn {

/// One set of constants of a kernel.
struct Variant {
  FlashConfig config;
  bool alibi = false;

  AttentionHooks hook() const;
  KernelSource source(const DeviceInfo& device) const;
  Plan plan(const DeviceInfo& device) const;
};

/// The number of variants in the base grid of `tuned`, head_dim x block_r x block_c x causal x alibi: 3 x 3 x 2 x 2 x 2
/// on the cpu.
inline constexpr size_t base_variants = 72;

/// Returns the small shape on which a variant is checked.
AttentionShape small_shape(int64_t head_dim, bool causal);

/// Returns the variants of `kernel` that run on the device: first the base grid, then a finer grid. `kernel` is a value
/// of the axis `variant` of proto1_flash. For any N the first N variants are spread over their grid. The shapes of the
/// variants are small_shape().
std::vector<Variant> variant_grid(const std::string& kernel, DType dtype, const DeviceInfo& device);

/// Returns the function constants of `kernel` that may be run-time parameters, as names of axes. The kernel's other
/// constants must be compiled in: most are template arguments, or sizes of arrays, vectors or register tiles.
std::vector<std::string> run_time_axes(const std::string& kernel, const DeviceInfo& device);

/// Returns the names of the constants that a kernel reads at run time. `value` is the value of the axis `run_time`;
/// "all" means all of run_time_axes().
std::set<std::string> run_time_constants(const std::string& value, const std::string& kernel, const DeviceInfo& device);

}  // namespace attn
