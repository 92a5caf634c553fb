// The cuda device in a program that uses CUDA itself.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/backends/cuda/device.h"
#include "common/backends/cuda/driver.h"
#include "common/base/error.h"
#include "common/device/tests/support.h"

namespace attn {
namespace {

TEST(CudaOpenForTest, RefusesOrdinalsWithoutADevice) {
  EXPECT_THROW(open_cuda_device_for(-1, nullptr), BadInput);
  test::expect_error<DeviceMissing>([] { open_cuda_device_for(99, nullptr); }, {"cuda:99"});
}

/// Stands for the program: holds the primary context and a stream.
class GpuStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      cuda_ = &cuda_driver();
      device_ = open_cuda_device_for(0, nullptr);  // throws DeviceMissing without NVRTC or a GPU
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
    check(cuda_->cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
    check(cuda_->cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    check(cuda_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    device_ = open_cuda_device_for(0, stream_);
    const KernelSource source = twice_and_one();
    kernel_ = device_->load(device_->compile(source), source.entry);
  }
  void TearDown() override {
    if (!stream_) return;
    kernel_.reset();
    device_.reset();
    // The program's stream and context still exist.
    EXPECT_EQ(cuda_->cuStreamQuery(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuda_->cuStreamDestroy(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuda_->cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }

  /// Sets a count to 2 count + 1.
  KernelSource twice_and_one() const {
    return test::any_kernel(device_->info(), R"(
      struct Count { unsigned* count; };
      KERNEL(Count) { *p->count = *p->count * 2 + 1 + 0 * (index[0] + count[0]); })");
  }
  CommandEncoder twice(void* count) const {
    CommandEncoder encoder;
    encoder.dispatch(*kernel_, {}, 1, 0, count);
    encoder.dispatch(*kernel_, {}, 1, 0, count);
    return encoder;
  }
  /// Ends the stream's capture.
  CUgraphExec captured() {
    CUgraph graph = nullptr;
    check(cuda_->cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
    CUgraphExec executable = nullptr;
    check(cuda_->cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
    cuda_->cuGraphDestroy(graph);
    return executable;
  }

  const CudaDriver* cuda_ = nullptr;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernel> kernel_;
};

TEST_F(GpuStreamTest, RunsAfterTheProgramsCommandsOnTheStream) {
  CUdeviceptr block = 0;
  check(cuda_->cuMemAlloc(&block, 64), "cuMemAlloc");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are integers
  void* const count = reinterpret_cast<void*>(block);
  const auto counted = [&] {
    unsigned value = 0;
    device_->download(&value, count, sizeof value);
    return value;
  };
  check(cuda_->cuMemsetD8Async(block, 0, 64, stream_), "cuMemsetD8Async");
  device_->enqueue(twice(count));
  EXPECT_EQ(counted(), 3u);
  CommandEncoder timed;
  timed.timestamp();
  timed.dispatch(*kernel_, {}, 1, 0, count);
  timed.timestamp();
  for (int i = 0; i < 2; ++i) EXPECT_GT(device_->submit(timed).at(0), 0);
  EXPECT_EQ(counted(), 15u);
  EXPECT_THROW(device_->enqueue(timed), std::logic_error);
  EXPECT_EQ(cuda_->cuMemFree(block), CUDA_SUCCESS) << "the block must still belong to the program";
}

TEST_F(GpuStreamTest, EnqueuedCommandsMayBeCaptured) {
  Buffer count = uploaded(*device_, std::vector<unsigned>{0});
  CommandEncoder encoder;
  encoder.fill(count.data(), 0, sizeof(unsigned));
  CommandEncoder more = twice(count.data());
  check(cuda_->cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  device_->enqueue(encoder);
  device_->enqueue(more);
  device_->enqueue(more);
  // These calls would end the capture with an error, so they throw at once.
  const unsigned one = 1;
  EXPECT_THROW(device_->submit(more), std::logic_error);
  EXPECT_THROW(count.upload(&one, sizeof one), std::logic_error);
  EXPECT_THROW(Buffer(*device_, 64), std::logic_error);
  EXPECT_FALSE(device_->lost());
  CUgraphExec executable = captured();
  EXPECT_EQ(downloaded<unsigned>(count)[0], 0u) << "the captured commands ran during the capture";
  for (int i = 0; i < 3; ++i) {
    count.upload(&one, sizeof one);
    check(cuda_->cuGraphLaunch(executable, stream_), "cuGraphLaunch");
    EXPECT_EQ(downloaded<unsigned>(count)[0], 15u);
  }
  cuda_->cuGraphExecDestroy(executable);
}

// A framework may call an operator for the first time while it captures a graph.
TEST_F(GpuStreamTest, WorksDuringACaptureOfAnyStream) {
  const auto device = Device::open_for_caller("cuda:0");
  check(cuda_->cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  EXPECT_EQ(device->capture_of(stream_), 0u);
  check(cuda_->cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  EXPECT_NE(device->capture_of(stream_), 0u);
  const auto kernel = device->load(device->compile(twice_and_one()), "run");
  const Buffer count = uploaded(*device, std::vector<unsigned>{5});
  CommandEncoder encoder;
  encoder.dispatch(*kernel, {}, 1, 0, count.data());
  device->enqueue(encoder, stream_);
  CUcontext current = nullptr;
  cuda_->cuCtxGetCurrent(&current);
  EXPECT_EQ(current, context_) << "the device must restore the caller's context";
  CUgraphExec executable = captured();
  for (const unsigned want : {11u, 23u}) {
    check(cuda_->cuGraphLaunch(executable, stream_), "cuGraphLaunch");
    while (cuda_->cuStreamQuery(stream_) == CUDA_ERROR_NOT_READY) {
    }
    EXPECT_EQ(downloaded<unsigned>(count)[0], want);
  }
  cuda_->cuGraphExecDestroy(executable);
}

TEST_F(GpuStreamTest, TakesTheDefaultStream) {
  const auto device = open_cuda_device_for(0, nullptr);
  const auto kernel = device->load(device->compile(twice_and_one()), "run");
  const Buffer count = uploaded(*device, std::vector<unsigned>{0});
  for (const bool timed : {false, true}) {
    CommandEncoder encoder;
    if (timed) encoder.timestamp();
    encoder.dispatch(*kernel, {}, 1, 0, count.data());
    if (timed) encoder.timestamp();
    EXPECT_EQ(device->submit(encoder).size(), timed ? 1u : 0u);
  }
  EXPECT_EQ(downloaded<unsigned>(count)[0], 3u);
  EXPECT_TRUE(count.guards_intact());
}

}  // namespace
}  // namespace attn
