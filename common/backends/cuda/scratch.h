// A folder for files of the toolkit's programs and libraries.
#pragma once

#include <memory>

#include "common/base/temporary_folder.h"

namespace attn {

/// Null if no folder can be made, or if the disk is nearly full: NVRTC ends the process if it cannot write its trace.
std::unique_ptr<TemporaryFolder> scratch_folder();

}  // namespace attn
