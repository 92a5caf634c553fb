// The variants that an application would ship of one of proto1's kernels: a grid of head dims, tiles and flags.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/attention/launch.h"
#include "common/device/device.h"

namespace attn {

/// One set of constants.
struct Variant {
  FlashConfig config;
  bool alibi = false;

  AttentionHooks hook() const;
  KernelSource source(const DeviceInfo& device) const;
  Plan plan(const DeviceInfo& device) const;
};

/// How many variants the grid of head_dim x block_r x block_c x causal x alibi has, 3 x 3 x 2 x 2 x 2 of them.
inline constexpr size_t base_variants = 72;

/// What variants compute to be checked: small and odd.
AttentionShape small_shape(int64_t head_dim, bool causal);

/// Those of `kernel` (a variant of proto1_flash) that run on the device: first the base grid, then finer ones, several
/// hundred in all. Any first N of them are spread over their grid. Their shapes are small_shape().
std::vector<Variant> variant_grid(const std::string& kernel, DType dtype, const DeviceInfo& device);

/// The function constants of `kernel` that may be run-time parameters, as axis names in the order of the study:
/// head_dim, block_r, block_c, causal, alibi. Others size arrays, vectors or register tiles, or are template arguments.
std::vector<std::string> run_time_axes(const std::string& kernel, const DeviceInfo& device);

/// The constants behind a value of the axis run_time: "none", one of run_time_axes(), or "all" of them.
std::set<std::string> run_time_constants(const std::string& value, const std::string& kernel, const DeviceInfo& device);

}  // namespace attn
