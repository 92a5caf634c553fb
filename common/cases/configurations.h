// Makes typed configurations from cases.
#pragma once

#include "common/attention/flash.h"
#include "common/paged/decode.h"
#include "common/records/case.h"

namespace attn {

// Both functions throw BadInput for a case that no device can run.
FlashConfig flash_config_of(const Case& config);
DecodeConfig decode_config_of(const Case& config);

}  // namespace attn
