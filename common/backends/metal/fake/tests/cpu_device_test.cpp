// The code of the device `metal`, on a fake of Apple's Metal (fake.h).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include "common/api/attn.h"
#include "common/attention/shape.h"
#include "common/backends/metal/device.h"
#include "common/backends/metal/fake/fake.h"
#include "common/backends/metal/table.h"
#include "common/base/error.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"
#include "common/device/pipeline_cache.h"
#include "common/testing/messages.h"

namespace attn {
namespace {

using test::expect_error;

constexpr const char* text = R"(#include <metal_stdlib>
using namespace metal;
struct Params {
  device float* out;
  int count;
};
#ifdef CALLS
[[visible]] float addend(int i);
#endif
kernel void add(constant Params& p [[buffer(0)]], threadgroup float* memory [[threadgroup(0)]],
                uint group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  memory[thread_index] = STEP;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int i = static_cast<int>(group) * 32 + static_cast<int>(thread_index);
  if (i >= p.count) return;
  float sum = memory[31 - thread_index];
#ifdef CALLS
  sum += addend(i);
#endif
  p.out[i] += sum;
}
kernel void copy(device float* constant& from [[buffer(0)]], device float* constant& to [[buffer(1)]],
                 constant int& count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (static_cast<int>(i) < count) to[i] = from[i];
}
)";

struct AddParams {
  void* out;
  int count;
};
constexpr size_t add_bytes = 32 * sizeof(float);

KernelSource source(const std::string& entry, const std::string& file = text) {
  KernelSource made{.path = "lab/kernel.metal", .entry = entry};
  if (entry == "add") made.constants = {{"STEP", 2}};
  if (entry != "add") made.constants = {{"STEP", 0}};
  made.includes = {{"lab/kernel.metal", file}};
  return made;
}

class MetalHostTest : public testing::Test {
 protected:
  MetalHostTest() { fake::system() = {}; }
  ~MetalHostTest() override {
    device.reset();
    fake::system() = {};
  }
  void open() { device = open_metal_gpu(); }
  std::unique_ptr<Kernel> made(const KernelSource& from) { return device->load(device->compile(from), from.entry); }
  /// Runs `add` for `count` floats that begin as 0, `times` times. Returns the floats.
  std::vector<float> added(const Kernel& kernel, int count, int times = 1) {
    Buffer out = uploaded(*device, std::vector<float>(static_cast<size_t>(count)));
    CommandEncoder encoder;
    for (int i = 0; i < times; ++i) {
      encoder.dispatch(kernel, {static_cast<uint32_t>(count + 31) / 32}, 32, add_bytes, AddParams{out.data(), count});
    }
    device->submit(encoder);
    EXPECT_TRUE(out.guards_intact());
    return downloaded<float>(out);
  }

  std::unique_ptr<Device> device;
};

TEST_F(MetalHostTest, RunsKernelsAndMeasuresThem) {
  open();
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.spec, "metal");
  EXPECT_EQ(info.name, "Fake GPU");
  EXPECT_EQ(info.units, 10u);
  EXPECT_TRUE(info.has("metal3.2"));
  EXPECT_FALSE(info.has("untimed"));
  const auto add = made(source("add")), copy = made(source("copy"));
  const auto barriers = [] { return fake::messages()["memoryBarrierWithScope:"]; };
  const uint64_t before = barriers();
  EXPECT_EQ(added(*add, 70, 3), std::vector<float>(70, 6.0f));
  EXPECT_EQ(barriers() - before, 2);
  const std::vector<float> values = {1, 2, 3, 4, 5};
  Buffer from = uploaded(*device, values), to(*device, from.bytes());
  CommandEncoder encoder;
  encoder.fill(to.data(), 0, to.bytes());
  encoder.timestamp();
  encoder.dispatch(*copy, {1}, 32, 0, Arguments(from.data(), to.data(), 5));
  encoder.fill(from.data(), 0, 8);
  encoder.timestamp();
  encoder.timestamp();
  encoder.fill(static_cast<std::byte*>(to.data()) + 1, 0, 2);  // not whole words
  encoder.dispatch(*add, {1}, 32, add_bytes, AddParams{from.data(), 5});
  encoder.timestamp();
  const std::vector<double> seconds = device->submit(encoder);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_GT(seconds[0], 0);
  EXPECT_EQ(seconds[1], 0);  // nothing ran
  EXPECT_GT(seconds[2], 0);
  EXPECT_EQ(downloaded<float>(from), (std::vector<float>{2, 2, 5, 6, 7}));
  std::vector<float> changed = downloaded<float>(to);
  EXPECT_NE(changed[0], 1);
  changed[0] = 1;
  EXPECT_EQ(changed, values);
}

