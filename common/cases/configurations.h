// Converts a Case, a list of axis=value, to the struct FlashConfig or DecodeConfig.
#pragma once

#include "common/attention/flash.h"
#include "common/paged/decode.h"
#include "common/records/case.h"

namespace attn {

// Both functions throw BadInput if kv_heads does not divide q_heads, or if the name of a dtype is unknown.
// flash_config_of() also throws BadInput if the name of the layout is unknown.
FlashConfig flash_config_of(const Case& config);
DecodeConfig decode_config_of(const Case& config);

}  // namespace attn
