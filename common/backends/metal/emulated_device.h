// The device metal:emulated: runs Metal's kernels on the host and checks them (emulator/emulator.h). It shows that a
// kernel is right; its times say nothing about Apple's GPUs, so it takes no times.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// Throws BadInput for another spec than "metal:emulated".
std::unique_ptr<Device> open_metal_device(std::string_view spec);
/// As open_metal_device(), for a program with memory of its own: accesses out of bounds are not found, because the
/// device does not know the program's buffers.
std::unique_ptr<Device> open_metal_device_for_caller(std::string_view spec, const Caller& caller);

}  // namespace attn
