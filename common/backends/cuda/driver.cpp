#include "common/backends/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "common/base/error.h"

namespace attn {

namespace {

// Returns the first library of `names` that opens, or null if none opens. Libraries are never closed, because
// everything that they start lives as long as the process.
void* open_library(const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <typename Function>
void find(void* library, const char* library_name, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw DeviceMissing(fmt::format("{} has no {}: it is older than this build needs", library_name, name));
}

#define ATTN_TEXT(name) #name
#define ATTN_FIND(name) find(library, library_name, ATTN_TEXT(name), name);

}  // namespace

CudaDriver::CudaDriver() {
  const char* const library_name = "the driver";
  void* const library = open_library({"libcuda.so.1"});
  if (!library) throw DeviceMissing("no driver on this machine (libcuda.so.1)");
  ATTN_DRIVER_FUNCTIONS(ATTN_FIND)
  ATTN_FIND(cuCtxCreate_v2)
  ATTN_FIND(cuStreamGetCaptureInfo_v2)
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) {
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    throw DeviceMissing(fmt::format("the driver does not start: {}", text ? text : "unknown error"));
  }
}

Nvrtc::Nvrtc() {
  const char* const library_name = "NVRTC";
  void* const library =
      open_library({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"});
  if (!library) throw DeviceMissing("no NVRTC on this machine (libnvrtc.so.13 or .12, a part of the CUDA toolkit)");
  ATTN_NVRTC_FUNCTIONS(ATTN_FIND)
}

NvJitLink::NvJitLink() {
  const char* const library_name = "nvJitLink";
  void* const library = open_library(
      {"libnvJitLink.so.13", "libnvJitLink.so.12", "libnvJitLink.so", "/usr/local/cuda/lib64/libnvJitLink.so"});
  if (!library) throw DeviceMissing("no nvJitLink on this machine (libnvJitLink.so, a part of the CUDA toolkit)");
  find(library, library_name, "nvJitLinkVersion", version);
  find(library, library_name, "nvJitLinkCreate", create);
  find(library, library_name, "nvJitLinkDestroy", destroy);
  find(library, library_name, "nvJitLinkAddData", add);
  find(library, library_name, "nvJitLinkComplete", complete);
  find(library, library_name, "nvJitLinkGetLinkedCubinSize", cubin_bytes);
  find(library, library_name, "nvJitLinkGetLinkedCubin", get_cubin);
  find(library, library_name, "nvJitLinkGetErrorLogSize", error_bytes);
  find(library, library_name, "nvJitLinkGetErrorLog", get_errors);
  find(library, library_name, "nvJitLinkGetInfoLogSize", info_bytes);
  find(library, library_name, "nvJitLinkGetInfoLog", get_info);
}

const CudaDriver& cuda_driver() {
  static const CudaDriver driver;
  return driver;
}

std::string describe(CUresult result) {
  const char *text = nullptr, *name = nullptr;
  cuda_driver().cuGetErrorString(result, &text);
  cuda_driver().cuGetErrorName(result, &name);
  return fmt::format("{} ({})", text ? text : "unknown error", name ? name : std::to_string(result).c_str());
}

CudaError::CudaError(CUresult error, const std::string& call)
    : std::runtime_error(call + ": " + describe(error)), code(error) {}

// The project declares NVML's functions itself, because few packages of the toolkit have NVML's header.
struct ClockReader::Nvml {
  using Status = int;
  static constexpr Status success = 0;
  enum Domain { core = 1, memory = 2 };
  enum Sensor { die = 0 };

  Status (*init)();
  Status (*shut_down)();
  Status (*find_device)(const char* bus_id, void** device);
  Status (*clock)(void* device, Domain domain, unsigned* mhz);
  Status (*power)(void* device, unsigned* milliwatts);
  Status (*temperature)(void* device, Sensor sensor, unsigned* celsius);
  Status (*throttle_reasons)(void* device, unsigned long long* bits);

  explicit Nvml(void* library) {
    const char* const library_name = "NVML";
    find(library, library_name, "nvmlInit_v2", init);
    find(library, library_name, "nvmlShutdown", shut_down);
    find(library, library_name, "nvmlDeviceGetHandleByPciBusId_v2", find_device);
    find(library, library_name, "nvmlDeviceGetClockInfo", clock);
    find(library, library_name, "nvmlDeviceGetPowerUsage", power);
    find(library, library_name, "nvmlDeviceGetTemperature", temperature);
    find(library, library_name, "nvmlDeviceGetCurrentClocksThrottleReasons", throttle_reasons);
  }
};

ClockReader::ClockReader(const std::string& bus_id) {
  void* const library = open_library({"libnvidia-ml.so.1"});
  if (!library) return;
  auto nvml = std::make_unique<const Nvml>(library);
  if (nvml->init() != Nvml::success) return;
  nvml_ = std::move(nvml);
  if (nvml_->find_device(bus_id.c_str(), &device_) != Nvml::success) device_ = nullptr;
}

ClockReader::~ClockReader() {
  if (nvml_) nvml_->shut_down();
}

Clocks ClockReader::read() const {
  struct Reason {
    unsigned long long bit;
    const char* name;
  };
  // The table leaves out the bits of an idle GPU (0x1) and of clocks that a user's setting limits (0x2, 0x100).
  static constexpr Reason reasons[] = {{0x4, "software power cap"},         {0x8, "hardware slowdown"},
                                       {0x10, "synchronised boost"},        {0x20, "software thermal slowdown"},
                                       {0x40, "hardware thermal slowdown"}, {0x80, "hardware power brake"}};
  Clocks clocks;
  if (!device_) return clocks;
  unsigned value = 0;
  if (nvml_->clock(device_, Nvml::core, &value) == Nvml::success) clocks.core_mhz = value;
  if (nvml_->clock(device_, Nvml::memory, &value) == Nvml::success) clocks.memory_mhz = value;
  if (nvml_->power(device_, &value) == Nvml::success) clocks.power_w = value / 1e3;
  if (nvml_->temperature(device_, Nvml::die, &value) == Nvml::success) clocks.temperature_c = value;
  unsigned long long bits = 0;
  if (nvml_->throttle_reasons(device_, &bits) == Nvml::success) {
    for (const Reason& reason : reasons) {
      if (bits & reason.bit) clocks.throttle_reasons.emplace_back(reason.name);
    }
  }
  return clocks;
}

}  // namespace attn
