// ASAN_POISON_MEMORY_REGION and ASAN_UNPOISON_MEMORY_REGION; they do nothing in a build without AddressSanitizer.
// Clang's header is in a separate package, which such a build does not need.
#pragma once

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif
