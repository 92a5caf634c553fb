// Lists of key blocks on a device, for kernels with a mask hook (kernels/mask.h).
#pragma once

#include <string>

#include "common/attention/flash.h"
#include "common/attention/hook.h"
#include "common/device/device.h"
#include "common/launch/plan.h"

namespace attn {

/// Returns the source of a kernel with the hooks of `attention`. Of the constants and fragments of `attention`, the
/// source gets those that the kernel's text names.
KernelSource with_hooks_of(const KernelSource& attention, const std::string& path, const std::string& entry);

/// Returns the launch that makes the lists that the launch `attention` walks. The kernel that makes the lists has the
/// hooks of `attention`.
Launch mask_launch(const FlashConfig& config, const DeviceInfo& device, const Launch& attention, ListScope scope);

/// Returns a function that gives the lists for a launch's parameters. The device makes the lists when the function is
/// first called with the data of a hook. The lists stay until the function is called with other data. `launch` comes
/// from mask_launch(), and `kernel` is the kernel of `launch`.
FlashOperation::Lists mask_lists(Device& device, const FlashConfig& config, const Launch& launch, const Kernel& kernel);

}  // namespace attn
