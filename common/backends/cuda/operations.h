// The operations of the cuda device.
#pragma once

#include "common/device/operations.h"

namespace attn {

const Operations& cuda_operations();

// The parts of cuda_operations(). Each part has a file of its own.
const FlashOperation& cuda_flash();
const RopeOperation& cuda_rope();
const DecodeOperation& cuda_decode();
const LinearOperation& cuda_linear();
const CeilingOperation& cuda_ceilings();

}  // namespace attn
