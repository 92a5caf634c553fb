// Words of Metal that headers of all dialects need: in Metal a pointer or a reference says in which memory its object
// lies, and there is no `long long`. In other dialects GLOBAL, LOCAL and CONSTANT are empty, INT64 is `long long`, and
// the words are no part of a kernel's identity (expanded_text() in common/source/kernel_source.h).
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
