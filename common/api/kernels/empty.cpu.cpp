// Does nothing: what is left of a call is the way to the device. Any grid.
#include "common/kernel/cpu.h"

extern "C" void empty(const int*, const Threadgroup*) {}
