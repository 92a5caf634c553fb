// What every device must do. The tests run on the device that the environment variable ATTN_TEST_DEVICE names, else on
// the cpu.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/device/device.h"
#include "common/device/tests/support.h"

namespace attn {
namespace {

using test::any_kernel;
using test::AnyDeviceTest;
using test::expect_error;
using Bytes = std::vector<unsigned char>;

class AnyBufferTest : public AnyDeviceTest {};

TEST_F(AnyDeviceTest, OpensAgainByItsSpec) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(Device::open(info.spec)->info().spec, info.spec);
  EXPECT_EQ(info.spec.substr(0, info.spec.find(':')), info.backend);
  EXPECT_NE(Device::known_specs().find(info.backend), std::string::npos);
  EXPECT_TRUE(Device::is_built(info.backend));
  EXPECT_FALSE(Device::is_built("vulkan"));
}

// Help texts and refusals list the known specs, so each must be one that a user can type.
TEST(DeviceSpecs, EachKnownSpecIsAllowed) {
  std::istringstream specs(Device::known_specs());
  int known = 0;
  for (std::string spec; std::getline(specs >> std::ws, spec, ','); ++known) {
    if (spec.ends_with("N")) spec.back() = spec.ends_with("=N") ? '1' : '0';
    try {
      Device::open(spec);
    } catch (const DeviceMissing&) {  // of this build or of this machine
    } catch (const BadInput& error) {
      ADD_FAILURE() << spec << ": " << error.what();
    }
  }
  EXPECT_GE(known, 5);
}

TEST_F(AnyDeviceTest, LimitsThreadgroupMemory) {
  const size_t own = device_->info().threadgroup_memory_bytes;
  EXPECT_THROW(device_->limit_threadgroup_memory(0), BadInput);
  expect_error<BadInput>([&] { device_->limit_threadgroup_memory(own + 1); }, {std::to_string(own)});
  EXPECT_EQ(device_->info().threadgroup_memory_bytes, own);
  device_->limit_threadgroup_memory(32768);
  EXPECT_EQ(device_->info().threadgroup_memory_bytes, 32768u);
}

TEST_F(AnyDeviceTest, SaysWhichLaunchesAreTooLarge) {
  DeviceInfo info = device_->info();
  EXPECT_EQ(info.lacks_grid(info.operations->most_threadgroups), std::nullopt);
  Operations operations = *info.operations;
  operations.most_threadgroups = {70000, 300, 20};
  info.operations = &operations;
  info.threadgroup_memory_bytes = 1000;
  EXPECT_EQ(info.lacks_threadgroup_memory(1000), std::nullopt);
  test::expect_words(info.lacks_threadgroup_memory(1001).value(), {"1001", info.spec, "1000"});
  for (const Grid& grid : {Grid{70001, 1, 1}, {1, 301, 1}, {1, 1, 21}}) {
    test::expect_words(info.lacks_grid(grid).value(),
                       {fmt::format("{} x {} x {}", grid.x, grid.y, grid.z), info.spec, "70000 x 300 x 20"});
    EXPECT_EQ(skip_reason({.launches = {{.source = {}, .grid = grid}}}, info), info.lacks_grid(grid));
  }
}

TEST_F(AnyDeviceTest, OutOfMemoryTellsTheNeededBytes) {
  for (const size_t bytes : {size_t{1} << 50, SIZE_MAX / 2, SIZE_MAX - 8191, SIZE_MAX}) {
    try {
      const Buffer buffer(*device_, bytes);
      ADD_FAILURE() << "a buffer of " << bytes << " bytes was allocated";
    } catch (const OutOfMemory& error) {
      EXPECT_GE(error.needed_bytes, bytes);
      EXPECT_NE(std::string(error.what()).find(std::to_string(error.needed_bytes)), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(device_->allocate(SIZE_MAX), OutOfMemory);
  EXPECT_TRUE(Buffer(*device_, 100).guards_intact()) << "the device must still work";
}

TEST_F(AnyBufferTest, StartsAsNaNBetweenIntactGuards) {
  // The cpu device gives large blocks huge pages (2 MiB), and cuts a fill into parts of 1 MiB.
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{1} << 20, (size_t{3} << 20) + 5}) {
    Buffer buffer(*device_, bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
    EXPECT_TRUE(buffer.guards_intact());
    Bytes content = downloaded<unsigned char>(buffer);
    EXPECT_EQ(std::count(content.begin(), content.end(), 0xFF), static_cast<ptrdiff_t>(bytes));

    std::fill(content.begin(), content.end(), 7);
    buffer.upload(content.data(), bytes);
    EXPECT_TRUE(buffer.guards_intact());
    EXPECT_EQ(downloaded<unsigned char>(buffer), content);
    buffer.poison();
    content = downloaded<unsigned char>(buffer);
    EXPECT_EQ(std::count(content.begin(), content.end(), 0xFF), static_cast<ptrdiff_t>(bytes));
    EXPECT_TRUE(buffer.guards_intact());
  }
}

TEST_F(AnyBufferTest, MovesWithItsMemory) {
  Buffer first(*device_, 16);
  void* const data = first.data();
  Buffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 16u);
  Buffer third;
  EXPECT_EQ(third.data(), nullptr);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_TRUE(third.guards_intact());
  std::array<unsigned char, 17> bytes = {1, 2, 3};
  EXPECT_THROW(third.upload(bytes.data(), bytes.size()), BadInput);
  EXPECT_THROW(third.download(bytes.data(), bytes.size()), BadInput);
  EXPECT_EQ(downloaded<unsigned char>(third), Bytes(16, 0xFF));
}

struct Poke {
  void* target;
  long long offset;
};

// In a build with AddressSanitizer, a write to a guard band of the cpu device ends the process.
TEST_F(AnyBufferTest, CatchesStrayWrites) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const KernelSource poke = any_kernel(device_->info(), R"(
    struct Poke { unsigned char* target; long long offset; };
    KERNEL(Poke) { p->target[p->offset] = 1; })");
  const bool reported = device_->info().backend == "cpu" && test::sanitizes("address");
  for (const long long bytes : {1, 7, 4096, 5001}) {
    for (const long long offset : {-1LL, -4096LL, bytes, bytes + 4095}) {
      Buffer buffer(*device_, static_cast<size_t>(bytes));
      if (reported) {
        EXPECT_DEATH(dispatch(poke, Poke{buffer.data(), offset}), "AddressSanitizer.*") << bytes << " " << offset;
      } else {
        dispatch(poke, Poke{buffer.data(), offset});
        EXPECT_FALSE(buffer.guards_intact()) << bytes << " " << offset;
      }
    }
    for (const long long offset : {0LL, bytes - 1}) {
      Buffer buffer(*device_, static_cast<size_t>(bytes));
      dispatch(poke, Poke{buffer.data(), offset});
      EXPECT_TRUE(buffer.guards_intact()) << bytes << " " << offset;
    }
  }
}

struct Visit {
  void* visits;
  void* wrong;
};

TEST_F(AnyDeviceTest, VisitsEachPointOfTheGridOnce) {
  const char* const body = R"(
    struct Visit { unsigned* visits; unsigned* wrong; };
    KERNEL(Visit) {
      if (index[0] >= NX || index[1] >= NY || index[2] >= NZ || count[0] != NX || count[1] != NY || count[2] != NZ) {
        *p->wrong = 1;
      } else {
        p->visits[(index[2] * count[1] + index[1]) * count[0] + index[0]] += 1;
      }
    })";
  for (const Grid grid :
       {Grid{1, 1, 1}, {3, 1, 1}, {1, 5, 1}, {1, 1, 7}, {3, 5, 7}, {17, 1, 9}, {0, 3, 3}, {3, 3, 0}}) {
    const Buffer visits = uploaded(*device_, std::vector<unsigned>(grid.count(), 0));
    const Buffer wrong = uploaded(*device_, std::vector<unsigned>{0});
    dispatch(any_kernel(device_->info(), body, {{"NX", grid.x}, {"NY", grid.y}, {"NZ", grid.z}}),
             Visit{visits.data(), wrong.data()}, grid);
    EXPECT_EQ(downloaded<unsigned>(visits), std::vector<unsigned>(grid.count(), 1))
        << grid.x << "x" << grid.y << "x" << grid.z;
    EXPECT_EQ(downloaded<unsigned>(wrong)[0], 0u);
  }
}