// An interval begins when the interval before it has ended. A queue takes 64 command buffers at a time.
TEST_F(MetalHostTest, IntervalsDoNotOverlap) {
  open();
  fake::system().overlap = true;
  Buffer out(*device, 4);
  CommandEncoder encoder;
  for (int i = 0; i < 100; ++i) {
    encoder.timestamp();
    encoder.fill(out.data(), static_cast<uint8_t>(i), 4);
  }
  encoder.timestamp();
  std::vector<double> seconds = device->submit(encoder);
  ASSERT_EQ(seconds.size(), 100u);
  seconds.erase(seconds.begin());  // the buffers before count too
  EXPECT_EQ(seconds, std::vector<double>(99, 1));
  EXPECT_EQ(downloaded<uint8_t>(out), std::vector<uint8_t>(4, 99));
}

// An encoder keeps the length of threadgroup memory for its next launch.
TEST_F(MetalHostTest, LaunchesWithAndWithoutThreadgroupMemoryTakeTurns) {
  open();
  const auto add = made(source("add")), copy = made(source("copy"));
  Buffer from = uploaded(*device, std::vector<float>(4)), to(*device, from.bytes());
  CommandEncoder encoder;
  for (int i = 0; i < 2; ++i) {
    encoder.dispatch(*add, {1}, 32, add_bytes, AddParams{from.data(), 4});
    encoder.dispatch(*copy, {1}, 32, 0, Arguments(from.data(), to.data(), 4));
  }
  device->submit(encoder);
  EXPECT_EQ(downloaded<float>(to), std::vector<float>(4, 4.0f));
}

TEST_F(MetalHostTest, LaterFillsWin) {
  open();
  Buffer out(*device, 12);
  CommandEncoder encoder;
  encoder.fill(out.data(), 1, 8);
  encoder.fill(static_cast<std::byte*>(out.data()) + 8, 2, 4);
  encoder.fill(static_cast<std::byte*>(out.data()) + 4, 3, 8);
  device->submit(encoder);
  EXPECT_EQ(downloaded<uint8_t>(out), (std::vector<uint8_t>{1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3}));
}

TEST_F(MetalHostTest, KeepsNoObjectsOver1000Launches) {
  open();
  const auto add = made(source("add"));
  Buffer out(*device, add_bytes);
  const auto run = [&] {
    CommandEncoder encoder;
    encoder.fill(out.data(), 0, out.bytes());
    encoder.timestamp();
    encoder.dispatch(*add, {1}, 32, add_bytes, AddParams{out.data(), 32});
    encoder.timestamp();
    device->submit(encoder);
  };
  run();
  const auto before = fake::objects();
  for (int i = 0; i < 1000; ++i) run();
  EXPECT_EQ(fake::objects(), before);
  for (int i = 0; i < 10; ++i) made(source("add"));
  EXPECT_EQ(fake::objects(), before);
}

TEST_F(MetalHostTest, KeepsNoObjectsAfterItself) {
  const auto before = fake::objects();
  open();
  {
    const auto add = made(source("add"));
  }
  device.reset();
  EXPECT_EQ(fake::objects(), before);
}

TEST_F(MetalHostTest, OlderSystemsNameAllMemoryToEachEncoder) {
  fake::system().macos = 14;
  open();
  EXPECT_FALSE(device->info().has("metal3.2"));
  EXPECT_EQ(added(*made(source("add")), 70, 2), std::vector<float>(70, 4.0f));
}

TEST_F(MetalHostTest, GpusThatMakeNoArchivesCompileAgain) {
  for (const char* fails : {"newBinaryArchiveWithDescriptor:error:", "addComputePipelineFunctionsWithDescriptor:error:",
                            "serializeToURL:error:"}) {
    fake::system().fails = {fails};
    open();
    EXPECT_EQ(added(*made(source("add")), 70, 2), std::vector<float>(70, 4.0f)) << fails;
  }
}

