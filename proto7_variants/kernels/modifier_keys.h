// The keys hook of the modifiers, to which user_keys.h adds the user's bounds. UserFunctions replaces this file if the
// modifiers have another keys hook.
#pragma once

#include "common/attention/kernels/modifiers/keys.h"
