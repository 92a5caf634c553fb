// Describes the machine and the work tree for a record, without names of the machine and of users.
#pragma once

#include <string>
#include <vector>

#include "common/base/json.h"

namespace attn {

/// The current time, as 2025-01-31T12:00:00Z.
std::string utc_now();

/// The number of processes that mpirun, srun or torchrun has started together, if this process is the first; else 1.
int ranks_started_here();

/// The compiler of the host code: "gcc 12.2.0" or "clang 19.1.7", for example.
std::string host_compiler();

/// {commit, dirty} of the work tree whose top is `folder`; null if there is none, or git fails.
Json git_state(const std::string& folder);

/// {commit, diff, machine, files}, and if an emulator runs this program {emulated: true}: runs of one session have
/// equal values. `diff` is a hash of the uncommitted changes to tracked files; `commit` and `diff` may be null.
/// `machine` is a hash that tells machines and boots apart. `files` has a hash of all files of each of `folders`, which
/// lie inside `folder`.
Json session(const std::string& folder, const std::vector<std::string>& folders = {});

}  // namespace attn
