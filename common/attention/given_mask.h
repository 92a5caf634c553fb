// A caller's mask, as attention takes it: lists of key blocks, and a bit for each pair (kernels/mask_bits.h).
#pragma once

#include "common/attention/flash.h"
#include "common/attention/kernels/mask_bits.h"
#include "common/attention/mask_view.h"
#include "common/device/encoder.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"

namespace attn {

/// Returns the launch, without its grid, of the kernel that makes the lists and the bits for the launch `attention`.
/// The device must take masks: Operations::mask_bits is set.
Launch mask_bits_launch(const Launch& attention, const DeviceInfo& device);

/// Memory for the lists and the bits of a mask, and the kernel that fills this memory. The device and the pipelines
/// must outlive the GivenMask.
class GivenMask {
 public:
  /// Takes the launch "attention" from the plan. The hooks of this launch were made with Modifiers::mask_bits. `mask`
  /// says which axes the mask has. `for_each_sequence` says whether another rule of the hooks depends on the sequence.
  /// Throws CompileError, and BadInput if the device does not take masks.
  GivenMask(Device& device, PipelineCache& pipelines, const FlashConfig& config, const Plan& plan, const MaskView& mask,
            bool for_each_sequence);

  /// Encodes the launch that makes the lists and the bits from `mask`. `mask` has the same axes as the constructor's
  /// mask. `data` points to the hooks' data. The data begin with a ModifierData whose member `mask` is bits().
  void encode(CommandEncoder& encoder, const MaskView& mask, const void* data) const;

  const MaskLists& lists() const { return filled_.lists; }
  const MaskBits& bits() const { return filled_.bits; }

 private:
  Launch launch_;
  const Kernel* kernel_;
  Buffer counts_, entries_, words_, finished_;
  MaskBitsParams filled_{};
};

}  // namespace attn
