// Defines ASAN_POISON_MEMORY_REGION and ASAN_UNPOISON_MEMORY_REGION, which do nothing in a build without
// AddressSanitizer. Clang's own header for them is in a separate package, which a build without AddressSanitizer does
// not need.
#pragma once

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif
