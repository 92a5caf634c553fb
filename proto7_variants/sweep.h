// The axes and the sweeps of proto7_variants.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/answer.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> variants_axes();
/// Returns the axes in which the cases of one comparison may differ: the modifiers, the way to find key/value heads,
/// and the tile.
std::vector<std::string> variants_compared_axes();
/// Returns the axes of modifiers, rotary positions, key/value heads and tasks. If the command line names one or more of
/// these axes, the sweep leaves out each block that has an axis of this set which the command line does not name
/// (ExperimentSpec::narrowing_axes).
std::set<std::string> variants_narrowing_axes();
Sweep variants_sweep(const std::string& profile, const DeviceInfo& device);
/// Returns the sweep of a run with a user's function. The sweep has only the axes of shapes. The file's option adds the
/// function's axis, with the values `none` and the file's function.
Sweep functions_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that a case does not name. By default the task is attention, key/value heads are found by an index,
/// and modifiers are off; the other axes get the values that complete_modified() chooses. Turns off the axes that mean
/// nothing for the task.
void complete_variants(Case& config, const DeviceInfo& device);

/// Returns what the answer at the end of a run shows: the claims that give advice, and the axes whose values all give
/// the same results.
AnswerSpec variants_answer();

}  // namespace attn
