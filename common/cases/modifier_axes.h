// The axes of modifiers, and the modifiers that a case asks for.
#pragma once

#include <string>
#include <vector>

#include "common/attention/flash.h"
#include "common/attention/modifiers.h"
#include "common/cases/configurations.h"
#include "common/records/case.h"

namespace attn {

/// An axis, and the value that turns it off.
struct ModifierAxis {
  AxisInfo axis;
  AxisValue off;
};
/// Returns the axes of Modifiers and of the user's functions (score_function and mask_function). Of the axes of RoPE
/// the result has only `rope`. An option with a number (options.def) has its name, its help and its values from its
/// row.
const std::vector<ModifierAxis>& modifier_axes();
/// Returns the names of the axes of modifier_axes() that a case turns on.
std::vector<std::string> modifiers_on(const Case& config);
/// Returns the axes of RoPE other than `rope`, each with its value in a case without RoPE.
const std::vector<ModifierAxis>& rotary_axes();

/// Both functions throw BadInput if a value of a RoPE axis is invalid, or cannot be combined with the case's other
/// values.
Modifiers modifiers_of(const Case& config);
Rotary rotary_of(const Case& config);
/// Returns why a value of a modifier axis changes nothing, or cannot be combined with the case's other values; an empty
/// text if neither holds. A sweep that crosses axes has such cases.
std::string pointless(const Modifiers& modifiers, const Case& config);

/// Returns the configuration of the attention that the hooks modify. With a prefix this attention is not causal,
/// because the hook of the prefix also applies the causal mask. Throws as flash_config_of() does.
FlashConfig modified_config(const Case& config);

}  // namespace attn
