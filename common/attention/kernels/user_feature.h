// A user's feature map. The map in this file returns x unchanged. The text that replaces this file
// (KernelSource::includes) has the functions of math.h first, then a #line, then the user's text. Kernels include this
// file within a namespace.
float feature(float x) { return x; }
