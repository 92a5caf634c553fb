// What proto4_constants varies: how variants are got, how many, by how many workers; and which constants are read at
// run time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"
#include "proto4_constants/variants.h"

namespace attn {

std::vector<AxisInfo> constants_axes();
/// Launches that differ in what is read at run time are measured in turn; the host's work is a case at a time.
std::vector<std::string> constants_compared_axes();

/// `profile` is "quick" (minutes on two cores) or "full".
Sweep constants_sweep(const std::string& profile, const DeviceInfo& device);

/// Axes that say nothing of a task are 0, 1 worker, or "none".
void complete_constants(Case& config, const DeviceInfo& device);

/// Why the device has no such kernel, variants or constants at run time, else empty.
std::string constants_unable(const Case& config, const DeviceInfo& device);

/// What a case with task=run launches.
Variant run_variant(const Case& config);
/// What a case with task=compile_one compiles: that, of a small shape.
Variant compiled_variant(const Case& config);

}  // namespace attn