struct LargeParameters {
  void* sums;
  std::array<uint64_t, 500> values;
};

TEST_F(AnyDeviceTest, CopiesParametersWhenTheDispatchIsEncoded) {
  const KernelSource source = any_kernel(device_->info(), R"(
    struct Parameters { unsigned long* sums; unsigned long values[500]; };
    KERNEL(Parameters) {
      for (unsigned long value : p->values) p->sums[index[0]] += value + 0 * count[0];
    })");
  const auto kernel = device_->load(device_->compile(source), source.entry);
  const Buffer sums = uploaded(*device_, std::vector<uint64_t>(5, 0));
  CommandEncoder encoder;
  {
    auto parameters = std::make_unique<LargeParameters>();
    parameters->sums = sums.data();
    parameters->values.fill(1);
    encoder.dispatch(*kernel, {3, 1, 1}, 1, 0, *parameters);
    parameters->values.fill(10);
    encoder.dispatch(*kernel, {5, 1, 1}, 1, 0, *parameters);
    parameters->sums = nullptr;
  }
  device_->submit(encoder);
  EXPECT_EQ(downloaded<uint64_t>(sums), (std::vector<uint64_t>{5500, 5500, 5500, 5000, 5000}));
  device_->submit(encoder);  // an encoder may be submitted again
  EXPECT_EQ(downloaded<uint64_t>(sums)[0], 11000u);
}

