// The axes and the sweeps of proto8_extension.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/flash.h"
#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

/// The number of tokens of the smallest call. With one head the call's kernel has one threadgroup and little work, so
/// the call's overhead shows.
inline constexpr int64_t one_tile = 16;

std::vector<AxisInfo> extension_axes();
Sweep extension_sweep(const std::string& profile, const DeviceInfo& device);
void complete_extension(Case& config, const DeviceInfo& device);

/// Returns the configuration of a case's attention, with the tile that the engine chooses.
FlashConfig extension_config(const Case& config, const DeviceInfo& device);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec extension_experiment();

}  // namespace attn
