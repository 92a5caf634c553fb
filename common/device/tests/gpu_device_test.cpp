// Tests what only the cuda device must do; any_device_test.cpp tests what all devices must do. Names of tests have
// Fault if the test causes faults on purpose, and Timing if it needs a device at its usual speed, so that
// compute-sanitizer can leave them out: --gtest_filter='-*Fault*:*Timing*'.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "common/backends/cuda/tensor_map.h"
#include "common/device/tests/support.h"
#include "common/experiment/ceilings.h"
#include "common/records/timing.h"

namespace attn {
namespace {

using test::expect_error;
using test::message_of;

KernelSource cuda_kernel(const std::string& text, FunctionConstants constants = {}) {
  const std::string path = "test/kernel.cuda.cu";
  return {path, "run", std::move(constants), {{path, text}}};
}

/// A kernel that runs for `nanoseconds`; with a negative number it never ends.
KernelSource spin() {
  return cuda_kernel(R"(
    extern "C" __global__ void run(const long long nanoseconds) {
      unsigned long long start, now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
      do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      } while (nanoseconds < 0 || now - start < nanoseconds);
    })");
}

KernelSource increment_on_gpu() {
  return cuda_kernel(R"(extern "C" __global__ void run(unsigned* const count) { atomicAdd(count, 1u); })");
}

class GpuDeviceTest : public test::OpenDeviceTest {
 protected:
  GpuDeviceTest() : OpenDeviceTest("cuda") {}

