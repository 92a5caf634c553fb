// Does nothing: what is left of a call is the way to the device. Any grid.
//
// Checked: empty[] without spills
extern "C" __global__ void empty(const __grid_constant__ int) {}
