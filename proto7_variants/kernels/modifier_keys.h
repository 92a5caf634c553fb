// The modifiers' visible_keys(). UserFunctions replaces this file's text if the modifiers need another visible_keys().
#pragma once

#include "common/attention/kernels/modifiers/keys.h"
