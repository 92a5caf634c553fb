// The device `metal`: an Apple GPU, by Apple's Metal. It has not run on Apple hardware yet: the tests run it on Linux,
// with a fake of Metal that runs kernels on the emulator (fake/fake.h).
#pragma once

#include <memory>

#include "common/device/device.h"

namespace attn {

/// Opens the default GPU. Compiles and runs the kernel `probe` (common/device/kernels/probe.metal). Throws
/// DeviceMissing if there is no GPU, or if the probe finds that the kernels' assumptions do not hold.
///
/// The address of allocated memory is an address for kernels; the host cannot use it. All devices of a process share
/// the memory. Times come from GPUStartTime and GPUEndTime of a command buffer for each interval between timestamps.
std::unique_ptr<Device> open_metal_gpu();

}  // namespace attn
