// main() of the test binaries. If every test was skipped or no test was selected, it returns 77, which ctest reports as
// a skipped test.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  const bool all_skipped = tests.skipped_test_count() == tests.test_to_run_count();
  return status == 0 && all_skipped && !testing::GTEST_FLAG(list_tests) ? 77 : status;
}
