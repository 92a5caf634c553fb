// What the reverse device reaches: the text of the cpu's serves.
#include "common/device/kernels/ceiling.cpu.cpp"
