// The CUDA device: one GPU, through the driver and NVRTC.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// "cuda" is "cuda:0", the first of the devices that CUDA_VISIBLE_DEVICES leaves. Throws BadInput, and DeviceMissing
/// where there is no such device, no driver or no NVRTC.
std::unique_ptr<Device> open_cuda_device(std::string_view spec);

}  // namespace attn
