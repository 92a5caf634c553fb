// Replaces the C library's flock() in a test program, so that a test can run as on a file system without locks. Only
// one file of a program may include this header.
#pragma once

#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace attn::test {
inline int lock_error = 0;  // the error of flock(); 0: flock() asks the system
}

extern "C" int flock(int descriptor, int operation) noexcept {
  if (attn::test::lock_error == 0) return static_cast<int>(syscall(SYS_flock, descriptor, operation));
  errno = attn::test::lock_error;
  return -1;
}
