// A user's feature map. The map in this file returns x unchanged. UserFunction::add_to() makes the text that replaces
// this file (KernelSource::includes). Kernels include this file within a namespace.
float feature(float x) { return x; }
