// Macros for headers that all dialects share. In Metal a pointer or a reference must name the memory in which its
// object lies, and there is no `long long`. In other dialects GLOBAL, LOCAL and CONSTANT are empty. The hash that
// identifies a kernel's source does not depend on the macros, because expanded_text() (common/source/kernel_source.h)
// replaces them first.
#pragma once

#ifdef __METAL_VERSION__
#define GLOBAL device
#define LOCAL thread
#define CONSTANT constant
#define INT64 long
#else
#define GLOBAL    // memory of the device
#define LOCAL     // variables of a thread
#define CONSTANT  // constants outside of functions
#define INT64 long long
#endif
