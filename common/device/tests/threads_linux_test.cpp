// Tests threads where only Linux lets a program choose their cores and see their states.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "common/backends/cpu/pool.h"
#include "common/device/tests/support.h"

namespace attn {
namespace {

using LinuxTest = test::CpuTest;

TEST_F(LinuxTest, TakesNoMoreThreadsThanCoresItMayRunOn) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  EXPECT_LE(Device::open("cpu")->info().units, static_cast<unsigned>(CPU_COUNT(&all)));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const uint32_t units = Device::open("cpu")->info().units;
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(units, 1u);
}

/// The number of other threads of this process that run or are ready to run.
int running_threads() {
  int running = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    running += text.find(") R") != std::string::npos;  // "123 (name) S ..."
  }
  return running;
}

TEST(LinuxPoolTest, SleepsBetweenSubmissions) {
  using namespace std::chrono_literals;
  ThreadPool pool(4);
  for (int submission = 0; submission < 3; ++submission) {
    pool.begin();
    pool.run(100, [](uint64_t, unsigned) {});
    pool.end();
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    while (running_threads() > 0 && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(running_threads(), 0) << "workers spin while there is nothing to do";
  }
}

}  // namespace
}  // namespace attn
