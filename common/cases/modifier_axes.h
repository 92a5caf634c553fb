// The axes of modifiers, and the modifiers that a case asks for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/attention/backend.h"
#include "common/attention/modifiers.h"
#include "common/cases/configurations.h"
#include "common/records/case.h"

namespace attn {

/// The axes of Modifiers and of the user's functions, each with what turns it off; rotary_axes() say more of `rope`.
const std::vector<std::pair<std::string, AxisValue>>& modifier_axes();
/// What a user may say of them, but for `rope` and the user's functions.
std::vector<AxisInfo> modifier_infos();
/// The names of those that a case turns on.
std::vector<std::string> modifiers_on(const Case& config);
/// The axes that say more about `rope`, each with its value where nothing turns.
const std::vector<std::pair<std::string, AxisValue>>& rotary_axes();

/// What a case asks for. Throws BadInput for what makes no sense on any device.
Modifiers modifiers_of(const Case& config);
Rotary rotary_of(const Case& config);
/// Why a case is no other than one without some modifier; empty where it is. A sweep crosses such values.
std::string pointless(const Modifiers& modifiers, const Case& config);

/// The attention that the hooks modify: with a prefix its mask is the hook's alone. Throws as flash_config_of() does.
FlashConfig modified_config(const Case& config);

}  // namespace attn
