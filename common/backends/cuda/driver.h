// The CUDA driver, NVRTC, nvJitLink and NVML as tables of functions. The libraries are opened at run time, so that one
// build serves machines with and without a GPU.
#pragma once

#include <cuda.h>
#include <nvrtc.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "common/device/device.h"

namespace attn {

// clang-format off
#define ATTN_DRIVER_FUNCTIONS(X)                                                                                     \
  X(cuInit) X(cuGetErrorName) X(cuGetErrorString)                                                                    \
  X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem)                  \
  X(cuDeviceGetPCIBusId) X(cuCtxDestroy) X(cuCtxSetCurrent) X(cuMemAlloc) X(cuMemFree) X(cuMemGetInfo)               \
  X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemsetD8Async) X(cuModuleLoadData) X(cuModuleUnload)                 \
  X(cuModuleGetFunction) X(cuModuleGetGlobal) X(cuFuncGetParamInfo) X(cuFuncSetAttribute) X(cuLaunchKernel)          \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamQuery)     \
  X(cuStreamIsCapturing) X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags)                \
  X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuGraphLaunch) X(cuEventCreate) X(cuEventRecordWithFlags)                \
  X(cuEventElapsedTime) X(cuEventDestroy) X(cuTensorMapEncodeTiled)                                              \
  X(cuCtxGetCurrent) X(cuThreadExchangeStreamCaptureMode)
#define ATTN_NVRTC_FUNCTIONS(X)                                                                                      \
  X(nvrtcVersion) X(nvrtcGetErrorString) X(nvrtcCreateProgram) X(nvrtcDestroyProgram) X(nvrtcCompileProgram)         \
  X(nvrtcGetProgramLogSize) X(nvrtcGetProgramLog) X(nvrtcGetCUBINSize) X(nvrtcGetCUBIN)                               \
  X(nvrtcGetLTOIRSize) X(nvrtcGetLTOIR)
// clang-format on
// NOLINTNEXTLINE(bugprone-macro-parentheses): the first `name` is in a declaration
#define ATTN_DECLARE(name) decltype(&::name) name = nullptr;  // `name` may be a macro: cuMemAlloc is cuMemAlloc_v2

// NOLINTBEGIN(readability-identifier-naming): the libraries' own names

/// The constructor throws DeviceMissing, without the device's name in the message.
struct CudaDriver {
  CudaDriver();
  ATTN_DRIVER_FUNCTIONS(ATTN_DECLARE)
  // Every driver has cuCtxCreate_v2, but cuda.h of CUDA 13 declares only cuCtxCreate_v4.
  CUresult (*cuCtxCreate_v2)(CUcontext* context, unsigned flags, CUdevice device) = nullptr;
  // Drivers have cuStreamGetCaptureInfo_v2 from CUDA 11.3 on, but cuda.h of CUDA 13 declares only version 3.
  CUresult (*cuStreamGetCaptureInfo_v2)(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies, size_t* count) = nullptr;
};

/// The constructor throws DeviceMissing.
struct Nvrtc {
  Nvrtc();
  ATTN_NVRTC_FUNCTIONS(ATTN_DECLARE)
};

// NOLINTEND(readability-identifier-naming)

/// The functions of nvJitLink. They are declared here, because nvJitLink's header gives the functions names that fit
/// only one version of nvJitLink. The constructor throws DeviceMissing.
struct NvJitLink {
  using Status = int;
  static constexpr Status success = 0;
  using Handle = void*;
  enum Input { cubin = 1, lto_ir = 3 };

  NvJitLink();
  Status (*version)(unsigned* major, unsigned* minor) = nullptr;
  Status (*create)(Handle* link, uint32_t count, const char** options) = nullptr;
  Status (*destroy)(Handle* link) = nullptr;
  Status (*add)(Handle link, Input type, const void* data, size_t bytes, const char* name) = nullptr;
  Status (*complete)(Handle link) = nullptr;
  Status (*cubin_bytes)(Handle link, size_t* bytes) = nullptr;
  Status (*get_cubin)(Handle link, void* target) = nullptr;
  Status (*error_bytes)(Handle link, size_t* bytes) = nullptr;
  Status (*get_errors)(Handle link, char* target) = nullptr;
  Status (*info_bytes)(Handle link, size_t* bytes) = nullptr;
  Status (*get_info)(Handle link, char* target) = nullptr;
};
#undef ATTN_DECLARE

/// Returns the driver of this process. Without a driver each call throws DeviceMissing.
const CudaDriver& cuda_driver();

/// A call of the driver that failed.
struct CudaError : std::runtime_error {
  CudaError(CUresult error, const std::string& call);
  CUresult code;
};

/// Returns the error as text: "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)".
std::string describe(CUresult result);

/// Throws CudaError unless the call succeeded. The error's message names `call`.
inline void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw CudaError(result, call);
}

/// Clocks, power and temperature of one device, and the reasons why its clocks are low. Without NVML read() returns no
/// values.
class ClockReader {
 public:
  /// `bus_id` as the driver writes it: "0000:3B:00.0".
  explicit ClockReader(const std::string& bus_id);
  ~ClockReader();
  ClockReader(const ClockReader&) = delete;
  ClockReader& operator=(const ClockReader&) = delete;

  Clocks read() const;

 private:
  struct Nvml;
  std::unique_ptr<const Nvml> nvml_;  // null if NVML is missing or does not start
  void* device_ = nullptr;
};

}  // namespace attn
