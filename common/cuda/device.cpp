#include "common/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/cuda/compiler.h"
#include "common/cuda/driver.h"
#include "common/error.h"

namespace attn {

namespace {

constexpr size_t page_bytes = 4096;

// Far beyond any submission (a launch is to take at most 0.5 s, a sample holds few of them), and short enough to wait.
constexpr std::chrono::seconds deadline{10};

// More than the cases that are measured in turn.
constexpr size_t most_graphs = 64;

using Commands = std::span<const CommandEncoder::Command>;

size_t count_dispatches(Commands commands) {
  return std::count_if(commands.begin(), commands.end(), [](const CommandEncoder::Command& command) {
    return std::holds_alternative<CommandEncoder::Dispatch>(command);
  });
}

class CudaDevice;

class CudaKernel : public Kernel {
 public:
  CudaKernel(CudaDevice& device, const Binary& binary, std::string entry);
  ~CudaKernel() override;

  const std::string& entry() const { return entry_; }
  size_t static_bytes() const { return static_bytes_; }

 private:
  friend class CudaDevice;
  CudaDevice& device_;
  const std::string code_, entry_;
  const size_t static_bytes_;  // threadgroup memory that the kernel itself declares
  // Of the device's generation `generation_`; a fault takes them away, and the next launch loads them again.
  mutable CUmodule module_ = nullptr;
  mutable CUfunction function_ = nullptr;
  mutable uint64_t generation_ = 0;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal) : cuda_(cuda_driver()) {
    check(cuda_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
    const int major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const int minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    // From 9.0 on the instructions that matter here belong to one architecture only, the one with the "a".
    compiler_.emplace(fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : ""));
    char name[256] = {}, bus_id[32] = {};
    check(cuda_.cuDeviceGetName(name, sizeof name, device_), "cuDeviceGetName");
    check(cuda_.cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device_), "cuDeviceGetPCIBusId");
    clocks_.emplace(bus_id);
    info_.spec = fmt::format("cuda:{}", ordinal);
    info_.backend = "cuda";
    info_.name = name;
    info_.arch = compiler_->arch();
    info_.toolchain = compiler_->toolchain();
    if (major >= 8) info_.features.emplace_back("mma");  // of bf16 and tf32
    if (major >= 9) info_.features.emplace_back("tma");
    if (major == 9) info_.features.emplace_back("wgmma");
    info_.units = static_cast<uint32_t>(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    info_.simd_width = static_cast<uint32_t>(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
    most_threadgroup_bytes_ = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
    info_.threadgroup_memory_bytes = most_threadgroup_bytes_;
    info_.last_level_cache_bytes = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
    check(cuda_.cuDeviceTotalMem(&info_.memory_bytes, device_), "cuDeviceTotalMem");
    start();
  }

  ~CudaDevice() override {
    if (hung_) return;  // every call would wait for the kernel that hangs
    activate();
    forget_graphs([](const Graph&) { return true; });
    for (const CUevent event : events_) cuda_.cuEventDestroy(event);
    cuda_.cuStreamDestroy(stream_);
    cuda_.cuCtxDestroy_v2(context_);
  }

  void* allocate(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    activate();
    CUdeviceptr block = 0;
    // One page more, as the driver aligns to less.
    const CUresult result =
        bytes > info_.memory_bytes ? CUDA_ERROR_OUT_OF_MEMORY : cuda_.cuMemAlloc(&block, bytes + page_bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      size_t free = 0, total = 0;
      cuda_.cuMemGetInfo(&free, &total);
      throw OutOfMemory(fmt::format("{} has no room for {} bytes; {} of {} are free", info_.spec, bytes, free, total),
                        bytes);
    }
    check(result, "cuMemAlloc");
    void* const pointer = reinterpret_cast<void*>((block + page_bytes - 1) / page_bytes * page_bytes);
    blocks_[pointer] = block;
    return pointer;
  }

  void release(void* pointer) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(pointer);
    if (hung_ || block == blocks_.end()) return;
    cuda_.cuCtxSetCurrent(context_);
    cuda_.cuMemFree(block->second);
    blocks_.erase(block);
  }

