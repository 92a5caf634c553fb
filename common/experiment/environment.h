// What a record says of the machine and the tree it came from. The machine's name and its users are left out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace attn {

/// Now, as 2025-01-31T12:00:00Z.
std::string utc_now();

/// "gcc 12.2.0" or "clang 19.1.7": what compiled the host code.
std::string host_compiler();

/// {commit, dirty} of the work tree whose top is `folder`; null where that is none, or there is no git.
nlohmann::ordered_json git_state(const std::string& folder);

}  // namespace attn