  std::unique_ptr<Kernel> load(const KernelSource& source) {
    return device_->load(device_->compile(source), source.entry);
  }
  template <typename Parameters>
  void run(const Kernel& kernel, const Parameters& parameters, uint32_t threads = 1) {
    CommandEncoder encoder;
    encoder.dispatch(kernel, {}, threads, 0, parameters);
    device_->submit(encoder);
  }
  unsigned count_after(const CommandEncoder& encoder, const Buffer& count) {
    device_->submit(encoder);
    return downloaded<unsigned>(count)[0];
  }
};

using GpuTimingTest = GpuDeviceTest;

TEST(CudaOpenTest, SaysWhatIsMissing) {
  const std::string message = message_of<DeviceMissing>([] { Device::open("cuda:99"); });
  EXPECT_TRUE(message.starts_with("cuda")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST_F(GpuDeviceTest, TellsWhatItIs) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.spec, "cuda:0");
  EXPECT_EQ(info.backend, "cuda");
  EXPECT_FALSE(info.name.empty());
  EXPECT_TRUE(info.arch.starts_with("sm_")) << info.arch;
  EXPECT_TRUE(info.toolchain.starts_with("NVRTC ")) << info.toolchain;
  EXPECT_EQ(info.simd_width, 32u);
  EXPECT_GT(info.units, 0u);
  EXPECT_GE(info.threadgroup_memory_bytes, size_t{64} << 10);
  EXPECT_GT(info.last_level_cache_bytes, info.threadgroup_memory_bytes);
  EXPECT_GT(info.memory_bytes, info.last_level_cache_bytes);
  EXPECT_EQ(info.has("wgmma"), info.arch == "sm_90a");
  const Clocks clocks = device_->clocks();
  EXPECT_GT(clocks.core_mhz, 0);
  EXPECT_GT(clocks.memory_mhz, 0);

  constexpr size_t bytes = size_t{1} << 28;
  const double before = device_->available_bytes();
  EXPECT_LE(before, static_cast<double>(info.memory_bytes));
  const Buffer buffer(*device_, bytes);
  EXPECT_LE(device_->available_bytes(), before - static_cast<double>(bytes));
}

struct Fill {
  void* target;
  unsigned bytes;
};

TEST_F(GpuDeviceTest, GivesThreadgroupMemoryUpToTheLimit) {
  const auto kernel = load(cuda_kernel(R"(
    struct Fill { unsigned* target; unsigned bytes; };
    extern "C" __global__ void run(const Fill p) {
      extern __shared__ unsigned memory[];
      __shared__ unsigned own[16];
      own[threadIdx.x % 16] = 3;
      for (unsigned i = threadIdx.x; i < p.bytes / 4; i += blockDim.x) memory[i] = i;
      __syncthreads();
      for (unsigned i = threadIdx.x; i < p.bytes / 4; i += blockDim.x) {
        if (memory[p.bytes / 4 - 1 - i] != p.bytes / 4 - 1 - i) return;
      }
      atomicAdd(p.target, own[(threadIdx.x + 5) % 16]);
    })"));
  const size_t most = device_->info().threadgroup_memory_bytes - 64;  // minus the memory that the kernel declares
  const Buffer sum = uploaded(*device_, std::vector<unsigned>{0});
  const auto submit = [&](size_t bytes) {
    CommandEncoder encoder;
    encoder.dispatch(*kernel, {7}, 256, bytes, Fill{sum.data(), static_cast<unsigned>(bytes)});
    return count_after(encoder, sum);
  };
  EXPECT_EQ(submit(4096), 3u * 256 * 7);
  EXPECT_EQ(submit(most), 2 * 3u * 256 * 7);
  for (const size_t bytes : {most + 1, size_t{1} << 40}) {
    expect_error<OutOfMemory>([&] { submit(bytes); }, {std::to_string(bytes + 64)});
  }
  EXPECT_EQ(submit(most), 3 * 3u * 256 * 7) << "the device must still work";
}

TEST_F(GpuDeviceTest, FaultyLaunchIsAnError) {
  const auto kernel = load(increment_on_gpu());
  const Buffer count = uploaded(*device_, std::vector<unsigned>{0});
  CommandEncoder encoder;
  encoder.dispatch(*kernel, {}, 1, 0, count.data());
  encoder.dispatch(*kernel, {1, 1, 1}, 100'000, 0, count.data());
  expect_error<std::runtime_error>([&] { device_->submit(encoder); }, {"100000"});
  const unsigned before = downloaded<unsigned>(count)[0];
  run(*kernel, count.data(), 64);
  EXPECT_EQ(downloaded<unsigned>(count)[0], before + 64);
  EXPECT_FALSE(device_->lost());
}

TEST_F(GpuDeviceTest, ArgumentsOfAnotherNumberOrSizeAreAnError) {
  const auto kernel =
      load(cuda_kernel(R"(extern "C" __global__ void run(unsigned* p, char a, double b) { *p = a + b; })"));
  const Buffer result = uploaded(*device_, std::vector<unsigned>{0});
  const auto submit = [&](Arguments arguments) {
    CommandEncoder encoder;
    encoder.dispatch(*kernel, {}, 1, 0, std::move(arguments));
    device_->submit(encoder);
  };
  submit(Arguments(result.data(), char{3}, 4.0));
  EXPECT_EQ(downloaded<unsigned>(result)[0], 7u);
  expect_error<std::logic_error>([&] { submit(Arguments(result.data(), char{3})); }, {"3 parameters, not 2"});
  expect_error<std::logic_error>([&] { submit(Arguments()); }, {"3 parameters, not 0"});
  expect_error<std::logic_error>([&] { submit(Arguments(result.data(), char{3}, 4.0f)); }, {"8 bytes", "2, not 4"});
  const auto increment = load(increment_on_gpu());
  expect_error<std::logic_error>([&] { run(*increment, 7); }, {"8 bytes", "not 4"});
  const auto none = load(cuda_kernel(R"(extern "C" __global__ void run() {})"));
  CommandEncoder encoder;
  encoder.dispatch(*none, {}, 1, 0, Arguments());
  device_->submit(encoder);
}

TEST_F(GpuDeviceTest, FaultyCubinIsAnError) {
  Binary binary = device_->compile(increment_on_gpu());
  EXPECT_THROW(device_->load(binary, "walk"), CompileError);
  binary.code = "not a cubin";
  EXPECT_THROW(device_->load(binary, "run"), CompileError);
  EXPECT_THROW(device_->load(Binary(), "run"), CompileError);
}

TEST_F(GpuTimingTest, TimesWhatLiesBetweenTimestamps) {
  const auto kernel = load(spin());
  CommandEncoder encoder;
  encoder.dispatch(*kernel, {}, 1, 0, 60'000'000LL);  // before the first timestamp: not in `seconds`
  encoder.timestamp();
  encoder.timestamp();
  encoder.dispatch(*kernel, {}, 1, 0, 20'000'000LL);
  encoder.timestamp();
  for (int i = 0; i < 3; ++i) encoder.dispatch(*kernel, {}, 1, 0, 10'000'000LL);
  encoder.timestamp();
  encoder.dispatch(*kernel, {}, 1, 0, 60'000'000LL);
  const std::vector<double> seconds = device_->submit(encoder);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_LT(seconds[0], 1e-3);
  EXPECT_NEAR(seconds[1], 0.020, 1e-3);
  EXPECT_NEAR(seconds[2], 0.030, 1e-3);
}

// The device makes a graph of an encoder with timestamps, and keeps the last 128 graphs.
TEST_F(GpuDeviceTest, GraphsRunWhatTheEncoderSays) {
  const KernelSource source = cuda_kernel(R"(
    struct Add { unsigned* target; unsigned value; };
    extern "C" __global__ void run(const Add p) { *p.target = *p.target * 3 + p.value; })");
  struct Add {
    void* target;
    unsigned value;
  };
  auto kernel = load(source);
  const Buffer value = uploaded(*device_, std::vector<unsigned>{0});
  const auto encode = [&](const Kernel& used, unsigned first) {
    CommandEncoder encoder;
    encoder.timestamp();
    encoder.fill(value.data(), 0, 4);
    encoder.dispatch(used, {}, 1, 0, Add{value.data(), first});
    encoder.dispatch(used, {}, 1, 0, Add{value.data(), 5});
    encoder.timestamp();
    return encoder;
  };
  for (int round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < 150; ++i) EXPECT_EQ(count_after(encode(*kernel, i), value), 3 * i + 5) << i;
    kernel.reset();  // must destroy the kernel's graphs too, because the next kernel may get the same address
    kernel = load(source);
  }
}

// ---- faults

/// Runs a faulty kernel, prints the messages of all DeviceLost to stderr for EXPECT_EXIT, and ends the process.
void lose_the_device(const KernelSource& source) {
  alarm(60);
  {
    const auto device = Device::open("cuda");
    const auto kernel = device->load(device->compile(source), "run");
    Buffer buffer(*device, 64);
    CommandEncoder encoder;
    encoder.dispatch(*kernel, {}, 1, 0, -1LL);
    const auto start = std::chrono::steady_clock::now();
    const auto told = [&](const auto& action) {
      try {
        action();
      } catch (const DeviceLost& error) {
        std::fprintf(stderr, "%s; ", error.what());
      }
    };
    told([&] { device->submit(encoder); });
    told([&] { device->submit(encoder); });
    told([&] { buffer.poison(); });
    told([&] { Buffer(*device, 1); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "after %.1f s, %s", seconds, device->lost() ? "lost" : "in use");
  }
  std::exit(0);  // the exit does not wait for a kernel that hangs
}

TEST_F(GpuDeviceTest, FaultsAreNamed) {
  device_.reset();  // faults happen in separate processes
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::pair<const char*, const char*> faults[] = {
      {"illegal memory access", "*reinterpret_cast<volatile int*>(64) = 1;"},
      {"misaligned",
       "__shared__ int cells[2];"
       "*reinterpret_cast<volatile int*>(reinterpret_cast<char*>(cells) + 1) = 1;"},
      {"CUDA_ERROR", "__trap();"}};
  const std::string rest = " in run; (cuda:0 is lost to this process; ){3}after [0-9.]* s, lost";
  for (const auto& [name, body] : faults) {
    const auto source = cuda_kernel(fmt::format("extern \"C\" __global__ void run(long long) {{ {} }}", body));
    EXPECT_EXIT(lose_the_device(source), testing::ExitedWithCode(0), "cuda:0: .*" + std::string(name) + ".*" + rest);
  }
  EXPECT_EXIT(lose_the_device(spin()), testing::ExitedWithCode(0),
              "cuda:0: run did not end within 10 s; (cuda:0 is lost to this process; ){3}after 10.[0-9] s, lost");
}

// ---- tensor maps

struct TensorCopy {
  TensorMap from, to;
  int x, y;
};

/// Copies a box from one tensor to another through shared memory.
const char* const tensor_copy = R"(
  #include "common/kernel/tensor_map.h"
  struct TensorCopy { TensorMap from, to; int x, y; };
  extern "C" __global__ void run(const __grid_constant__ TensorCopy p) {
    __shared__ alignas(1024) unsigned char box[BYTES];
    __shared__ unsigned long long barrier;
    const unsigned memory = __cvta_generic_to_shared(box), done = __cvta_generic_to_shared(&barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(done) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(done), "r"(BYTES) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 ::"r"(memory), "l"(&p.from), "r"(done), "r"(p.x), "r"(p.y) : "memory");
    unsigned ready = 0;
    while (!ready) {
      asm volatile("{ .reg .pred r; mbarrier.try_wait.parity.shared::cta.b64 r, [%1], 0; selp.u32 %0, 1, 0, r; }"
                   : "=r"(ready) : "r"(done) : "memory");
    }
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(&p.to), "r"(memory), "r"(0), "r"(0) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  })";

TEST_F(GpuDeviceTest, TensorMapsMoveBoxes) {
  if (!device_->info().has("tma")) GTEST_SKIP() << "no tensor copies on " << device_->info().arch;
  constexpr int64_t width = 80, height = 50, box_width = 64, box_height = 32;
  std::vector<uint16_t> numbers(width * height);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i + 1);
  const Buffer source = uploaded(*device_, numbers);
  for (const Swizzle swizzle : {Swizzle::none, Swizzle::bytes_128}) {
    Buffer target(*device_, box_width * box_height * 2);
    const auto map = [&](const Buffer& buffer, uint64_t columns, uint64_t rows) {
      return make_tensor_map({.base = buffer.data(),
                              .element = BF16,
                              .dims = {columns, rows},
                              .strides_bytes = {columns * 2},
                              .box = {box_width, box_height},
                              .swizzle = swizzle});
    };
    // The box reaches beyond the right and the lower edge of the source. Elements beyond the edges must be 0.
    const int x = 40, y = 30;
    dispatch(cuda_kernel(tensor_copy, {{"BYTES", box_width * box_height * 2}}),
             TensorCopy{map(source, width, height), map(target, box_width, box_height), x, y});
    std::vector<uint16_t> expected;
    for (int row = y; row < y + box_height; ++row) {
      for (int column = x; column < x + box_width; ++column) {
        expected.push_back(row < height && column < width ? numbers[row * width + column] : 0);
      }
    }
    EXPECT_EQ(downloaded<uint16_t>(target), expected);
    EXPECT_TRUE(target.guards_intact());
  }
}

TEST_F(GpuDeviceTest, InvalidTensorMapsAreRefused) {
  const Buffer buffer(*device_, 1 << 20);
  const TensorMapLayout good{
      .base = buffer.data(), .dims = {128, 64}, .strides_bytes = {256}, .box = {64, 64}, .swizzle = Swizzle::bytes_128};
  make_tensor_map(good);
  const auto refuse = [&](const char* what, const auto& change) {
    TensorMapLayout layout = good;
    change(layout);
    expect_error<BadInput>([&] { make_tensor_map(layout); }, {what});
  };
  refuse("base address", [](TensorMapLayout& layout) { layout.base = static_cast<const char*>(layout.base) + 2; });
  refuse("0 dimensions", [](TensorMapLayout& layout) { layout.dims.clear(); });
  refuse("1 strides", [](TensorMapLayout& layout) { layout.strides_bytes.push_back(4096); });
  refuse("stride of 250 bytes", [](TensorMapLayout& layout) { layout.strides_bytes = {250}; });
  refuse("box edge of 257", [](TensorMapLayout& layout) { layout.box[1] = 257; });
  refuse("row of the box has 256 bytes", [](TensorMapLayout& layout) { layout.box[0] = 128; });
  refuse("dimension 0", [](TensorMapLayout& layout) { layout.dims[1] = 0; });

  TensorMapLayout single = good;
  single.dims[1] = 1;
  single.strides_bytes = {250};
  EXPECT_NO_THROW(make_tensor_map(single)) << "a tensor of one row must be allowed any stride between rows";
}

// ---- ceilings

TEST_F(GpuTimingTest, CeilingsArePlausible) {
  const test::TemporaryFolder folder;
  PipelineCache pipelines(*device_, folder.path());
  const Ceilings ceilings = measure_ceilings(*device_, pipelines, 2);
  EXPECT_GT(ceilings.copy_gbps, 50);
  EXPECT_GT(ceilings.f32_tflops, 1);
  if (device_->info().has("mma")) {
    EXPECT_GT(ceilings.bf16_tflops, 1.5 * ceilings.f32_tflops);
    EXPECT_NEAR(ceilings.f16_tflops / ceilings.bf16_tflops, 1, 0.2);
    EXPECT_NEAR(ceilings.tf32_tflops / ceilings.bf16_tflops, 0.5, 0.15);
  }
  if (device_->info().arch == "sm_90a") {  // flops of a multiprocessor in a clock: 256 in f32, 4096 in 16-bit products
    const double most = device_->info().units * 2.0e9 * 1e-12;
    EXPECT_LT(ceilings.f32_tflops, 256 * most);
    EXPECT_GT(ceilings.f32_tflops, 256 * most * 0.6);
    EXPECT_LT(ceilings.bf16_tflops, 4096 * most);
    EXPECT_GT(ceilings.bf16_tflops, 4096 * most * 0.5);
  }
}

TEST_F(GpuTimingTest, FlushingTheCacheSlowsTheCopy) {
  const test::TemporaryFolder folder;
  PipelineCache pipelines(*device_, folder.path());
  const CacheFlush flush(*device_);
  const FlushTest result = test_flush(*device_, pipelines, flush);
  EXPECT_TRUE(result.ok) << result.json();
}

}  // namespace
}  // namespace attn