  // On the stream, and waited for: copies are then ordered with the kernels, and a copy that returns is done.
  void upload(void* target, const void* source, size_t bytes) override {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    activate();
    check(cuda_.cuMemcpyHtoDAsync(address(target), source, bytes, stream_), "upload");
    wait("an upload");
  }
  void download(void* target, const void* source, size_t bytes) override {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    activate();
    check(cuda_.cuMemcpyDtoHAsync(target, address(source), bytes, stream_), "download");
    wait("a download");
  }

  Binary compile(const KernelSource& source) override { return compiler_->compile(source); }
  std::string compiler_identity() const override { return compiler_->identity(); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return std::make_unique<CudaKernel>(*this, binary, entry);
  }
  std::map<std::string, int> instructions(const Binary& binary) const override { return count_instructions(binary); }
  Clocks clocks() const override { return clocks_->read(); }

  std::vector<double> submit(const CommandEncoder& encoder) override {
    const std::lock_guard lock(mutex_);
    activate();
    // What lies between two timestamps. Several dispatches there become a graph, made before the first command runs:
    // launched one by one, short kernels would wait for the host, and the time would be the host's.
    std::vector<Commands> spans;
    std::vector<CUgraphExec> graphs;
    const Commands commands = encoder.commands();
    for (auto begin = commands.begin();;) {
      const auto end = std::find_if(begin, commands.end(), [](const CommandEncoder::Command& command) {
        return std::holds_alternative<CommandEncoder::Timestamp>(command);
      });
      spans.emplace_back(begin, end);
      graphs.push_back(count_dispatches(spans.back()) > 1 ? graph_of(spans.back()) : nullptr);
      if (end == commands.end()) break;
      begin = end + 1;
    }
    const size_t timestamps = spans.size() - 1;
    while (events_.size() < timestamps) {
      check(cuda_.cuEventCreate(&events_.emplace_back(), CU_EVENT_DEFAULT), "cuEventCreate");
    }
    try {
      for (size_t i = 0; i < spans.size(); ++i) {
        if (i > 0) check(cuda_.cuEventRecord(events_[i - 1], stream_), "cuEventRecord");
        if (graphs[i]) {
          check(cuda_.cuGraphLaunch(graphs[i], stream_), "cuGraphLaunch");
        } else {
          enqueue(spans[i]);
        }
      }
    } catch (const std::exception&) {
      wait(names(commands));  // for what was enqueued; a fault in that is the better reason
      throw;
    }
    wait(names(commands));
    std::vector<double> seconds;
    for (size_t i = 1; i < timestamps; ++i) {
      float milliseconds = 0;
      check(cuda_.cuEventElapsedTime(&milliseconds, events_[i - 1], events_[i]), "cuEventElapsedTime");
      seconds.push_back(milliseconds * 1e-3);
    }
    return seconds;
  }

  /// The kernel's function in today's context; loads it where a fault took it away.
  CUfunction function(const CudaKernel& kernel) {
    if (kernel.module_ && kernel.generation_ == generation_) return kernel.function_;
    activate();
    kernel.module_ = nullptr;
    CUresult result = cuda_.cuModuleLoadData(&kernel.module_, kernel.code_.data());
    if (result == CUDA_SUCCESS) {
      result = cuda_.cuModuleGetFunction(&kernel.function_, kernel.module_, kernel.entry_.c_str());
    }
    if (result == CUDA_SUCCESS) {  // all that a threadgroup may have, whatever a dispatch will ask for
      result = cuda_.cuFuncSetAttribute(kernel.function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        static_cast<int>(most_threadgroup_bytes_ - kernel.static_bytes_));
    }
    if (result != CUDA_SUCCESS) {
      if (kernel.module_) cuda_.cuModuleUnload(kernel.module_);
      kernel.module_ = nullptr;
      throw CompileError(fmt::format("{} does not load: {}", kernel.entry_, describe(result)));
    }
    kernel.generation_ = generation_;
    return kernel.function_;
  }
  void load(const CudaKernel& kernel) {
    const std::lock_guard lock(mutex_);
    function(kernel);
  }

