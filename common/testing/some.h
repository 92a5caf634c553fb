// Lets a test of many cases run only some of its cases. The ctest tests with the label `long` run all cases.
#pragma once

#include <cstdlib>

namespace attn::test {

/// Takes every `nth` case of nested loops, beginning with the first; every case if $ATTN_TEST_ALL is set. Each value of
/// each loop is still taken if the loops are long enough, and if no loop's number of values has a factor in common with
/// `nth`.
class Some {
 public:
  explicit Some(int nth) : nth_(all() ? 1 : nth) {}
  static bool all() { return std::getenv("ATTN_TEST_ALL") != nullptr; }
  bool skips() { return next_++ % nth_ != 0; }

 private:
  const int nth_;
  int next_ = 0;
};

}  // namespace attn::test
