// The operations of the cpu device.
#pragma once

#include "common/device/operations.h"

namespace attn {

const Operations& cpu_operations();

// The parts of cpu_operations(). Each part has a file of its own.
const FlashOperation& cpu_flash();
const RopeOperation& cpu_rope();
const DecodeOperation& cpu_decode();
const LinearOperation& cpu_linear();
const CeilingOperation& cpu_ceilings();

}  // namespace attn
