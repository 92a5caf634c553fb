// The CUDA device: one GPU, through the driver and NVRTC.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// "cuda" is "cuda:0", the first of the devices that CUDA_VISIBLE_DEVICES leaves. Throws BadInput, and DeviceMissing
/// where there is no such device, no driver or no NVRTC.
std::unique_ptr<Device> open_cuda_device(std::string_view spec);

/// The device `ordinal` for a program that uses CUDA itself: in its primary context, which is that of the runtime API
/// and stays current to the threads that call, and with all work on the program's stream (a CUstream or cudaStream_t;
/// null is the default stream), behind what the program has put there. The stream must outlive the device.
///
/// enqueue() neither allocates nor waits, so that a program may capture the stream into a CUDA graph meanwhile. All
/// else but releasing throws std::logic_error while it does: load kernels and allocate before. submit(), uploads and
/// downloads wait for the whole stream, and throw DeviceTimeout where that takes longer than a submission may.
///
/// Throws BadInput for a negative ordinal, and what open_cuda_device() throws.
std::unique_ptr<Device> open_cuda_device_for(int ordinal, void* stream);

/// As Device::open_for_caller() says. Throws what open_cuda_device() throws.
std::unique_ptr<Device> open_cuda_device_for_caller(std::string_view spec, std::optional<void*> stream);

}  // namespace attn
