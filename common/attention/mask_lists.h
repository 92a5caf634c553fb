// Lists of key blocks on a device, for kernels with a mask hook (kernels/mask.h).
#pragma once

#include "common/attention/backend.h"
#include "common/attention/hook.h"
#include "common/device/device.h"
#include "common/launch/plan.h"

namespace attn {

/// What makes the lists that `attention` walks: a kernel of the same hooks.
Launch mask_launch(const FlashConfig& config, const DeviceInfo& device, const Launch& attention, ListScope scope);

/// Gives the lists of a launch's parameters, which the device makes when it is first asked for those of a hook's data;
/// they are kept until it is asked for those of other data. `kernel` is that of `launch`, from mask_launch().
FlashBackend::Lists mask_lists(Device& device, const FlashConfig& config, const Launch& launch, const Kernel& kernel);

}  // namespace attn