TEST_F(MetalHostTest, TheOnlyGpuMayNotBeTheDefault) {
  const auto before = fake::objects();
  fake::system().has_default = false;
  open();
  EXPECT_EQ(added(*made(source("add")), 4), std::vector<float>(4, 2.0f));
  device.reset();
  EXPECT_EQ(fake::objects(), before);
}

TEST_F(MetalHostTest, GpusWithoutResidencySetsNameAllMemoryToEachEncoder) {
  fake::system().family = 1005;  // MTLGPUFamilyApple5, of GitHub's virtual machines
  open();
  EXPECT_EQ(added(*made(source("add")), 70, 2), std::vector<float>(70, 4.0f));
}

TEST_F(MetalHostTest, ConstantsOfTheRunTimeNeedNoCompilation) {
  open();
  KernelSource add = source("add");
  add.run_time = {"STEP"};
  Binary binary = device->compile(add);
  for (const int step : {2, 5}) {
    binary.run_time["STEP"] = step;
    EXPECT_EQ(added(*device->load(binary, "add"), 8), std::vector<float>(8, static_cast<float>(step)));
  }
}

TEST_F(MetalHostTest, LinksFunctionsThatAreCompiledApart) {
  open();
  for (const Linking linking : {Linking::before_optimizer, Linking::after_code_generation}) {
    KernelSource add = source("add", std::string("#define CALLS 1\n") + text);
    KernelSource addend{.path = "lab/addend.metal", .entry = "addend"};
    addend.includes = {
        {"lab/addend.metal", "#include <metal_stdlib>\n[[visible]] float addend(int i) { return i; }\n"}};
    add.fragments = {addend};
    add.linking = linking;
    EXPECT_EQ(added(*made(add), 4), (std::vector<float>{2, 3, 4, 5}));
    KernelSource wrong = add;
    wrong.fragments.push_back(addend);
    expect_error<CompileError>([&] { made(wrong); }, {"add", "two functions have the name addend"});
    wrong = add;
    const std::string undeclared = std::regex_replace(text, std::regex(R"(\[\[visible\]\])"), "extern");
    wrong.includes["lab/kernel.metal"] = "#define CALLS 1\n" + undeclared;
    expect_error<CompileError>([&] { made(wrong); }, {"add", "no declaration of addend"});
    if (linking == Linking::after_code_generation) continue;
    wrong = add;
    wrong.fragments.front().includes["lab/addend.metal"] = "float addend(int i) { return i; }\n";
    expect_error<CompileError>([&] { made(wrong); }, {"add", "no function addend: "});
  }
}

