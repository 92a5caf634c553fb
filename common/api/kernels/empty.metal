// Does nothing, so the time of a call is the time to reach the device and to return. Takes any grid. The kernel
// has not run on Apple hardware yet.
#include "common/kernel/metal.h"

kernel void empty(constant int& unused [[buffer(0)]]) { (void)unused; }
