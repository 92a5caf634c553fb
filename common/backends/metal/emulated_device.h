// The device metal:emulated runs Metal's kernels on the host and checks each access to memory (emulator/emulator.h). It
// shows whether a kernel is right. Times on the host say nothing about Apple's GPUs, so the device reports times of 0.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// Opens "metal:emulated", or with ":order=N" a device that runs all launches in the order N of threads
/// (msl::Run::order). Throws BadInput for another `spec`.
std::unique_ptr<Device> open_metal_device(std::string_view spec);
/// Opens "metal:emulated" for a program that gives kernels its own memory. The device does not know the program's
/// buffers. So of the accesses to device memory, it reports only an access through a null pointer as out of bounds.
std::unique_ptr<Device> open_metal_device_for_caller(std::string_view spec, const Caller& caller);

}  // namespace attn