  void unload(const CudaKernel& kernel) {
    const std::lock_guard lock(mutex_);
    forget_graphs([&](const Graph& graph) { return graph.uses(kernel); });
    if (hung_ || !kernel.module_ || kernel.generation_ != generation_) return;
    cuda_.cuCtxSetCurrent(context_);
    cuda_.cuModuleUnload(kernel.module_);
  }

 private:
  struct Graph {
    std::vector<CommandEncoder::Command> commands;
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

  // A context of its own, so that a fault takes nobody else's down with it.
  void start() {
    check(cuda_.cuCtxCreate_v2(&context_, CU_CTX_SCHED_AUTO, device_), "cuCtxCreate");
    check(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }

  // Makes the context that of the calling thread.
  void activate() const {
    if (hung_) throw DeviceTimeout(info_.spec + " still runs a kernel that does not end");
    check(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  }

  // Waits for all that was enqueued. `what` names it, should it fault or hang.
  void wait(const std::string& what) {
    const auto start = std::chrono::steady_clock::now();
    CUresult result = CUDA_ERROR_NOT_READY;
    while ((result = cuda_.cuStreamQuery(stream_)) == CUDA_ERROR_NOT_READY) {
      if (std::chrono::steady_clock::now() - start > deadline) {
        hung_ = true;
        throw DeviceTimeout(fmt::format("{}: {} did not end within {} s", info_.spec, what, deadline.count()));
      }
      std::this_thread::yield();
    }
    if (result == CUDA_SUCCESS) return;
    const std::string fault = fmt::format("{}: {} in {}", info_.spec, describe(result), what);
    restart();
    throw DeviceFault(fault);
  }

  // After a fault every call in the context fails; all that was made in it goes with it.
  void restart() {
    cuda_.cuCtxDestroy_v2(context_);
    ++generation_;
    blocks_.clear();
    events_.clear();
    graphs_.clear();
    start();
  }

  std::string names(Commands commands) const {
    std::string text;
    for (const CommandEncoder::Command& command : commands) {
      const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command);
      if (!dispatch) continue;
      const std::string& entry = static_cast<const CudaKernel*>(dispatch->kernel)->entry();
      if (text.find(entry) == std::string::npos) text += (text.empty() ? "" : ", ") + entry;
    }
    return text.empty() ? "a fill" : text;
  }

  void enqueue(Commands commands) {
    for (const CommandEncoder::Command& command : commands) {
      if (const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command)) {
        enqueue(*dispatch);
      } else if (const auto* fill = std::get_if<CommandEncoder::Fill>(&command); fill && fill->bytes > 0) {
        check(cuda_.cuMemsetD8Async(address(fill->target), fill->value, fill->bytes, stream_), "cuMemsetD8Async");
      }
    }
  }

  void enqueue(const CommandEncoder::Dispatch& dispatch) {
    if (dispatch.grid.count() == 0) return;
    const auto& kernel = static_cast<const CudaKernel&>(*dispatch.kernel);
    const size_t bytes = kernel.static_bytes() + dispatch.threadgroup_bytes;
    if (bytes > most_threadgroup_bytes_) {
      throw OutOfMemory(fmt::format("{} takes {} bytes of threadgroup memory; {} has {}", kernel.entry(), bytes,
                                    info_.spec, most_threadgroup_bytes_),
                        bytes);
    }
    size_t parameter_bytes = dispatch.parameters.size();
    void* parameters[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(dispatch.parameters.data()),
                          CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes, CU_LAUNCH_PARAM_END};
    const Grid grid = dispatch.grid;
    const CUresult result =
        cuda_.cuLaunchKernel(function(kernel), grid.x, grid.y, grid.z, dispatch.threads, 1, 1,
                             static_cast<unsigned>(dispatch.threadgroup_bytes), stream_, nullptr, parameters);
    if (result != CUDA_SUCCESS) {
      throw CudaError(result,
                      fmt::format("launch of {} over {}x{}x{} threadgroups of {} threads and {} bytes", kernel.entry(),
                                  grid.x, grid.y, grid.z, dispatch.threads, dispatch.threadgroup_bytes));
    }
  }

