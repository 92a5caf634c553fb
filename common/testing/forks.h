// Parts of tests that run in a forked process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace attn::test {

/// Starts `child` in a forked process, which ends with the status 0 if `child` returns true. A child that hangs is
/// ended after a minute.
template <typename Child>
pid_t start_fork(const Child& child) {
  const pid_t process = fork();
  if (process == 0) {
    alarm(60);
    _exit(child() ? 0 : 1);
  }
  return process;
}

inline void expect_success(pid_t process) {
  int status = -1;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
}

/// Expects that `child` returns true in a forked process.
template <typename Child>
void expect_in_a_fork(const Child& child) {
  expect_success(start_fork(child));
}

}  // namespace attn::test
