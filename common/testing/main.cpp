// main() of the test binaries: that of GoogleTest, but 77 where every test that ran was skipped.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  const bool all_skipped = tests.test_to_run_count() > 0 && tests.skipped_test_count() == tests.test_to_run_count();
  return status == 0 && all_skipped ? 77 : status;
}
