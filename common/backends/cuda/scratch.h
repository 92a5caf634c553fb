// A folder for the files that programs and libraries of the toolkit want.
#pragma once

#include <memory>

#include "common/base/temporary_folder.h"

namespace attn {

/// Null where none can be made or the disk is nearly full, since NVRTC ends the process when it cannot write its trace.
std::unique_ptr<TemporaryFolder> scratch_folder();

}  // namespace attn