TEST_F(MetalHostTest, KernelsCallFunctionsThroughATable) {
  open();
  KernelSource call = source("call", R"(#include <metal_stdlib>
using namespace metal;
typedef float Function(float x);
struct Params {
  device float* out;
  visible_function_table<Function> functions;
};
kernel void call(constant Params& p [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  p.out[i] = p.functions[i](10.0f) + STEP;
}
)");
  for (const std::string name : {"twice", "half_of"}) {
    KernelSource& function = call.fragments.emplace_back(KernelSource{.path = "lab/" + name, .entry = name});
    function.includes[function.path] =
        fmt::format("#include <metal_stdlib>\n[[visible]] float {}(float x) {{ return x * {}; }}\n", name,
                    name == "twice" ? "2" : "0.5f");
  }
  const Binary binary = device->compile(call);
  Buffer out(*device, 2 * sizeof(float));
  const auto before = fake::objects();
  {
    const std::unique_ptr<Kernel> kernel = device->load(binary, "call");
    struct {
      void* out;
      uint64_t functions;
    } params{out.data(), dynamic_cast<const TableKernel&>(*kernel).table()};
    CommandEncoder encoder;
    encoder.dispatch(*kernel, {1}, 2, 0, params);
    device->submit(encoder);
    EXPECT_EQ(downloaded<float>(out), (std::vector<float>{20, 5}));
    const std::unique_ptr<Device> another = open_metal_gpu();  // which a fault ends
    const std::unique_ptr<Kernel> other = another->load(binary, "call");
    CommandEncoder wrong;
    wrong.dispatch(*other, {1}, 2, 0, params);  // with the table of `kernel`
    expect_error<DeviceFault>([&] { another->submit(wrong); }, {"bounds: ", " in call"});
  }
  EXPECT_EQ(fake::objects(), before);
  for (const char* fails : {"newVisibleFunctionTableWithDescriptor:", "functionHandleWithFunction:"}) {
    fake::system().fails = {fails};
    expect_error<CompileError>([&] { device->load(binary, "call"); }, {"call", "function"});
  }
}

// Each function of a graph gets the result of the function before it.
TEST_F(MetalHostTest, StitchesFunctionsOneAfterTheOther) {
  open();
  std::string calls = std::string("#define CALLS 1\n") + text;
  calls = std::regex_replace(calls, std::regex(R"(addend\(int i\))"), "stitched_function(float x, int i)");
  calls = std::regex_replace(calls, std::regex(R"(addend\(i\))"), "stitched_function(10.0f, i)");
  KernelSource add = source("add", calls);
  for (const auto& [name, result] : {std::pair("twice", "2 * x"), {"plus", "x + i"}}) {
    KernelSource& function =
        add.fragments.emplace_back(KernelSource{.path = std::string("lab/") + name, .entry = name});
    function.includes[function.path] = fmt::format(
        "#include <metal_stdlib>\n[[stitchable]] float {}(float x, int i) {{ return {}; }}\n", name, result);
  }
  const auto before = fake::objects();
  EXPECT_EQ(added(*made(add), 4), (std::vector<float>{22, 23, 24, 25}));
  EXPECT_EQ(fake::objects(), before);
  for (const char* fails : {"newLibraryWithStitchedDescriptor:error:", "newFunctionWithName:"}) {
    fake::system().fails = {fails};
    expect_error<CompileError>([&] { made(add); }, {"add", "itched"});
  }
  fake::system() = {};
  KernelSource wrong = add;
  std::string& plus = wrong.fragments.back().includes["lab/plus"];
  for (const auto& [part, other] : {std::pair(R"(\[\[stitchable\]\])", "[[visible]]"), {", int i", ""}}) {
    plus = std::regex_replace(add.fragments.back().includes["lab/plus"], std::regex(part), other);
    expect_error<CompileError>([&] { made(wrong); }, {"add", "plus is no [[stitchable]] function of 2 parameters"});
  }
}

TEST_F(MetalHostTest, FeaturesSayWhatKernelsCanBeLinkedWith) {
  for (const bool links : {true, false}) {
    fake::system().links = links;
    open();
    for (const char* feature : {"metal.tables", "metal.libraries"}) EXPECT_EQ(device->info().has(feature), links);
  }
}

// Metal finds on disk what it has compiled.
TEST_F(MetalHostTest, EachCompilationIsNew) {
  open();
  const Binary one = device->compile(source("add")), other = device->compile(source("add"));
  EXPECT_NE(one.code, other.code);
  EXPECT_EQ(one.code_sha256, other.code_sha256);
  KernelSource step = source("add");
  step.constants["STEP"] = 3;
  EXPECT_NE(device->compile(step).code_sha256, one.code_sha256);
}

// A header that an #if skips is needed by the next #include; a header that is included twice comes in once.
TEST_F(MetalHostTest, HeadersStandInPlaceOfTheirIncludes) {
  open();
  KernelSource add = source("add", std::string("#if 0\n#include \"lab/a.h\"\n#endif\n#include \"lab/b.h\"\n") +
                                       "#include \"lab/a.h\"\n#ifndef A_AND_B\n#error\n#endif\n" + text);
  add.includes["lab/a.h"] =
      "#pragma once\n#include \"lab/b.h\"\n#ifdef FROM_B\n#define A_AND_B\n#endif\nstruct A {};\n";
  add.includes["lab/b.h"] = "#pragma once\n#define FROM_B\nstruct B {};\n";
  EXPECT_EQ(added(*made(add), 4), std::vector<float>(4, 2.0f));
}

// Metal takes at most 4096 bytes in a command.
TEST_F(MetalHostTest, LargeParametersLieInABuffer) {
  open();
  struct Params {
    void* out;
    int values[2000];
  };
  const auto last = made(source("last", R"(struct Params {
  device int* out;
  int values[2000];
};
kernel void last(constant Params& p [[buffer(0)]]) { *p.out = p.values[1999] + STEP; }
)"));
  Buffer out(*device, sizeof(int));
  Params params{out.data(), {}};
  params.values[1999] = 7;
  CommandEncoder encoder;
  encoder.dispatch(*last, {1}, 1, 0, params);
  device->submit(encoder);
  EXPECT_EQ(downloaded<int>(out), std::vector<int>{7});
}

TEST_F(MetalHostTest, ArchivesHaveTheMachineCode) {
  open();
  Binary binary = device->compile(source("add"));
  const auto compilations = [] { return fake::messages()["addComputePipelineFunctionsWithDescriptor:error:"]; };
  const uint64_t before = compilations();
  EXPECT_EQ(added(*device->load(binary, "add"), 8), std::vector<float>(8, 2.0f));
  fake::system().finds = false;  // Metal compiles again, and a warning says so
  EXPECT_EQ(added(*device->load(binary, "add"), 8), std::vector<float>(8, 2.0f));
  EXPECT_EQ(compilations(), before);
  fake::system().finds = true;
  binary.code.resize(binary.code.size() - 100);
  expect_error<CompileError>([&] { device->load(binary, "add"); }, {"add", "the file is no archive"});
  binary.code = "nothing";
  expect_error<CompileError>([&] { device->load(binary, "add"); }, {"no kernel for Metal"});
}

TEST_F(MetalHostTest, ErrorsOfTextsNameFilesAndLines) {
  open();
  expect_error<CompileError>([&] { made(source("add", "\nkernel void add() { return 1; }\n")); },
                             {"add[STEP=2", "lab/kernel.metal:2:"});
  expect_error<CompileError>([&] { made(source("none")); }, {"no function none: "});
  for (const std::string& wrong : {std::string("// \xff\n"), std::string("// \0\n", 5)}) {
    expect_error<BadInput>([&] { made(source("add", wrong + text)); }, {"not UTF-8"});
  }
}

/// What fails, and the message.
struct Failure {
  const char *fails, *says;
};

TEST_F(MetalHostTest, EachErrorAtTheStartIsOneLine) {
  const auto refused = [&](const std::function<void()>& change, const std::string& says) {
    fake::system() = {};
    change();
    const auto before = fake::objects();
    const std::string message = test::message_of<DeviceMissing>([&] { open(); });
    EXPECT_NE(message.find(says), std::string::npos) << message << ", not " << says;
    EXPECT_TRUE(message.starts_with("metal: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(fake::objects(), before) << says;
  };
  refused([] { fake::system().has_gpu = false; }, "no GPU");
  refused([] { fake::system().one_address = 0; }, "no addresses");
  refused([] { fake::system().one_address = 1 << 20; }, "two buffers one address");
  refused([] { fake::system().gives_times = false; }, "no time of probe: from 0 s to 0 s");
  refused([] { fake::system().fast_math = true; }, "number: ");
  refused([] { fake::system().other_fragments = true; }, "elements of simdgroup matrices lie in other lanes");
  refused([] { fake::system().error = 3; }, "the command buffer fails");
  refused([] { fake::system().threadgroup_bytes = 4096, fake::system().threads_per_threadgroup = 32; }, "64 threads");
  for (const auto& [fails, says] :
       {Failure{"newCommandQueue", "no further command queue"},
        {"newFence", "no further command queue"},
        {"newLibraryWithSource:options:error:", "newLibraryWithSource:options:error: fails"},
        {"newFunctionWithName:constantValues:error:", "no function probe"},
        {"newComputePipelineStateWithDescriptor:options:reflection:error:", "reflection:error: fails"},
        {"newBufferWithLength:options:", "no room"},
        {"commandBuffer", "no further command buffer"},
        {"computeCommandEncoder", "no further commands"},
        {"blitCommandEncoder", "no further commands"}}) {
    refused([&] { fake::system().fails = {fails}; }, says);
  }
}

TEST_F(MetalHostTest, EachErrorOfALaunchIsOneLine) {
  open();
  const auto add = made(source("add"));
  const auto run = [&](uint32_t threads, size_t bytes, void* out = nullptr) {
    CommandEncoder encoder;
    encoder.timestamp();
    encoder.dispatch(*add, {1}, threads, bytes, AddParams{out, 32});
    encoder.timestamp();
    device->submit(encoder);
  };
  expect_error<OutOfMemory>([&] { run(32, 40000); }, {"add takes 40000 bytes", "32768"});
  expect_error<std::runtime_error>([&] { run(1025, 4112); }, {"add has 1025 threads", "registers for 1024"});
  expect_error<OutOfMemory>([&] { device->allocate(size_t{5} << 30); }, {"one buffer"});
  EXPECT_THROW(device->allocate(size_t{5} << 40), OutOfMemory);
  Arguments many;
  for (int i = 0; i < 32; ++i) many.add(i);
  CommandEncoder encoder;
  encoder.dispatch(*add, {1}, 32, 0, many);
  expect_error<BadInput>([&] { device->submit(encoder); }, {"add has 32 arguments", "31"});
  Buffer out(*device, add_bytes);
  fake::system().gives_times = false;
  expect_error<std::runtime_error>([&] { run(32, add_bytes, out.data()); }, {"metal: Metal reports no time of add"});
  fake::system() = {};
  fake::system().error = 8;  // out of memory
  expect_error<OutOfMemory>([&] { run(32, add_bytes, out.data()); }, {"metal: the command buffer fails in add"});
  EXPECT_FALSE(device->lost());
  run(32, add_bytes, out.data());
  float host[32];
  EXPECT_THROW(device->upload(host, host, sizeof host), std::logic_error);  // no address of the device
  expect_error<DeviceFault>([&] { run(32, add_bytes, host); }, {"metal: bounds: ", " in add"});
  EXPECT_TRUE(device->lost());
  expect_error<DeviceLost>([&] { run(32, add_bytes, out.data()); }, {"lost"});
}

/// How a command buffer ends, and whose fault that is.
struct Ending {
  long code;
  const char *text, *domain;
  enum { timeout, fault, others_fault, memory } is;
};

// macOS hands on codes that Metal's headers lack, as codes or in texts.
TEST_F(MetalHostTest, ErrorsOfCommandBuffersHaveTheirKinds) {
  constexpr const char* metal = "MTLCommandBufferErrorDomain";
  for (const auto& [code, says, domain, is] :
       {Ending{2, "fails", metal, Ending::timeout},
        {14, "fails", metal, Ending::timeout},
        {1, "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)", metal,
         Ending::timeout},
        {1, "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)", "", Ending::timeout},
        {3, "fails", metal, Ending::fault},
        {2, "fails", "", Ending::fault},
        {5, "fails", metal, Ending::others_fault},
        {1, "Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)", metal,
         Ending::others_fault},
        {8, "fails", metal, Ending::memory},
        {1, "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", metal, Ending::memory}}) {
    open();
    const auto add = made(source("add"));
    CommandEncoder encoder;
    encoder.dispatch(*add, {1}, 32, 128, AddParams{nullptr, 0});
    fake::system().error = code;
    fake::system().error_text = says;
    fake::system().error_domain = domain;
    const std::string begins = std::string("metal: ") + says + " in add";
    const auto run = [&] { device->submit(encoder); };
    if (is == Ending::timeout) expect_error<DeviceTimeout>(run, {begins});
    if (is == Ending::memory) expect_error<OutOfMemory>(run, {begins});
    if (is == Ending::fault || is == Ending::others_fault) {
      const std::string message = test::message_of<DeviceFault>(run);
      EXPECT_EQ(message.find("another program's fault") != message.npos, is == Ending::others_fault) << message;
    }
    EXPECT_EQ(device->lost(), is != Ending::memory) << says;
    if (!device->lost()) device->submit(encoder);
  }
}

TEST_F(MetalHostTest, KernelsTouchResidentMemoryOnly) {
  open();
  const auto add = made(source("add"));
  void* freed = device->allocate(add_bytes);
  device->release(freed);
  CommandEncoder encoder;
  encoder.dispatch(*add, {1}, 32, add_bytes, AddParams{freed, 32});
  expect_error<DeviceFault>([&] { device->submit(encoder); }, {"bounds: "});
}

TEST_F(MetalHostTest, DevicesOfAProcessShareMemory) {
  open();
  const std::unique_ptr<Device> other = open_metal_gpu();
  Buffer out = uploaded(*other, std::vector<float>(4));
  const auto add = made(source("add"));
  CommandEncoder encoder;
  encoder.dispatch(*add, {1}, 32, add_bytes, AddParams{out.data(), 4});
  device->submit(encoder);
  EXPECT_EQ(downloaded<float>(out), std::vector<float>(4, 2.0f));
}

// As in DLPack, the data of a tensor is an MTLBuffer: here one has K and V, the other Q and O.
TEST_F(MetalHostTest, TensorsOfProgramsAreBuffers) {
  const AttentionShape shape{.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 5, .kv_len = 7, .head_dim = 64};
  const auto drawn = [&](int64_t heads, int64_t tokens, uint64_t stream) {
    return random_tensor(1, heads, tokens, 64, DType::f32, Layout::bhsd, 1, stream);
  };
  const Tensor q = drawn(2, 5, 0), k = drawn(1, 7, 1), v = drawn(1, 7, 2);
  const ReferenceRows want = reference_attention(shape, q, k, v, all_rows(shape));
  for (const long family : {1009, 1005}) {  // with and without residency sets
    fake::system().family = family;
    const auto before = fake::objects();
    attn_engine* engine = nullptr;
    const attn_open_options options{sizeof options, ATTN_TEST_KERNELS, nullptr, nullptr, nullptr};
    ASSERT_EQ(attn_open("metal", &options, &engine), ATTN_OK) << attn_message();
    void* const inputs = fake::new_buffer(8192);
    void* const others = fake::new_buffer(8192);
    std::memcpy(fake::contents_of(inputs), k.data.data(), k.bytes());
    std::memcpy(fake::contents_of(inputs) + 4096, v.data.data(), v.bytes());
    std::memcpy(fake::contents_of(others) + 16, q.data.data(), q.bytes());
    int64_t of_q[] = {1, 2, 5, 64}, of_k[] = {1, 1, 7, 64};
    const auto tensor = [](void* data, int64_t* sizes, uint64_t offset) {
      return DLTensor{data, {8, 0}, 4, {2, 32, 1}, sizes, nullptr, offset};
    };
    const auto call = [&](uint64_t place_of_q) {
      const DLTensor tensors[] = {tensor(others, of_q, place_of_q), tensor(inputs, of_k, 0), tensor(inputs, of_k, 4096),
                                  tensor(others, of_q, 4096)};
      return attn_flash(engine, nullptr, tensors, tensors + 1, tensors + 2, tensors + 3, nullptr);
    };
    ASSERT_EQ(call(16), ATTN_OK) << attn_message();
    const auto* const o = reinterpret_cast<const float*>(fake::contents_of(others) + 4096);
    for (size_t i = 0; i < want.o.size(); ++i) ASSERT_NEAR(o[i], want.o[i], 1e-5) << i;
    EXPECT_EQ(call(20), ATTN_BAD_INPUT);
    EXPECT_NE(std::string(attn_message()).find("16 bytes"), std::string::npos) << attn_message();
    EXPECT_EQ(call(4096), ATTN_BAD_INPUT) << "Q is O";
    const long buffers = fake::objects()["MTLBuffer"];
    fake::release_buffer(inputs);
    fake::release_buffer(others);
    EXPECT_EQ(fake::objects()["MTLBuffer"], buffers - 2) << "a call keeps no tensor";
    attn_close(engine);
    EXPECT_EQ(fake::objects(), before);
  }
}

TEST_F(MetalHostTest, AWaitHasAnEnd) {
  open();
  const auto add = made(source("add"));
  Buffer out(*device, add_bytes);
  fake::system().ends = false;
  CommandEncoder encoder;
  for (int i = 0; i < 100; ++i) {
    encoder.timestamp();
    encoder.dispatch(*add, {1}, 32, add_bytes, AddParams{out.data(), 32});
  }
  const auto buffers = [] { return fake::messages()["commandBuffer"]; };
  const uint64_t before = buffers();
  expect_error<DeviceTimeout>([&] { device->submit(encoder); }, {"metal: add did not end within"});
  EXPECT_LT(buffers() - before, 64);  // the 65th would wait without an end
}

TEST(MetalFakeTest, FindsEachMisuse) {
  for (int i = 0;; ++i) {
    fake::system() = {};
    try {
      const std::string name = fake::misuse(i);
      if (name.empty()) {
        EXPECT_GT(i, 20);
        break;
      }
      ADD_FAILURE() << "not found: " << name;
    } catch (const fake::Misuse&) {
    }
  }
  fake::system() = {};
}

}  // namespace
}  // namespace attn
