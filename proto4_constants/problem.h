// The problems of proto4_constants measure the cost and the gain of variants: kernels with one set of constants
// compiled in. Problems of the host measure the cost, for example the time to compile variants. Launches measure the
// gain: they compare constants that are compiled in with constants that are read at run time.
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

/// Returns the launch of a case, or the reason why the case does not run. A case of many variants has the launch of the
/// first variant.
CasePlan constants_plan(const Case& config, const Setting& setting);

/// Makes the launches of task=run. Launches on equal tensors (FlashConfig::same_tensors) share the tensors.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> constants_launches();
/// Makes the problems of the host. The files that these problems find on disk are made once a run, in a temporary
/// folder.
std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> constants_host_problems();

/// Makes a problem that gets `variants` in the way that the task of the case says. `sources` are the sources of
/// `variants`. `prepared` may be null if the task only compiles.
std::unique_ptr<HostProblem> variants_problem(Experiment& lab, const Case& config, std::vector<Variant> variants,
                                              std::vector<KernelSource> sources, std::shared_ptr<Prepared> prepared);
/// Makes a problem that starts a new process, and times the process from its start to its first result. With start_disk
/// the process finds a cache folder with at least the first `variants` variants. With start_archive the process finds
/// an archive with exactly these variants.
std::unique_ptr<HostProblem> start_problem(Experiment& lab, const Case& config, size_t variants, Variant first,
                                           std::shared_ptr<Prepared> prepared);

/// Runs the child process of start_problem(). The process opens the device, gets the first variant of a kernel's grid,
/// launches the variant once, and prints a JSON line with the times of these steps. Then the process checks the
/// launch's result. Arguments: device, kernel, dtype, seed, cache folder (may be empty), archive (may be empty).
/// Returns the exit status.
int first_result(const std::vector<std::string>& arguments);
inline constexpr const char* first_result_option = "--first-result";  // no option for users

}  // namespace attn
