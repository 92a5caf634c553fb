// What specialisation costs, as problems of the host: compiling many variants, finding them again in memory, on disk
// and in an archive, starting a process; and what it buys, as a launch with constants read at run time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/experiment/experiment.h"

namespace attn {

/// Makes the problems of an experiment. What they need to find on disk is made once a run, in a temporary folder.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&)> constants_problems();

/// The child process of the start_* tasks: opens the device, gets the first variant of a kernel's grid, launches it
/// once and prints a JSON line with what that took; then checks the result. Arguments: device, kernel, dtype, seed,
/// cache folder (may be empty), archive (may be empty). Returns the exit status.
int first_result(const std::vector<std::string>& arguments);
inline constexpr const char* first_result_option = "--first-result";

}  // namespace attn
