// The claims of proto4_constants, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. The claims are about:
/// - the time to compile a variant (a kernel with one set of constants compiled in);
/// - compiling against reading from disk or from an archive;
/// - many workers against one worker;
/// - precompiled headers against none;
/// - new processes that find a cache or an archive against new processes that compile;
/// - constants that are read at run time against constants that are compiled in.
std::vector<Claim> constants_claims();

}  // namespace attn
