// The cpu device: host threads run kernels that clang and LLVM compiled in this process.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// "cpu" uses a thread for each core that the affinity mask and the control group's quota allow this process to use;
/// "cpu:threads=N" uses N threads. Kernels run with denormal floats flushed to zero, also on the calling thread. Throws
/// BadInput for any other spec.
std::unique_ptr<Device> open_cpu_device(std::string_view spec);
/// Opens the CPU device for Device::open_for_caller(). If `caller.run` is set, the device makes no threads:
/// caller.run() runs the threadgroups, in at most info().units pieces. Throws as open_cpu_device() does.
std::unique_ptr<Device> open_cpu_device_for_caller(std::string_view spec, const Caller& caller);

}  // namespace attn
