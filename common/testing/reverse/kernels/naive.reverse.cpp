// Variant `naive` of the reverse device: the text of the cpu's serves, since both call a kernel once for a threadgroup.
#include "common/attention/kernels/naive.cpu.cpp"
