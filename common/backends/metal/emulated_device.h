// The device metal:emulated: runs Metal's kernels on the host and checks them (emulator/emulator.h). It shows that a
// kernel is right; its times say nothing about Apple's GPUs, so it takes no times.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// "metal:emulated", or with ":order=N" a device whose launches all have the order N of threads (msl::Run::order).
/// Throws BadInput for another spec.
std::unique_ptr<Device> open_metal_device(std::string_view spec);

}  // namespace attn
