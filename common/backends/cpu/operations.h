// What the cpu device can do.
#pragma once

#include "common/device/operations.h"

namespace attn {

const Operations& cpu_operations();

// Its parts, one file each.
const FlashOperation& cpu_flash();
const RopeOperation& cpu_rope();
const DecodeOperation& cpu_decode();
const LinearOperation& cpu_linear();
const CeilingOperation& cpu_ceilings();

}  // namespace attn
