// A folder for files of the toolkit's programs and libraries.
#pragma once

#include <memory>

#include "common/base/temporary_folder.h"

namespace attn {

/// Returns a new folder, or null if no folder can be made. Also returns null if the disk has less than 64 MiB of free
/// space, because NVRTC ends the process if it cannot write its trace.
std::unique_ptr<TemporaryFolder> scratch_folder();

}  // namespace attn
