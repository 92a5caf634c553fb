// Does nothing, so the time of a call is the time to reach the device and to return. Takes any grid.
#include "common/kernel/cpu.h"

extern "C" void empty(const int*, const Threadgroup*) {}
