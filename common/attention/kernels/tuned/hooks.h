// What the kernels of the family `tuned` (tuned.cpu.cpp) include.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/before.h"
#include "common/kernel/cpu.h"
// Hooks come after cpu.h, because their texts use it.
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/listed_blocks.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/pages.h"
#include "common/attention/kernels/rotate.h"
#include "common/attention/kernels/score.h"
// repair.h comes after the hooks, because it calls them.
#include "common/attention/kernels/repair.h"
