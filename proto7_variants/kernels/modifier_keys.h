// The modifiers' function visible_keys(), which returns the range of keys that a query sees. user_keys.h cuts this
// range to the user's bounds. UserFunctions puts another text in the place of this file if the modifiers need another
// visible_keys().
#pragma once

#include "common/attention/kernels/modifiers/keys.h"