  // A graph of the commands; one that was made before if it is still there.
  CUgraphExec graph_of(Commands commands) {
    const auto known = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& graph) {
      return std::equal(commands.begin(), commands.end(), graph.commands.begin(), graph.commands.end());
    });
    if (known != graphs_.end()) return known->executable;
    for (const CommandEncoder::Command& command : commands) {  // loading is not allowed during a capture
      if (const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command)) {
        function(static_cast<const CudaKernel&>(*dispatch->kernel));
      }
    }
    check(cuda_.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    CUgraph captured = nullptr;
    try {
      enqueue(commands);
    } catch (...) {
      if (cuda_.cuStreamEndCapture(stream_, &captured) == CUDA_SUCCESS) cuda_.cuGraphDestroy(captured);
      throw;
    }
    check(cuda_.cuStreamEndCapture(stream_, &captured), "cuStreamEndCapture");
    Graph graph{{commands.begin(), commands.end()}, nullptr};
    const CUresult result = cuda_.cuGraphInstantiateWithFlags(&graph.executable, captured, 0);
    cuda_.cuGraphDestroy(captured);
    check(result, "cuGraphInstantiate");
    if (graphs_.size() == most_graphs) {
      cuda_.cuGraphExecDestroy(graphs_.front().executable);
      graphs_.erase(graphs_.begin());
    }
    return graphs_.emplace_back(std::move(graph)).executable;
  }

  template <typename Predicate>
  void forget_graphs(const Predicate& predicate) {
    std::erase_if(graphs_, [&](const Graph& graph) {
      if (!predicate(graph)) return false;
      if (!hung_) cuda_.cuGraphExecDestroy(graph.executable);
      return true;
    });
  }

  const CudaDriver& cuda_;
  CUdevice device_ = 0;
  std::optional<CudaCompiler> compiler_;
  std::optional<ClockReader> clocks_;
  size_t most_threadgroup_bytes_ = 0;  // the hardware's; info().threadgroup_memory_bytes may be lowered
  std::mutex mutex_;                   // of all below
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUevent> events_;                    // one per timestamp of a submission
  std::vector<Graph> graphs_;                      // the oldest first
  std::unordered_map<void*, CUdeviceptr> blocks_;  // what allocate() gave, and what the driver gave for it
  bool hung_ = false;
};

CudaKernel::CudaKernel(CudaDevice& device, const Binary& binary, std::string entry)
    : device_(device),
      code_(binary.code),
      entry_(std::move(entry)),
      static_bytes_(static_cast<size_t>(binary.threadgroup_bytes)) {
  device_.load(*this);
}

CudaKernel::~CudaKernel() { device_.unload(*this); }

}  // namespace

std::unique_ptr<Device> open_cuda_device(std::string_view spec) {
  int ordinal = 0;
  if (spec != "cuda") {
    const std::string_view text = spec.substr(std::min(spec.size(), std::string_view("cuda:").size()));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ordinal);
    if (!spec.starts_with("cuda:") || error != std::errc() || end != text.data() + text.size() || ordinal < 0) {
      throw BadInput(fmt::format("device '{}' is not allowed; cuda, or cuda:N with N from 0", spec));
    }
  }
  const std::string name = fmt::format("cuda:{}", ordinal);
  try {
    int count = 0;
    check(cuda_driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (ordinal >= count) throw DeviceMissing(fmt::format("no such device; this machine has {}", count));
    return std::make_unique<CudaDevice>(ordinal);
  } catch (const DeviceMissing& error) {
    throw DeviceMissing(name + ": " + error.what());
  }
}

}  // namespace attn
