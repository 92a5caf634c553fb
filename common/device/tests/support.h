// Helpers of the tests of common/device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/device/device.h"
#include "common/testing/captured_log.h"
#include "common/testing/messages.h"
#include "common/testing/tested_device.h"

namespace attn::test {

/// Whether the build has the sanitizer `name`: "address", "undefined" or "thread".
constexpr bool sanitizes(std::string_view name) {
  return std::string_view(ATTN_SANITIZE).find(name) != std::string_view::npos;
}

/// A kernel for the cpu. `body` begins on line 2 of its text and defines `entry`.
inline KernelSource kernel_text(const std::string& body, FunctionConstants constants = {},
                                const std::string& entry = "run") {
  const std::string path = "test/kernel.cpu.cpp";
  return {path, entry, std::move(constants), {{path, "#include \"common/kernel/cpu.h\"\n" + body}}};
}

/// A kernel for the cpu or a cuda device. `body` has KERNEL(Params) { ... }, where p points to the parameters, index[3]
/// is the threadgroup's position in the grid, and count[3] is the size of the grid.
inline KernelSource any_kernel(const DeviceInfo& info, const std::string& body, FunctionConstants constants = {}) {
  const std::string inner = "static void body(const Params* p, const unsigned* index, const unsigned* count)";
  const bool cuda = info.backend == "cuda";
  const std::string head =
      cuda ? "#define KERNEL(Params) " + inner +
                 "; extern \"C\" __global__ void run(const __grid_constant__ Params params) {"
                 " const unsigned index[] = {blockIdx.x, blockIdx.y, blockIdx.z};"
                 " const unsigned count[] = {gridDim.x, gridDim.y, gridDim.z}; body(&params, index, count); } " +
                 inner + "\n"
           : "#include \"common/kernel/cpu.h\"\n#define KERNEL(Params) " + inner +
                 "; extern \"C\" void run(const Params* p, const Threadgroup* group)"
                 " { body(p, group->index, group->count); } " +
                 inner + "\n";
  const std::string path = cuda ? "test/kernel.cuda.cu" : "test/kernel.cpu.cpp";
  return {path, "run", std::move(constants), {{path, head + body}}};
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

class TemporaryFolder : public attn::TemporaryFolder {
 public:
  /// The name and the content of each file.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> found;
    for (const auto& file : std::filesystem::directory_iterator(path())) {
      found[file.path().filename()] = file.is_regular_file() ? read_text(file.path()) : std::string();
    }
    return found;
  }
};

/// Sets an environment variable, or unsets it without a value, while a Variable exists.
class Variable {
 public:
  Variable(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) old_ = old;
    set(value);
  }
  ~Variable() { set(old_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      setenv(name_.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  std::string name_;
  std::optional<std::string> old_;
};

/// The test is skipped if the build or the machine lacks the device.
class OpenDeviceTest : public testing::Test {
 protected:
  explicit OpenDeviceTest(std::string spec) : spec_(std::move(spec)) {}

  void SetUp() override {
    try {
      device_ = Device::open(spec_);
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Compiles, loads and dispatches `source` once over `grid`.
  template <typename Parameters>
  void dispatch(const KernelSource& source, const Parameters& parameters, Grid grid = {}, size_t threadgroup_bytes = 0,
                uint32_t threads = 1) {
    const auto kernel = device_->load(device_->compile(source), source.entry);
    kernel->guarded = source.guarded;
    CommandEncoder encoder;
    encoder.dispatch(*kernel, grid, threads, threadgroup_bytes, parameters);
    device_->submit(encoder);
  }

  const std::string spec_;
  std::unique_ptr<Device> device_;
};

class CpuTest : public OpenDeviceTest {
 protected:
  CpuTest() : OpenDeviceTest("cpu:threads=3") {}
};

/// Runs on the device under test (common/testing/tested_device.h).
class AnyDeviceTest : public OpenDeviceTest {
 protected:
  AnyDeviceTest() : OpenDeviceTest(test_device) {}
};

}  // namespace attn::test
