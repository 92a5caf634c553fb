// The CUDA device: one GPU, through the driver and NVRTC.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// "cuda" is "cuda:0", the first of the devices that CUDA_VISIBLE_DEVICES leaves. Throws BadInput, and DeviceMissing if
/// there is no such device, no driver or no NVRTC.
std::unique_ptr<Device> open_cuda_device(std::string_view spec);

/// The device `ordinal`, for a program that uses CUDA itself. It works in the device's primary context, which the
/// runtime API uses too, and which stays current to the threads that call. All work is on the program's stream (a
/// CUstream or cudaStream_t; null is the default stream), after the work that the program has put there. The stream
/// must outlive the device.
///
/// enqueue() neither allocates nor waits. So a program may capture the stream into a CUDA graph. During a capture all
/// other functions except releases throw std::logic_error: load kernels and allocate before. submit(), uploads and
/// downloads wait for the whole stream, and throw DeviceTimeout if that takes longer than a submission may.
///
/// Throws BadInput for a negative ordinal, and what open_cuda_device() throws.
std::unique_ptr<Device> open_cuda_device_for(int ordinal, void* stream);

/// Device::open_for_caller() of this device. Throws what open_cuda_device() throws.
std::unique_ptr<Device> open_cuda_device_for_caller(std::string_view spec, std::optional<void*> stream);

}  // namespace attn