struct Mixed {
  short first;
  double second;
  char third;
};

/// A kernel with several parameters, as generated kernels have.
KernelSource kernel_with_several_parameters(const DeviceInfo& info) {
  const std::string body = R"(
    struct Mixed { short first; double second; char third; };
    static void body(double* sums, char a, Mixed mixed, float b, long long c) {
      sums[0] += a * 1000 + b;
      sums[1] += mixed.first + mixed.second + mixed.third + c;
    })";
  const std::string path = info.backend == "cuda" ? "test/parameters.cuda.cu" : "test/parameters.cpu.cpp";
  const std::string entry = info.backend == "cuda" ? R"(
    extern "C" __global__ void run(double* sums, char a, Mixed mixed, float b, long long c) {
      body(sums, a, mixed, b, c);
    })"
                                                   : R"(
    extern "C" void run(const void* const* arguments, const struct Threadgroup*) {
      body(*static_cast<double* const*>(arguments[0]), *static_cast<const char*>(arguments[1]),
           *static_cast<const Mixed*>(arguments[2]), *static_cast<const float*>(arguments[3]),
           *static_cast<const long long*>(arguments[4]));
    })";
  return {path, "run", {}, {{path, body + entry}}};
}

TEST_F(AnyDeviceTest, TakesAListOfArguments) {
  const KernelSource source = kernel_with_several_parameters(device_->info());
  const auto kernel = device_->load(device_->compile(source), source.entry);
  const Buffer sums = uploaded(*device_, std::vector<double>{0, 0});
  const auto encode = [&](bool timed, float b) {
    CommandEncoder encoder;
    if (timed) encoder.timestamp();
    {
      Arguments arguments(sums.data(), char{2}, Mixed{5, 0.25, 3}, b);
      arguments.add(1LL << 40);
      encoder.dispatch(*kernel, {}, 1, 0, arguments);
      encoder.dispatch(*kernel, {}, 1, 0, Arguments(sums.data(), char{1}, Mixed{0, 0, 0}, 0.0f, 0LL));
    }
    if (timed) encoder.timestamp();
    return encoder;
  };
  const double second = 8.25 + static_cast<double>(1LL << 40);
  double first = 0;
  for (int round = 1; round <= 4; ++round) {
    // A cuda device keeps graphs of encoders. Encoders that differ in `b` must not share a graph.
    const float b = round < 3 ? 0.5f : 0.75f;
    device_->submit(encode(round % 2 == 0, b));
    first += 3000 + b;
    EXPECT_EQ(downloaded<double>(sums), (std::vector<double>{first, round * second})) << round;
  }
}

