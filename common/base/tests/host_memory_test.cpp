#include "common/base/host_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/platform.h"
#include "common/base/temporary_folder.h"
#include "common/testing/forks.h"

namespace attn {
namespace {

class HostMemoryTest : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((folder_.path() / file).parent_path());
    std::ofstream(folder_.path() / file) << text;
  }
  double available() const { return available_host_bytes(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

// RLIMIT_AS limits the address space of a process; `ulimit -v` sets this limit.
TEST_F(HostMemoryTest, AProcessMayHaveALimit) {
  if (is_emulated()) GTEST_SKIP() << "qemu sets no limits of the address space";
  test::expect_in_a_fork([&] {
    write("proc/self/statm", "1 1 1 1 0 1 0\n");
    const rlimit limit = {rlim_t{1} << 40, rlim_t{1} << 40};
    const bool limited = setrlimit(RLIMIT_AS, &limit) == 0;
    return limited && available() == 0x1p40 - static_cast<double>(sysconf(_SC_PAGESIZE));
  });
}

TEST_F(HostMemoryTest, WhereNothingIsKnownThereIsNoLimit) { EXPECT_TRUE(std::isinf(available())); }

TEST_F(HostMemoryTest, AGroupMayHaveLessThanTheMachine) {
  write("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:  4000 kB\n");
  EXPECT_EQ(available(), 4000 * 1024);
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "10\n");
  EXPECT_EQ(available(), 4000 * 1024) << "the word max was taken as a limit";
  write("sys/fs/cgroup/outer/memory.max", "3000\n");
  write("sys/fs/cgroup/outer/memory.current", "2500\n");
  EXPECT_EQ(available(), 500) << "the limit of the outer group was ignored";
  write("sys/fs/cgroup/outer/memory.stat", "anon 2300\ninactive_file 200\nactive_file 7\n");
  EXPECT_EQ(available(), 700) << "inactive cached files were not counted as free";
}

TEST_F(HostMemoryTest, GroupsOfVersion1) {
  write("proc/meminfo", "MemAvailable:  4000 kB\n");
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8000\n");
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available(), 7000);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "900\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available(), 0);
}

}  // namespace
}  // namespace attn
