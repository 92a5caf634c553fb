// Does nothing, so the time of a call is the time of the way to the device. Any grid.
//
// Checked: empty[] without spills
extern "C" __global__ void empty(const __grid_constant__ int) {}