TEST(CommandEncoderTest, CommandsDifferWhereTheirParametersDo) {
  const Kernel kernel;
  const auto commands_of = [&](const auto&... parameters) {
    CommandEncoder encoder;
    (encoder.dispatch(kernel, {}, 1, 0, parameters), ...);
    return encoder.commands();
  };
  EXPECT_EQ(commands_of(7, 8.0), commands_of(7, 8.0));
  EXPECT_NE(commands_of(7), commands_of(8));
  EXPECT_EQ(commands_of(Arguments(7, 8.0)), commands_of(Arguments(7, 8.0)));
  EXPECT_NE(commands_of(Arguments(7, 8.0)), commands_of(Arguments(7, 9.0)));
  EXPECT_NE(commands_of(Arguments(7)), commands_of(Arguments(7, 8.0)));
  EXPECT_NE(commands_of(Arguments(7)), commands_of(7)) << "a list with one value must differ from a struct";
  EXPECT_EQ(commands_of(Arguments()).size(), 1u);
}

// One binary runs with several values of COUNT and OFFSET. The compiler knows only the value of STEP.
TEST_F(AnyDeviceTest, ReadsConstantsAtRunTime) {
  struct Params {
    int* result;
  };
  KernelSource source =
      any_kernel(device_->info(),
                 "struct Params { int* result; };\n"
                 "static int sum() { int total = 0; for (int i = 0; i < COUNT; ++i) total += STEP; return total; }\n"
                 "KERNEL(Params) { *p->result = sum() + OFFSET + int(index[0] * count[0]); }\n",
                 {{"COUNT", 3}, {"OFFSET", -7}, {"STEP", 5}});
  source.run_time = {"COUNT", "OFFSET"};
  const Binary binary = device_->compile(source);
  EXPECT_EQ(binary.key.substr(0, binary.key.find(",kernel")), "run[COUNT=run_time,OFFSET=run_time,STEP=5");
  PipelineCache cache(*device_, "");
  const auto result_of = [&](const KernelSource& wanted) {
    Buffer result(*device_, sizeof(int));
    CommandEncoder encoder;
    encoder.dispatch(*cache.get(wanted).kernel, {}, 1, 0, Params{static_cast<int*>(result.data())});
    device_->submit(encoder);
    return downloaded<int>(result)[0];
  };
  KernelSource other = source;
  other.constants["COUNT"] = 1000;
  other.constants["OFFSET"] = 1 << 30;
  EXPECT_EQ(result_of(source), 8);
  EXPECT_EQ(result_of(other), 5000 + (1 << 30));
  EXPECT_EQ(result_of(source), 8) << "each kernel must keep its own values";
  EXPECT_EQ(cache.get(source).binary.code_sha256, cache.get(other).binary.code_sha256);
  KernelSource compiled_in = source;
  compiled_in.run_time.clear();
  EXPECT_EQ(result_of(compiled_in), 8);

  source.constants["UNUSED"] = 1;
  source.run_time.insert("UNUSED");
  EXPECT_THROW(cache.get(source), CompileError);
}

