// Replaces the C library's flock() in a test program, so that a test can run as on a file system without locks. Only
// one file of a program may include this header.
#pragma once

#include <dlfcn.h>
#include <sys/file.h>

#include <cerrno>

namespace attn::test {
inline int lock_error = 0;  // the error of flock(); 0: flock() asks the system
}

extern "C" int flock(int descriptor, int operation) noexcept(noexcept(flock(0, 0))) {
  static const auto own = reinterpret_cast<int (*)(int, int)>(dlsym(RTLD_NEXT, "flock"));
  if (attn::test::lock_error == 0) return own(descriptor, operation);
  errno = attn::test::lock_error;
  return -1;
}
