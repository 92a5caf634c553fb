#include "common/backends/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/backends/cuda/compiler.h"
#include "common/backends/cuda/cubin.h"
#include "common/backends/cuda/driver.h"
#include "common/backends/cuda/operations.h"
#include "common/base/error.h"
#include "common/base/number.h"

namespace attn {

namespace {

// A device waits at most this long for a submission. The deadline is far longer than a submission should take: a launch
// should take at most 0.5 s, and a sample has few launches. The deadline is short enough that a user can wait for it.
constexpr std::chrono::seconds deadline{10};

// How many graphs a device keeps: more than the number of encoders that take turns while a group of cases is measured.
constexpr size_t most_graphs = 128;

using Commands = std::vector<CommandEncoder::Command>;

class CudaDevice;

class CudaKernel : public Kernel {
 public:
  CudaKernel(CudaDevice& device, const Binary& binary, std::string name);
  ~CudaKernel() override;
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  const std::string entry;
  const size_t static_bytes;  // threadgroup memory that the kernel itself declares
  const FunctionConstants run_time;
  size_t parameter_bytes = 0;  // of the first parameter, which is usually the only one
  CUmodule module = nullptr;
  CUfunction function = nullptr;

 private:
  CudaDevice& device_;
};

class CudaDevice : public Device {
 public:
  /// With a stream of a caller, the device works on that stream, in the primary context. Without such a stream, the
  /// device works on its own stream, in its own context or (`in_primary`) in the primary context.
  CudaDevice(int ordinal, bool in_primary, std::optional<CUstream> of_caller)
      : cuda_(cuda_driver()), in_primary_(in_primary), on_callers_stream_(of_caller.has_value()) {
    check(cuda_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
    const int major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const int minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    // From compute capability 9.0 on, some instructions that kernels need (wgmma) belong to one architecture only. The
    // name of this architecture ends with "a".
    compiler_ = std::make_unique<CudaCompiler>(fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : ""));
    char name[256] = {}, bus_id[32] = {};
    check(cuda_.cuDeviceGetName(name, sizeof name, device_), "cuDeviceGetName");
    check(cuda_.cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device_), "cuDeviceGetPCIBusId");
    clocks_ = std::make_unique<ClockReader>(bus_id);
    info_.spec = fmt::format("cuda:{}", ordinal);
    info_.backend = "cuda";
    info_.operations = &cuda_operations();
    info_.dlpack_type = 2;
    info_.dlpack_id = ordinal;
    info_.name = name;
    info_.arch = compiler_->arch();
    info_.toolchain = compiler_->toolchain();
    if (major >= 8) info_.features.emplace_back("mma");  // products of bf16 and of tf32
    if (major >= 9) info_.features.emplace_back("tma");
    if (major == 9) info_.features.emplace_back("wgmma");
    if (compiler_->is_12_8_or_later()) info_.features.emplace_back("pch");
    info_.units = static_cast<uint32_t>(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    // In each clock the tensor cores of a multiprocessor do 2048 multiply-adds of 16 bits: 4096 flops. Their boost
    // clock on an H100 or H200 with 132 multiprocessors is 1830 MHz (NVIDIA, H100 Tensor Core GPU Architecture).
    if (major == 9 && info_.units == 132) info_.peak_16_bit_tflops = 132 * 4096 * 1.83e-3;
    info_.simd_width = static_cast<uint32_t>(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
    most_threadgroup_bytes_ = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
    info_.threadgroup_memory_bytes = most_threadgroup_bytes_;
    info_.last_level_cache_bytes = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
    check(cuda_.cuDeviceTotalMem(&info_.memory_bytes, device_), "cuDeviceTotalMem");
    std::optional<Current> current;
    if (in_primary_) {
      check(cuda_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
      current.emplace(*this);
    } else {  // the device gets a context of its own
      check(cuda_.cuCtxCreate_v2(&context_, CU_CTX_SCHED_AUTO, device_), "cuCtxCreate");
    }
    check(cuda_.cuStreamCreate(&own_stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    stream_ = of_caller.value_or(own_stream_);
  }

  ~CudaDevice() override {
    if (lost()) return;  // after a fault the driver's calls fail; while a kernel hangs they wait for the kernel
    const Current current(*this, std::nothrow);
    for (const Graph& graph : graphs_) cuda_.cuGraphExecDestroy(graph.executable);
    for (CUevent event : events_) cuda_.cuEventDestroy(event);
    cuda_.cuStreamDestroy(own_stream_);
    if (in_primary_) {
      cuda_.cuDevicePrimaryCtxRelease(device_);
    } else {
      cuda_.cuCtxDestroy_v2(context_);
    }
  }

  void* allocate(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const Current current = activate();
    CUdeviceptr block = 0;
    // Allocates buffer_alignment bytes more, because the driver aligns to less.
    const CUresult result =
        bytes > info_.memory_bytes ? CUDA_ERROR_OUT_OF_MEMORY : cuda_.cuMemAlloc(&block, bytes + buffer_alignment);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      size_t free = 0, total = 0;
      cuda_.cuMemGetInfo(&free, &total);
      throw OutOfMemory(fmt::format("{} has no room for {} bytes; {} of {} are free", info_.spec, bytes, free, total),
                        bytes);
    }
    check(result, "cuMemAlloc");
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are integers
    void* const pointer = reinterpret_cast<void*>((block + buffer_alignment - 1) / buffer_alignment * buffer_alignment);
    blocks_[pointer] = block;
    return pointer;
  }

  double available_bytes() const override {
    const Current current = activate();
    size_t free = 0, total = 0;
    check(cuda_.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    return static_cast<double>(free);
  }

  void release(void* pointer) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(pointer);
    if (lost() || block == blocks_.end()) return;
    const Current current(*this, std::nothrow);
    cuda_.cuMemFree(block->second);
    blocks_.erase(block);
  }

  // upload() and download() put a copy on the stream and wait for the copy. So the copy runs after the kernels that
  // were enqueued before, and is done when the call returns.
  void upload(void* target, const void* source, size_t bytes) override {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    const Current current = activate();
    check(cuda_.cuMemcpyHtoDAsync(address(target), source, bytes, stream_), "upload");
    wait();
  }
  void download(void* target, const void* source, size_t bytes) override {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    const Current current = activate();
    check(cuda_.cuMemcpyDtoHAsync(target, address(source), bytes, stream_), "download");
    wait();
  }
  // There is no deadline and no lock here, because the stream first does the caller's work, which may take any time.
  void download_after(void* stream, void* target, const void* source, size_t bytes) override {
    if (bytes == 0) return;
    const Current current(*this);
    const auto of_caller = static_cast<CUstream>(stream);
    check(cuda_.cuMemcpyDtoHAsync(target, address(source), bytes, of_caller), "download");
    CUresult result = CUDA_ERROR_NOT_READY;
    while ((result = cuda_.cuStreamQuery(of_caller)) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    if (result == CUDA_SUCCESS) return;
    lost_ = true;
    throw DeviceFault(fmt::format("{}: {} on a stream of the caller's", info_.spec, describe(result)));
  }

  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    return compiler_->compile(source, options);
  }
  std::string compiler_identity() const override { return compiler_->identity(); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return std::make_unique<CudaKernel>(*this, binary, entry);
  }
  CodeContents contents(const Binary& binary) const override { return cuda_contents(binary); }
  Clocks clocks() const override { return clocks_->read(); }

  std::vector<double> submit(const CommandEncoder& encoder) override {
    const std::lock_guard lock(mutex_);
    const Current current = activate();
    const Commands& commands = encoder.commands();
    const size_t timestamps = encoder.timestamps();
    while (events_.size() < timestamps) {
      CUevent event = nullptr;
      check(cuda_.cuEventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate");
      events_.push_back(event);
    }
    try {
      // Without a graph the GPU would wait for the host's launches: between the first timestamp and the next kernel
      // (1.6 us on an H200), and before every kernel that follows a short kernel.
      if (timestamps > 0) {
        check(cuda_.cuGraphLaunch(graph_of(commands), stream_), "cuGraphLaunch");
      } else {
        put_on(stream_, commands);
      }
    } catch (const std::exception&) {
      wait(commands);  // waits for the commands that were enqueued before the exception; throws if a command faulted
      throw;
    }
    wait(commands);
    std::vector<double> seconds;
    for (size_t i = 1; i < timestamps; ++i) {
      float milliseconds = 0;
      check(cuda_.cuEventElapsedTime(&milliseconds, events_[i - 1], events_[i]), "cuEventElapsedTime");
      seconds.push_back(milliseconds * 1e-3);
    }
    return seconds;
  }

  void enqueue(const CommandEncoder& encoder) override { enqueue(encoder, stream_); }
  void enqueue(const CommandEncoder& encoder, void* stream) override {
    if (encoder.timestamps() > 0)
      throw std::logic_error("commands that are enqueued without a wait must have no timestamps");
    const std::lock_guard lock(mutex_);
    const Current current(*this);
    put_on(static_cast<CUstream>(stream), encoder.commands());
  }
  uint64_t capture_of(void* stream) const override {
    if (!stream) return 0;  // the default stream, which cannot be captured
    const Current current(*this);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    check(cuda_.cuStreamGetCaptureInfo_v2(static_cast<CUstream>(stream), &status, &id, nullptr, nullptr, nullptr),
          "cuStreamGetCaptureInfo");
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
  }

  void load(CudaKernel& kernel, const std::string& code) {
    const std::lock_guard lock(mutex_);
    const Current current = activate();
    CUresult result = cuda_.cuModuleLoadData(&kernel.module, code.c_str());
    if (result == CUDA_SUCCESS) {
      result = cuda_.cuModuleGetFunction(&kernel.function, kernel.module, kernel.entry.c_str());
    }
    if (result == CUDA_SUCCESS) {  // allows the most threadgroup memory that the device has, so that any dispatch fits
      result = cuda_.cuFuncSetAttribute(kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        static_cast<int>(most_threadgroup_bytes_ - kernel.static_bytes));
    }
    if (result == CUDA_SUCCESS) {
      size_t offset = 0;
      result = cuda_.cuFuncGetParamInfo(kernel.function, 0, &offset, &kernel.parameter_bytes);
      if (result == CUDA_ERROR_INVALID_VALUE) result = CUDA_SUCCESS;  // the kernel has no parameters
    }
    for (const auto& [name, value] : kernel.run_time) {
      const int number = static_cast<int>(value);
      CUdeviceptr place = 0;
      if (result == CUDA_SUCCESS) result = cuda_.cuModuleGetGlobal(&place, nullptr, kernel.module, name.c_str());
      if (result == CUDA_SUCCESS) result = cuda_.cuMemcpyHtoDAsync(place, &number, sizeof number, stream_);
      if (result == CUDA_SUCCESS) wait();
    }
    if (result == CUDA_SUCCESS) return;
    if (kernel.module) cuda_.cuModuleUnload(kernel.module);
    throw CompileError(fmt::format("{} does not load: {}", kernel.entry, describe(result)));
  }

  void unload(const CudaKernel& kernel) {
    const std::lock_guard lock(mutex_);
    if (lost()) return;
    const Current current(*this, std::nothrow);
    std::erase_if(graphs_, [&](const Graph& graph) {
      if (!graph.uses(kernel)) return false;
      cuda_.cuGraphExecDestroy(graph.executable);
      return true;
    });
    cuda_.cuModuleUnload(kernel.module);
  }

 protected:
  void* enter() const override {
    CUcontext before = nullptr;
    cuda_.cuCtxGetCurrent(&before);
    if (before != context_) check(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    return before;
  }
  // If no context was current before, the context of the first device may stay current: the CUDA runtime would choose
  // that context too.
  void leave(void* before) const override {
    if (before != context_ && (before || device_ != 0)) cuda_.cuCtxSetCurrent(static_cast<CUcontext>(before));
  }

 private:
  struct Graph {
    Commands commands;
    CUgraphExec executable = nullptr;

    bool uses(const Kernel& kernel) const {
      return std::any_of(commands.begin(), commands.end(), [&](const CommandEncoder::Command& command) {
        const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command);
        return dispatch && dispatch->kernel == &kernel;
      });
    }
  };

  static CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

  int attribute(CUdevice_attribute which) const {
    int value = 0;
    check(cuda_.cuDeviceGetAttribute(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  }

  // Makes the device's context current to the calling thread. If the device's context is the primary context, the
  // destructor restores the previous context. If the device works in the primary context, but on its own stream, the
  // constructor also relaxes the thread's capture mode: until the destructor runs, the thread may make calls that CUDA
  // otherwise forbids while another stream is captured.
  class Current {
   public:
    explicit Current(const CudaDevice& device) : Current(device, std::nothrow) {
      if (device.lost()) throw DeviceLost(device.info_.spec + " is lost to this process");
      check(result_, "cuCtxSetCurrent");
    }
    // For functions that release resources. If cuCtxSetCurrent() fails here, the driver's calls that follow fail too.
    // The functions that release resources do not read the results of these calls.
    Current(const CudaDevice& device, std::nothrow_t /*tag*/) noexcept : device_(device) {
      const CudaDriver& cuda = device.cuda_;
      if (device.in_primary_) cuda.cuCtxGetCurrent(&before_);
      if (before_ != device.context_) result_ = cuda.cuCtxSetCurrent(device.context_);
      if (relaxes_capture()) cuda.cuThreadExchangeStreamCaptureMode(&mode_);
    }
    ~Current() {
      if (relaxes_capture()) device_.cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
      if (device_.in_primary_) device_.leave(before_);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    bool relaxes_capture() const { return device_.in_primary_ && !device_.on_callers_stream_; }

    const CudaDevice& device_;
    CUcontext before_ = nullptr;
    CUresult result_ = CUDA_SUCCESS;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  };

  // Makes the context current for a function that waits for the stream or allocates memory. A wait or an allocation
  // would invalidate a capture by the caller, so activate() throws if the stream is being captured.
  Current activate() const {
    check_not_captured();
    return Current(*this);
  }
  void check_not_captured() const {
    if (!on_callers_stream_ || lost()) return;
    const Current current(*this);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(cuda_.cuStreamIsCapturing(stream_, &status), "cuStreamIsCapturing");
    if (status == CU_STREAM_CAPTURE_STATUS_NONE) return;
    throw std::logic_error(info_.spec + ": while the device's stream is captured, only enqueue() is allowed");
  }

  // Waits for all enqueued work. Errors name the kernels of `commands`. If `commands` has no kernel, errors say "a fill
  // or a copy".
  void wait(const Commands& commands = {}) {
    const auto start = std::chrono::steady_clock::now();
    CUresult result = CUDA_ERROR_NOT_READY;
    while ((result = cuda_.cuStreamQuery(stream_)) == CUDA_ERROR_NOT_READY) {
      if (std::chrono::steady_clock::now() - start > deadline) {
        lost_ = true;
        throw DeviceTimeout(
            fmt::format("{}: {} did not end within {} s", info_.spec, names(commands), deadline.count()));
      }
      std::this_thread::yield();
    }
    if (result == CUDA_SUCCESS) return;
    lost_ = true;  // after a fault the driver gives this process no new context
    throw DeviceFault(fmt::format("{}: {} in {}", info_.spec, describe(result), names(commands)));
  }

  static std::string names(const Commands& commands) {
    std::string text;
    for (const CommandEncoder::Command& command : commands) {
      const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command);
      if (!dispatch) continue;
      const std::string& entry = static_cast<const CudaKernel*>(dispatch->kernel)->entry;
      if (text.find(entry) == std::string::npos) text += (text.empty() ? "" : ", ") + entry;
    }
    return text.empty() ? "a fill or a copy" : text;
  }

  void put_on(CUstream stream, const Commands& commands) {
    size_t timestamps = 0;
    for (const CommandEncoder::Command& command : commands) {
      if (const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command)) {
        put_on(stream, *dispatch);
      } else if (const auto* fill = std::get_if<CommandEncoder::Fill>(&command)) {
        if (fill->bytes == 0) continue;
        check(cuda_.cuMemsetD8Async(address(fill->target), fill->value, fill->bytes, stream), "cuMemsetD8Async");
      } else {
        check(cuda_.cuEventRecordWithFlags(events_[timestamps++], stream, CU_EVENT_RECORD_EXTERNAL), "cuEventRecord");
      }
    }
  }

  // compute-sanitizer reports an error if a program asks for a parameter that a kernel does not have. So this function
  // asks for all parameters only if the dispatch has a list of arguments. If the dispatch has one struct instead, the
  // function compares the struct's size with the size of the first parameter.
  void check_parameters(const CudaKernel& kernel, const CommandEncoder::Dispatch& dispatch) const {
    if (!dispatch.arguments) {
      if (dispatch.parameters.size() == kernel.parameter_bytes) return;
      throw std::logic_error(fmt::format("{} takes {} bytes of parameters, not {}", kernel.entry,
                                         kernel.parameter_bytes, dispatch.parameters.size()));
    }
    std::vector<size_t> wanted;
    for (size_t offset = 0, bytes = 0;;) {
      const CUresult result = cuda_.cuFuncGetParamInfo(kernel.function, wanted.size(), &offset, &bytes);
      if (result == CUDA_ERROR_INVALID_VALUE) break;  // the kernel has no more parameters
      check(result, "cuFuncGetParamInfo");
      wanted.push_back(bytes);
    }
    const std::vector<Arguments::Value>& values = dispatch.arguments->values();
    if (values.size() != wanted.size()) {
      throw std::logic_error(fmt::format("{} takes {} parameters, not {}", kernel.entry, wanted.size(), values.size()));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].size() == wanted[i]) continue;
      throw std::logic_error(
          fmt::format("{} takes {} bytes as parameter {}, not {}", kernel.entry, wanted[i], i, values[i].size()));
    }
  }

  void put_on(CUstream stream, const CommandEncoder::Dispatch& dispatch) {
    const auto& kernel = static_cast<const CudaKernel&>(*dispatch.kernel);
    const size_t bytes = kernel.static_bytes + dispatch.threadgroup_bytes;
    if (bytes > most_threadgroup_bytes_) {
      throw OutOfMemory(fmt::format("{} takes {} bytes of threadgroup memory; {} has {}", kernel.entry, bytes,
                                    info_.spec, most_threadgroup_bytes_),
                        bytes);
    }
    check_parameters(kernel, dispatch);
    const Grid grid = dispatch.grid;
    if (grid.count() == 0) return;
    if (const auto reason = info_.lacks_grid(grid)) throw BadInput(fmt::format("{} {}", kernel.entry, *reason));
    const auto place = [](const std::vector<std::byte>& value) { return const_cast<std::byte*>(value.data()); };
    void* single = place(dispatch.parameters);
    std::vector<void*> list;
    if (dispatch.arguments) {
      for (const Arguments::Value& value : dispatch.arguments->values()) list.push_back(place(value));
    }
    const CUresult result = cuda_.cuLaunchKernel(kernel.function, grid.x, grid.y, grid.z, dispatch.threads, 1, 1,
                                                 static_cast<unsigned>(dispatch.threadgroup_bytes), stream,
                                                 dispatch.arguments ? list.data() : &single, nullptr);
    if (result != CUDA_SUCCESS) {
      throw CudaError(result,
                      fmt::format("launch of {} over {}x{}x{} threadgroups of {} threads and {} bytes", kernel.entry,
                                  grid.x, grid.y, grid.z, dispatch.threads, dispatch.threadgroup_bytes));
    }
  }

  // Returns the graph of the commands. Makes the graph if there is none yet. The commands are captured on the device's
  // own stream, because a caller's stream may be the default stream, which cannot be captured.
  CUgraphExec graph_of(const Commands& commands) {
    const auto known =
        std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& graph) { return graph.commands == commands; });
    if (known != graphs_.end()) return known->executable;
    check(cuda_.cuStreamBeginCapture(own_stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    CUgraph captured = nullptr;
    try {
      put_on(own_stream_, commands);
    } catch (const std::exception&) {
      if (cuda_.cuStreamEndCapture(own_stream_, &captured) == CUDA_SUCCESS) cuda_.cuGraphDestroy(captured);
      throw;
    }
    check(cuda_.cuStreamEndCapture(own_stream_, &captured), "cuStreamEndCapture");
    Graph graph{commands, nullptr};
    const CUresult result = cuda_.cuGraphInstantiateWithFlags(&graph.executable, captured, 0);
    cuda_.cuGraphDestroy(captured);
    check(result, "cuGraphInstantiate");
    if (graphs_.size() == most_graphs) {
      cuda_.cuGraphExecDestroy(graphs_.front().executable);
      graphs_.erase(graphs_.begin());
    }
    return graphs_.emplace_back(std::move(graph)).executable;
  }

  const CudaDriver& cuda_;
  const bool in_primary_;         // context_ is the primary context, which a caller uses too
  const bool on_callers_stream_;  // stream_ is a caller's stream
  CUdevice device_ = 0;
  std::unique_ptr<CudaCompiler> compiler_;
  std::unique_ptr<const ClockReader> clocks_;
  size_t most_threadgroup_bytes_ = 0;  // the hardware's limit; info().threadgroup_memory_bytes may be lowered
  std::mutex mutex_;                   // guards events_, graphs_ and blocks_
  CUcontext context_ = nullptr;
  CUstream own_stream_ = nullptr;
  CUstream stream_ = nullptr;                      // the stream of every call that names no stream
  std::vector<CUevent> events_;                    // one per timestamp of a submission
  std::vector<Graph> graphs_;                      // the oldest first
  std::unordered_map<void*, CUdeviceptr> blocks_;  // each address that allocate() gave, and the driver's address
};

CudaKernel::CudaKernel(CudaDevice& device, const Binary& binary, std::string name)
    : entry(std::move(name)),
      static_bytes(static_cast<size_t>(binary.threadgroup_bytes)),
      run_time(binary.run_time),
      device_(device) {
  device_.load(*this, binary.code);
}

CudaKernel::~CudaKernel() { device_.unload(*this); }

std::unique_ptr<Device> open(int ordinal, bool in_primary, std::optional<CUstream> of_caller = {}) {
  try {
    int count = 0;
    check(cuda_driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (ordinal >= count) throw DeviceMissing(fmt::format("no such device; this machine has {}", count));
    return std::make_unique<CudaDevice>(ordinal, in_primary, of_caller);
  } catch (const DeviceMissing& error) {
    throw DeviceMissing(fmt::format("cuda:{}: {}", ordinal, error.what()));
  }
}

int parse_ordinal(std::string_view spec) {
  if (spec == "cuda") return 0;
  const auto ordinal = to_number<int>(spec.substr(std::min(spec.size(), std::string_view("cuda:").size())));
  if (!spec.starts_with("cuda:") || !ordinal || *ordinal < 0) {
    throw BadInput(fmt::format("device '{}' is not allowed; allowed are cuda, and cuda:N with N from 0", spec));
  }
  return *ordinal;
}

}  // namespace

std::unique_ptr<Device> open_cuda_device(std::string_view spec) { return open(parse_ordinal(spec), false); }
std::unique_ptr<Device> open_cuda_device_for_caller(std::string_view spec, const Caller& caller) {
  const int ordinal = parse_ordinal(spec);
  return caller.stream ? open_cuda_device_for(ordinal, *caller.stream) : open(ordinal, true);
}

std::unique_ptr<Device> open_cuda_device_for(int ordinal, void* stream) {
  if (ordinal < 0)
    throw BadInput(fmt::format("device cuda:{} is not allowed; allowed is cuda:N with N from 0", ordinal));
  return open(ordinal, true, static_cast<CUstream>(stream));
}

}  // namespace attn
