#include "common/base/file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <iterator>

#include "common/base/temporary_folder.h"
#include "common/testing/flock.h"

namespace attn {
namespace {

// Three objects have one target at the same time. With locks the second object would wait for the first.
TEST(PendingFile, OnAFileSystemWithoutLocksWritersDoNotShareAFile) {
  const TemporaryFolder folder;
  const std::filesystem::path target = folder.path() / "target";
  test::lock_error = ENOLCK;
  {
    PendingFile first(target), second(target), third(target);
    EXPECT_TRUE(first.write("first"));
    EXPECT_EQ(read_file(target), "first");
    EXPECT_TRUE(second.write("the second"));
    EXPECT_EQ(read_file(target), "the second");
  }
  test::lock_error = 0;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "other files are left";
}

}  // namespace
}  // namespace attn
