// What specialisation costs, as problems of the host: compiling many variants, finding them again in memory, on disk
// and in an archive, starting a process; and what it buys, as a launch with constants read at run time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/experiment/experiment.h"
#include "proto4_constants/prepared.h"
#include "proto4_constants/variants.h"

namespace attn {

/// The launch of a case, or the kernels that it is about: of many variants the first. Or why it does not run.
CasePlan constants_plan(const Case& config, const Setting& setting);

/// Makes launches with constants read at run time; those of one shape share their tensors.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> constants_launches();
/// Makes the cases about the host. What they need to find on disk is made once a run, in a temporary folder.
std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> constants_host_problems();

/// Getting many variants, and so their sources, in one of the ways there are.
std::unique_ptr<HostProblem> variants_problem(Experiment& lab, const Case& config, std::vector<Variant> variants,
                                              std::vector<KernelSource> sources, std::shared_ptr<Prepared> prepared);
/// A new process, from its start to its first result, with `variants` variants on disk.
std::unique_ptr<HostProblem> start_problem(Experiment& lab, const Case& config, size_t variants, Variant first,
                                           std::shared_ptr<Prepared> prepared);

/// The child process of the start_* tasks: opens the device, gets the first variant of a kernel's grid, launches it
/// once and prints a JSON line with what that took; then checks the result. Arguments: device, kernel, dtype, seed,
/// cache folder (may be empty), archive (may be empty). Returns the exit status.
int first_result(const std::vector<std::string>& arguments);
inline constexpr const char* first_result_option = "--first-result";

}  // namespace attn