TEST_F(AnyDeviceTest, RunsCommandsInOrder) {
  const KernelSource source = any_kernel(device_->info(), R"(
    struct Poke { unsigned char* target; long long bytes; };
    KERNEL(Poke) {
      for (long long i = index[0]; i < p->bytes; i += count[0]) p->target[i] = p->target[i] * 2 + 1;
    })");
  const auto kernel = device_->load(device_->compile(source), source.entry);
  constexpr size_t bytes = (size_t{2} << 20) + 77;  // the cpu device cuts a fill of this size into several parts
  for (const bool timed : {false, true}) {
    Buffer buffer(*device_, bytes);
    const auto at = [&](size_t offset) { return static_cast<unsigned char*>(buffer.data()) + offset; };
    CommandEncoder encoder;
    if (timed) encoder.timestamp();
    encoder.fill(at(0), 3, bytes);
    if (timed) encoder.timestamp();
    encoder.dispatch(*kernel, {700, 1, 1}, 1, 0, Poke{at(0), bytes});
    encoder.dispatch(*kernel, {700, 1, 1}, 1, 0, Poke{at(0), bytes});
    if (timed) encoder.timestamp();
    encoder.fill(at(1), 9, bytes - 2);
    encoder.fill(at(5), 1, 0);
    encoder.fill(at(2), 200, 1);
    EXPECT_EQ(device_->submit(encoder).size(), timed ? 2u : 0u);
    Bytes expected(bytes, 9);
    expected.front() = expected.back() = (3 * 2 + 1) * 2 + 1;
    expected[2] = 200;
    EXPECT_EQ(downloaded<unsigned char>(buffer), expected);
    EXPECT_TRUE(buffer.guards_intact());
  }
}

TEST_F(AnyDeviceTest, DownloadsWaitForEnqueuedCommands) {
  const KernelSource source = any_kernel(device_->info(), R"(
    struct Count { unsigned* count; };
    KERNEL(Count) { *p->count = *p->count * 2 + 1 + 0 * (index[0] + count[0]); })");
  const auto kernel = device_->load(device_->compile(source), source.entry);
  const Buffer count = uploaded(*device_, std::vector<unsigned>{7});
  CommandEncoder encoder;
  encoder.fill(count.data(), 0, sizeof(unsigned));
  encoder.dispatch(*kernel, {}, 1, 0, count.data());
  encoder.dispatch(*kernel, {}, 1, 0, count.data());
  device_->enqueue(encoder);
  EXPECT_EQ(downloaded<unsigned>(count)[0], 3u) << "a download must wait for enqueued commands";
  device_->enqueue(CommandEncoder());
  encoder.timestamp();
  EXPECT_THROW(device_->enqueue(encoder), std::logic_error);
}

struct Denormals {
  void* results;
  float denormal, smallest, half;
};

// On every thread of a kernel; the host's own arithmetic must not change.
TEST_F(AnyDeviceTest, FlushesDenormals) {
  const KernelSource source = any_kernel(device_->info(), R"(
    struct Denormals { float* results; float denormal, smallest, half; };
    KERNEL(Denormals) {
      float* const result = p->results + 2 * index[0];
      result[0] = p->denormal * 1e38f;
      result[1] = p->smallest * p->half;
    })");
  constexpr float denormal = std::numeric_limits<float>::denorm_min(), smallest = std::numeric_limits<float>::min();
  const Buffer results = uploaded(*device_, std::vector<float>(2 * 5000, 1));
  dispatch(source, Denormals{results.data(), denormal, smallest, 0.5f}, {5000, 1, 1});
  EXPECT_EQ(downloaded<float>(results), std::vector<float>(2 * 5000, 0));
  volatile float host = denormal;
  host = host * 2;
  EXPECT_EQ(host, 2 * denormal);
}

TEST_F(AnyDeviceTest, TakesSubmissionsFromSeveralThreads) {
  const KernelSource source = any_kernel(device_->info(), R"(
    struct Count { unsigned* count; };
    KERNEL(Count) { *p->count += 1; })");
  const auto kernel = device_->load(device_->compile(source), source.entry);
  const Buffer counts = uploaded(*device_, std::vector<unsigned>(4, 0));
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) {
        CommandEncoder encoder;
        encoder.dispatch(*kernel, {}, 1, 0, static_cast<unsigned*>(counts.data()) + i);
        device_->submit(encoder);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(downloaded<unsigned>(counts), std::vector<unsigned>(4, 200));
}

}  // namespace
}  // namespace attn
