// The memory of a process must not grow by 1 % while it loads, runs and unloads a kernel a thousand times, or submits
// commands a thousand times.
#include <gtest/gtest.h>

#include "common/base/platform.h"
#include "common/device/tests/support.h"

namespace attn {
namespace {

double resident_mib() { return resident_bytes() / (1 << 20); }

class EnduranceTest : public test::CpuTest {
 protected:
  void SetUp() override {
    if (*ATTN_SANITIZE) GTEST_SKIP() << "sanitizers keep freed memory";
    CpuTest::SetUp();
  }

  template <typename Action>
  void expect_steady_memory(const Action& action) {
    for (int i = 0; i < 100; ++i) action();
    const double before = resident_mib();
    for (int i = 0; i < 1000; ++i) action();
    const double after = resident_mib();
    EXPECT_LT(after, before * 1.01) << before << " MiB before, " << after << " MiB after";
  }
};

KernelSource increment() {
  return test::kernel_text(
      "extern \"C\" void run(long long* const* value, const Threadgroup*) { __atomic_fetch_add(*value, STEP, 0); }",
      {{"STEP", 2}});
}

TEST_F(EnduranceTest, LoadingFromDisk) {
  const test::TemporaryFolder folder;
  PipelineCache(*device_, folder.path()).get(increment());
  long long value = 0;
  expect_steady_memory([&] {
    PipelineCache cache(*device_, folder.path());
    const Pipeline& pipeline = cache.get(increment());
    ASSERT_EQ(pipeline.origin, "disk");
    CommandEncoder encoder;
    encoder.dispatch(*pipeline.kernel, {}, 1, 0, &value);
    device_->submit(encoder);
  });
  EXPECT_EQ(value, 2 * 1100);
}

TEST_F(EnduranceTest, Submitting) {
  const auto kernel = device_->load(device_->compile(increment()), "run");
  long long value = 0;
  expect_steady_memory([&] {
    Buffer buffer(*device_, 100'000);
    CommandEncoder encoder;
    encoder.timestamp();
    encoder.dispatch(*kernel, {7, 1, 1}, 1, 1000, &value);
    encoder.fill(buffer.data(), 1, buffer.bytes());
    encoder.timestamp();
    device_->submit(encoder);
  });
  EXPECT_EQ(value, 2 * 7 * 1100);
}

}  // namespace
}  // namespace attn
