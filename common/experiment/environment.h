// Describes the machine and the work tree for a record. The description leaves out the machine's name and the machine's
// users.
#pragma once

#include <string>
#include <vector>

#include "common/base/json.h"

namespace attn {

/// The current time, as 2025-01-31T12:00:00Z.
std::string utc_now();

/// The number of processes that mpirun, srun or torchrun has started together, if this process is the first of these
/// processes; else 1.
int ranks_started_here();

/// The compiler of the host code: "gcc 12.2.0" or "clang 19.1.7", for example.
std::string host_compiler();

/// {commit, dirty} of the work tree whose top is `folder`; null if `folder` is not the top of a work tree, or git
/// fails.
Json git_state(const std::string& folder);

/// {commit, diff, machine, files}. Runs of one session have equal values. `commit` is the commit of the work tree
/// `folder`, and `diff` a hash of the uncommitted changes to tracked files. `commit` is null without a commit, and
/// `diff` is null without uncommitted changes. `machine` is a hash of the CPU's model, the number of hardware threads
/// and the boot id: this hash tells machines apart and does not name them. `folders` are folders inside `folder`;
/// `files` has one hash for each of these folders, over all files in it.
Json session(const std::string& folder, const std::vector<std::string>& folders = {});

}  // namespace attn
