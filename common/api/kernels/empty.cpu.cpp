// Does nothing, so the time of a call is the time of the way to the device. Any grid.
#include "common/kernel/cpu.h"

extern "C" void empty(const int*, const Threadgroup*) {}
