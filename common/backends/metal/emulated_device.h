// The device metal:emulated runs Metal's kernels on the host and checks each access to memory (emulator/emulator.h).
// Times on the host say nothing about Apple's GPUs, so the device reports times of 0.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// Opens "metal:emulated", "metal:emulated:order=N" or "metal:emulated:gpu=G". With ":order=N" all launches run their
/// threads in order N (msl::Run::order). G is a name of msl::generations. Throws BadInput for another `spec`.
std::unique_ptr<Device> open_metal_device(std::string_view spec);
/// Opens "metal:emulated" for a program that gives kernels its own memory. The device does not know the program's
/// buffers. So of all accesses to device memory, the device reports only an access through a null pointer as out of
/// bounds.
std::unique_ptr<Device> open_metal_device_for_caller(std::string_view spec, const Caller& caller);

}  // namespace attn
