// A folder for files of the toolkit's programs and libraries.
#pragma once

#include <memory>

#include "common/base/temporary_folder.h"

namespace attn {

/// A new folder. Null if no folder can be made. Also null if the disk is nearly full, because NVRTC ends the process if
/// it cannot write its trace.
std::unique_ptr<TemporaryFolder> scratch_folder();

}  // namespace attn
