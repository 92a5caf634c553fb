// The CUDA device: one GPU, through the driver and NVRTC.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// "cuda" is "cuda:0", the first device that CUDA_VISIBLE_DEVICES leaves visible. Throws BadInput for a spec that is
/// neither "cuda" nor "cuda:N", and DeviceMissing if there is no such device, no driver or no NVRTC.
std::unique_ptr<Device> open_cuda_device(std::string_view spec);

/// Opens the device `ordinal` for a program that uses CUDA itself. The device works in the primary context of the GPU.
/// The runtime API uses this context too. Every call restores the calling thread's context, if the thread had one. All
/// work is on the program's stream (a CUstream or cudaStream_t; null is the default stream), after the work that the
/// program has put on that stream. The stream must outlive the device.
///
/// enqueue() neither allocates nor waits. So a program may capture the stream into a CUDA graph. During a capture
/// allocate(), load(), upload(), download() and submit() throw std::logic_error, so load kernels and allocate before
/// the capture. submit(), upload() and download() wait for all work on the stream, and throw DeviceTimeout if the wait
/// takes longer than 10 s.
///
/// Throws BadInput for a negative ordinal, and DeviceMissing as open_cuda_device() does.
std::unique_ptr<Device> open_cuda_device_for(int ordinal, void* stream);

/// Opens the CUDA device for Device::open_for_caller(). Throws the errors of open_cuda_device().
std::unique_ptr<Device> open_cuda_device_for_caller(std::string_view spec, const Caller& caller);

}  // namespace attn
