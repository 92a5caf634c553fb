// The sweep of proto4_constants. The axes include the ways to get variants (kernels with one set of constants compiled
// in), the number of variants, the number of worker threads, and the constants that a kernel reads at run time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/answer.h"
#include "common/records/case.h"
#include "proto4_constants/variants.h"

namespace attn {

std::vector<AxisInfo> constants_axes();
/// Returns the axis in which compared launches differ: run_time, the constants that a launch reads at run time.
/// Compared launches take turns while they are measured. In the sweep each case of the host is measured alone.
std::vector<std::string> constants_compared_axes();

/// Returns the sweep of a profile. "quick" takes minutes on two cores. The other profile is "full".
Sweep constants_sweep(const std::string& profile, const DeviceInfo& device);

/// Sets the axes that the case lacks. An axis that the task does not use always gets a fixed value: 0 or 1, or "none"
/// for run_time. A case with task=compile_one always gets the tile that proto1_flash chooses.
void complete_constants(Case& config, const DeviceInfo& device);

/// Returns the reason why the device cannot run the case: the device lacks the kernel, the kernel has too few variants,
/// the device cannot precompile headers, the kernel cannot read the case's constants at run time, or run_time=all means
/// a single constant. Returns an empty text if the device can run the case.
std::string constants_unable(const Case& config, const DeviceInfo& device);

/// Returns the variant that a case with task=run launches.
Variant run_variant(const Case& config);
/// Returns the variant that a case with task=compile_one compiles: run_variant(), with small_shape().
Variant compiled_variant(const Case& config);

/// Returns the contents of the answer that a run prints at its end: the claims whose advice the answer gives.
AnswerSpec constants_answer();

}  // namespace attn
