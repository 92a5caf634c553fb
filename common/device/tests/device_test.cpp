// Tests what only the cpu device must do; any_device_test.cpp tests what all devices must do.
#include "common/device/device.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/platform.h"
#include "common/base/stopwatch.h"
#include "common/device/pipeline_cache.h"
#include "common/device/tests/support.h"

namespace attn {
namespace {

using test::kernel_text;
using test::message_of;
using test::sanitizes;

using DeviceTest = test::CpuTest;

/// Specs that are refused, separated by "|", and what the message says is allowed.
struct RefusedSpecs {
  const char *backend, *specs, *allowed;
};

TEST(DeviceOpenTest, RefusesBadSpecs) {
  for (const auto& [backend, specs, allowed] :
       {RefusedSpecs{"cpu", "|gpu|CPU| cpu|cpux|cudax|:|:threads=2", "cpu:threads=N"},
        {"cpu", "metal:gpu", "metal:emulated:order=N"},
        {"cpu",
         "cpu:|cpu:threads|cpu:threads=|cpu:threads=0|cpu:threads=-1|cpu:threads=+2|cpu:threads=2x|cpu:threads= 2|"
         "cpu:threads=2 |cpu:threads=2.0|cpu:threads=1025|cpu:threads=4294967297|cpu:threads=99999999999999999999|"
         "cpu:thread=2|cpu:Threads=2|cpu:0|cpu:threads=2,threads=3",
         "cpu:threads=N with N from 1 to 1024"},
        {"cuda", "cuda:|cuda:-1|cuda:x|cuda:0x|cuda:0,1|cuda: 0|cuda:99999999999", "cuda:N"}}) {
    if (!Device::is_built(backend)) continue;
    std::istringstream all(specs);
    for (std::string spec; std::getline(all, spec, '|');) {
      const std::string message = message_of<BadInput>([&] { Device::open(spec); });
      test::expect_words(message, {fmt::format("'{}'", spec), allowed});
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST_F(DeviceTest, TellsWhatItIs) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.spec, "cpu:threads=3");
  EXPECT_EQ(info.units, 3u);
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.arch.empty());
  EXPECT_TRUE(info.toolchain.starts_with("clang ")) << info.toolchain;
  EXPECT_TRUE(info.simd_width == 4 || info.simd_width == 8 || info.simd_width == 16) << info.simd_width;
  EXPECT_TRUE(info.vector_registers == 16 || info.vector_registers == 32) << info.vector_registers;
  uint32_t ways = 8;  // the device's value if the system reports none
  std::ifstream("/sys/devices/system/cpu/cpu0/cache/index0/ways_of_associativity") >> ways;
  EXPECT_EQ(info.l1_ways, ways);
  EXPECT_GE(info.threadgroup_memory_bytes, size_t{64} << 10);
  EXPECT_GE(info.last_level_cache_bytes, info.threadgroup_memory_bytes);
  EXPECT_GT(info.memory_bytes, info.last_level_cache_bytes);
  ASSERT_FALSE(info.features.empty());
  for (const std::string& feature : info.features) EXPECT_TRUE(info.has(feature));
  EXPECT_FALSE(info.has(""));
  const Json json = info.json();
  EXPECT_EQ(json.at("spec"), info.spec);
  EXPECT_EQ(json.at("units"), info.units);
  EXPECT_EQ(json.at("features").size(), info.features.size());
  EXPECT_EQ(json.at("last_level_cache_bytes"), info.last_level_cache_bytes);
  // In a virtual machine Linux reports only a nominal clock rate, so the cpu device reports none.
  EXPECT_LT(device_->clocks().core_mhz, 0);
  EXPECT_LT(device_->clocks().memory_mhz, 0);
}

struct Mark {
  unsigned* visits;
  unsigned* wrong;
};

TEST_F(DeviceTest, GivesEachThreadgroupItsMemory) {
  const KernelSource source = kernel_text(R"(
    struct Mark { unsigned* visits; unsigned* wrong; };
    extern "C" int sched_yield();
    extern "C" void run(const Mark* p, const Threadgroup* group) {
      const unsigned char mark = group->index[0] + 1;
      bool wrong = group->memory_bytes != BYTES || reinterpret_cast<unsigned long>(group->memory) % 4096 != 0;
      for (unsigned long i = 0; i < group->memory_bytes; ++i) group->memory[i] = mark;
      sched_yield();
      for (unsigned long i = 0; i < group->memory_bytes; ++i) wrong |= group->memory[i] != mark;
      if (wrong) __atomic_fetch_add(p->wrong, 1u, __ATOMIC_RELAXED);
      __atomic_fetch_add(p->visits, 1u, __ATOMIC_RELAXED);
    })");
  const size_t most = device_->info().threadgroup_memory_bytes;
  for (const size_t bytes : {size_t{1}, most, size_t{100'001}, size_t{4096}}) {  // the memory grows, then shrinks
    KernelSource sized = source;
    sized.constants = {{"BYTES", static_cast<int64_t>(bytes)}};
    unsigned visits = 0, wrong = 0;
    dispatch(sized, Mark{&visits, &wrong}, {40, 1, 1}, bytes);
    EXPECT_EQ(visits, 40u);
    EXPECT_EQ(wrong, 0u) << bytes;
  }
}

TEST_F(DeviceTest, CatchesAnOverrunOfThreadgroupMemory) {
  if (!sanitizes("address")) GTEST_SKIP() << "needs a build with AddressSanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const KernelSource source = kernel_text(R"(
    extern "C" void run(const long long* at, const Threadgroup* group) { group->memory[*at] = 1; })");
  dispatch(source, 5000LL, {}, 5001);
  dispatch(source, 99LL, {}, 100);
  EXPECT_DEATH(dispatch(source, 100LL, {}, 100), "AddressSanitizer");
  EXPECT_DEATH(dispatch(source, 5000LL, {}, 100), "AddressSanitizer");
}

/// A guarded kernel whose seventh threadgroup runs the code `what`.
KernelSource guarded_text(const std::string& what) {
  KernelSource source = kernel_text(R"(
    struct Params { volatile int* zero; };
    extern "C" void abort();
    [[maybe_unused]] static int deep(volatile int* n) {
      volatile char pad[1000] = {};
      return *n > 1 << 30 ? pad[0] : deep(n) + pad[*n % 1000];
    }
    extern "C" void run([[maybe_unused]] const Params* p, const Threadgroup* group) {
      if (group->index[0] == 6) {)" +
                                    what + " } }\n");
  source.guarded = true;
  return source;
}

TEST_F(DeviceTest, AFaultOfAGuardedKernelLosesTheDeviceAndNotTheProcess) {
  if (*ATTN_SANITIZE) GTEST_SKIP() << "the sanitizer has handlers of its own";
  std::vector<std::pair<std::string, std::string>> wrongs = {
      {"*reinterpret_cast<volatile int*>(72) = 1;", "illegal address (0x48)"},
      {"deep(p->zero);", "stack"},
      {"abort();", "abort()"},
      {"__builtin_trap();", "trap"}};
#ifdef __x86_64__  // other processors have no fault here: the quotient is 0
  wrongs.emplace_back("*p->zero = 5 / *p->zero;", "divided by zero");
#endif
  for (const auto& [text, what] : wrongs) {
    device_ = Device::open(spec_);
    int zero = 0;
    const auto submit = [&, source = guarded_text(text)] { dispatch(source, &zero, {1000}); };
    const std::string message = message_of<DeviceFault>(submit);
    test::expect_words(message, {"cpu:threads=3", "run", "user's function", what});
    EXPECT_TRUE(device_->lost());
    EXPECT_EQ(message_of<DeviceFault>(submit), message) << "later calls must throw the same error";
  }
}

TEST_F(DeviceTest, AGuardedKernelMayBeSubmittedManyTimes) {
  PipelineCache pipelines(*device_, "");
  KernelSource source = kernel_text(R"(
    extern "C" void run(unsigned* const* count, const Threadgroup*) {
      __atomic_fetch_add(*count, 1u, __ATOMIC_RELAXED);
    })");
  source.guarded = true;
  unsigned count = 0;
  unsigned* const parameter = &count;
  CommandEncoder encoder;
  encoder.dispatch(*pipelines.get(source).kernel, {100}, 1, 0, parameter);
  for (int i = 0; i < 100; ++i) device_->submit(encoder);
  std::thread([&] { device_->submit(encoder); }).join();  // a thread that has not run a guarded kernel before
  EXPECT_EQ(count, 10'100u);
}

// The process ends so that a debugger or the shell sees the fault.
TEST_F(DeviceTest, FaultsOfOtherKernelsEndTheProcess) {
  if (*ATTN_SANITIZE) GTEST_SKIP() << "the sanitizer has handlers of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  KernelSource harmless = guarded_text(""), wild = guarded_text("*reinterpret_cast<volatile int*>(72) = 1;");
  wild.guarded = false;
  int zero = 0;
  const auto both = [&] {
    for (const KernelSource& source : {harmless, wild}) dispatch(source, &zero, {10});
  };
  EXPECT_EXIT(both(), testing::KilledBySignal(SIGSEGV), "");
}

std::atomic<int> segv_count, urg_count;

// The device must still catch a kernel's faults after the program's handlers have run.
TEST_F(DeviceTest, AGuardedKernelLeavesHandlersAndLimits) {
  if (*ATTN_SANITIZE) GTEST_SKIP() << "the sanitizer has handlers of its own";
  if (is_emulated()) GTEST_SKIP() << "qemu sets no limits of the stack";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [&] {
    signal(SIGSEGV, [](int) { ++segv_count; });
    signal(SIGURG, [](int) { ++urg_count; });
    rlimit before{}, after{};
    getrlimit(RLIMIT_STACK, &before);
    before.rlim_cur = before.rlim_max;
    setrlimit(RLIMIT_STACK, &before);
    const auto submit = [&](const std::string& text) { dispatch(guarded_text(text), nullptr, {10}); };
    for (int i = 0; i < 2; ++i) {
      submit("");
      raise(SIGSEGV);
      raise(SIGURG);
    }
    getrlimit(RLIMIT_STACK, &after);
    const std::string message = message_of<DeviceFault>([&] { submit("*reinterpret_cast<volatile int*>(72) = 1;"); });
    const bool same = after.rlim_cur == before.rlim_cur && segv_count == 2 && urg_count == 2;
    std::_Exit(same && message.ends_with("met an illegal address (0x48)") ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_F(DeviceTest, WorksAfterADispatchThatDoesNotFit) {
  const KernelSource source = kernel_text(R"(
    extern "C" void run(unsigned* const* count, const Threadgroup* group) {
      if (group->memory_bytes > 0) group->memory[group->memory_bytes - 1] = 1;
      __atomic_fetch_add(*count, 1u, __ATOMIC_RELAXED);
    })");
  unsigned count = 0;
  dispatch(source, &count, {5, 1, 1}, 100);
  EXPECT_THROW(dispatch(source, &count, {5, 1, 1}, size_t{1} << 50), OutOfMemory);
  EXPECT_EQ(count, 5u);
  dispatch(source, &count, {5, 1, 1}, 100);
  dispatch(source, &count, {5, 1, 1}, size_t{5} << 20);
  EXPECT_EQ(count, 15u);
}

/// For a kernel that sleeps, and stores how long it slept by the host's clock.
struct Nap {
  unsigned microseconds;
  double* seconds;
};

// The bounds come from measured times, because on a slow host a sleep may last longer than the kernel asks. A time that
// includes a sleep outside the timestamps exceeds the upper bound.
TEST_F(DeviceTest, TimesWhatLiesBetweenTimestamps) {
  const KernelSource source = kernel_text(R"(
    struct Nap { unsigned microseconds; double* seconds; };
    struct Time { long seconds, nanoseconds; };
    extern "C" int usleep(unsigned);
    extern "C" int clock_gettime(int, Time*);
    static double now() {
      Time time;
      clock_gettime(1, &time);  // the monotonic clock
      return time.seconds + 1e-9 * time.nanoseconds;
    }
    extern "C" void run(const Nap* p, const Threadgroup*) {
      const double start = now();
      usleep(p->microseconds);
      *p->seconds = now() - start;
    })");
  const auto kernel = device_->load(device_->compile(source), source.entry);
  std::array<double, 3> naps = {};
  CommandEncoder encoder;
  encoder.dispatch(*kernel, {1, 1, 1}, 1, 0, Nap{60'000, &naps[0]});  // before the first timestamp: not in `seconds`
  encoder.timestamp();
  encoder.timestamp();
  encoder.dispatch(*kernel, {1, 1, 1}, 1, 0, Nap{20'000, &naps[1]});
  encoder.timestamp();
  encoder.dispatch(*kernel, {1, 1, 1}, 1, 0, Nap{60'000, &naps[2]});
  const Stopwatch stopwatch;
  const std::vector<double> seconds = device_->submit(encoder);
  const double all = stopwatch.seconds();
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_GE(seconds[0], 0);
  EXPECT_GE(seconds[1], naps[1]);
  EXPECT_LE(seconds[0] + seconds[1], all - naps[0] - naps[2]);
  EXPECT_GE(naps[1], 0.020);
}

}  // namespace
}  // namespace attn
