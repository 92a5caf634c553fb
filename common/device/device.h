// Device: the interface between host code and the hardware that runs kernels. docs/design.md says what the terms, such
// as threadgroup, mean on CPU, CUDA and Metal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/device/encoder.h"
#include "common/device/operations.h"
#include "common/launch/plan.h"
#include "common/source/binary.h"

namespace attn {

struct DeviceInfo {
  std::string spec;                   // opens the device again: "cpu:threads=2"
  std::string backend;                // "cpu", "cuda" or "metal"
  std::string name;                   // the product's name
  std::string arch;                   // the target of the kernel compiler: "znver3", "sm_90a"
  std::string toolchain;              // the kernel compiler and its version
  std::vector<std::string> features;  // optional instructions that a kernel may ask for ("avx2", "avx512bf16"), and
                                      // "pch" if CompileOptions::precompile_headers has an effect; "untimed" if times
                                      // of the device mean nothing
  uint32_t units = 1;                 // parts that run threadgroups at the same time: host threads, or multiprocessors
  uint32_t simd_width = 1;            // f32 lanes of a simdgroup (a vector register, or a warp)
  uint32_t vector_registers = 0;      // vector registers that an instruction can name (cpu); 0 on a GPU
  uint32_t l1_ways = 8;               // the associativity of a core's first-level data cache (cpu)
  size_t threadgroup_memory_bytes = 0;  // the most bytes that one threadgroup may use
  size_t last_level_cache_bytes = 0;
  size_t memory_bytes = 0;
  double peak_16_bit_tflops = 0;  // the vendor's peak rate of dense f16 or bf16 matrix products; 0 if unknown
  bool on_host = false;  // the kernels run on the host's threads, in the host's memory; false for an emulated GPU
  int dlpack_type = 1, dlpack_id = 0;  // DLPack's device type (1: cpu) and id (https://dmlc.github.io/dlpack)
  const Operations* operations = &no_operations();

  bool has(std::string_view feature) const;
  /// Both functions return in one line why a launch does not fit the device; nothing if it fits.
  std::optional<std::string> lacks_threadgroup_memory(size_t needed) const;
  std::optional<std::string> lacks_grid(const Grid& grid) const;
  nlohmann::ordered_json json() const;
};

/// Returns the reason why the device cannot run a plan; nothing if it can.
std::optional<std::string> skip_reason(const Plan& plan, const DeviceInfo& device);

/// Returns the plan's launch of phase `phase`. Throws BadInput with skip_reason() if the plan cannot run on the device,
/// and std::logic_error if the plan has no launch of this phase.
const Launch& planned_launch(const Plan& plan, std::string_view phase, const DeviceInfo& device);

/// Clocks, power and temperature of a device. A member is negative or empty if the device does not report it.
struct Clocks {
  double core_mhz = -1;
  double memory_mhz = -1;
  double power_w = -1;
  double temperature_c = -1;
  std::vector<std::string> throttle_reasons;
};

/// The contents of a kernel's machine code.
struct CodeContents {
  std::map<std::string, int> instructions;  // count of each instruction; empty if not reported
  std::map<std::string, int> classes;       // count of each class (instruction_class.h); empty if not reported
  /// The innermost loop with the most multiply-adds: the counts of its classes, and under "instructions" the count of
  /// all its instructions. Empty if there is none, or if not reported.
  std::map<std::string, int> loop;
  int64_t bytes = -1;  // bytes of code, without data; -1 if not reported
};

/// How a kernel is compiled. These options do not change the machine code.
struct CompileOptions {
  /// Keeps the compiled form of headers that read no function constant, for later kernels. Only on devices with the
  /// feature "pch".
  bool precompile_headers = false;
  /// Lets NVRTC (from 12.8 on) write a trace to a file in the temporary folder, so that Binary::times has the
  /// optimizer's time. Without the trace this time counts as the front end's. Only on devices with NVRTC.
  bool trace_phases = false;
};

/// A loaded kernel. The device must outlive its kernels.
class Kernel {
 public:
  virtual ~Kernel() = default;
  bool guarded = false;  // KernelSource::guarded; PipelineCache sets it
};

/// What a program with its own streams and threads hands to Device::open_for_caller().
struct Caller {
  std::optional<void*> stream = {};  // the only stream that a GPU's device works on; none: any stream
  /// Calls piece(work, number) once for each number from 0 to pieces - 1, on any threads, in any order. Returns when
  /// all calls have returned. Null: a device on the host makes threads of its own.
  void (*run)(void* context, size_t pieces, void (*piece)(void* work, size_t number), void* work) = nullptr;
  void* context = nullptr;
};

class Device {
 public:
  /// spec: "cpu", "cpu:threads=N", "cuda", "cuda:N", "metal" or "metal:emulated". Throws BadInput for an unknown spec,
  /// and DeviceMissing if the build or the machine lacks the device.
  static std::unique_ptr<Device> open(std::string_view spec);
  /// Opens a device for a program that has its own streams and passes one of them to enqueue(). On a GPU the device
  /// uses the GPU's primary context, and every call restores the calling thread's context, if the thread had one.
  /// If caller.stream is not set, the device copies on a stream of its own, and may allocate, upload and load while the
  /// program captures a stream. If caller.stream is set, the device works only on that stream; the comment of
  /// open_cuda_device_for() says which calls are then allowed during a capture. Throws as open() does.
  static std::unique_ptr<Device> open_for_caller(std::string_view spec, const Caller& caller = {});
  /// `backend`: "cpu", "cuda" or "metal". The machine may still lack the device.
  static bool is_built(std::string_view backend);
  /// Returns all specs that open() knows, for messages and --help. The build may lack the backend of a spec.
  static std::string known_specs();

  virtual ~Device() = default;
  const DeviceInfo& info() const { return info_; }
  /// Lowers the budget of threadgroup memory, to explore the budget of another device. Throws BadInput if `bytes` is 0,
  /// or more than the present budget.
  void limit_threadgroup_memory(size_t bytes);

  static constexpr size_t buffer_alignment = 4096;  // bytes
  /// The memory begins at a multiple of buffer_alignment. Throws OutOfMemory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* pointer) noexcept = 0;
  virtual void upload(void* target, const void* source, size_t bytes) = 0;
  virtual void download(void* target, const void* source, size_t bytes) = 0;
  /// Waits for the work on `stream`, then downloads. `stream` is a stream of the caller that is not being captured.
  /// Only for a device of open_for_caller().
  virtual void download_after(void* stream, void* target, const void* source, size_t bytes);

  /// Compiles without any cache. Throws CompileError. Safe to call from several threads.
  virtual Binary compile(const KernelSource& source, const CompileOptions& options = {}) = 0;
  /// Returns everything, apart from the source, that decides the code, for the cache's key: for example the compiler's
  /// version.
  virtual std::string compiler_identity() const = 0;
  virtual std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) = 0;

  /// Runs the commands in order and waits until they have run. Returns the seconds between successive timestamps.
  /// Denormal floats are flushed to zero in kernels. Throws OutOfMemory if threadgroup memory does not fit, DeviceFault
  /// if a kernel faults, and DeviceTimeout if a kernel takes too long.
  virtual std::vector<double> submit(const CommandEncoder& encoder) = 0;
  /// Hands the commands to the device. cuda runs them later, other devices in this call. Kernels and memory must live
  /// until the commands have run. Throws std::logic_error for an encoder with timestamps. If a command cannot be
  /// launched, enqueue() throws as submit() does; the commands before that command run nevertheless.
  virtual void enqueue(const CommandEncoder& encoder);
  /// As enqueue(), on a stream of the caller (a cudaStream_t; other devices ignore the stream). Only for a device of
  /// open_for_caller().
  virtual void enqueue(const CommandEncoder& encoder, void* stream);
  /// A thread that did not open the device must hold a Scope while it encodes. Encoding may make tensor maps, which the
  /// driver makes only in the GPU's context. The Scope makes this context current to the thread, and its destructor
  /// restores the previous context.
  class Scope {
   public:
    explicit Scope(const Device& device) : device_(device), before_(device.enter()) {}
    ~Scope() { device_.leave(before_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Device& device_;
    void* const before_;
  };
  /// The number of the graph into which the stream is being captured; 0 if there is none.
  virtual uint64_t capture_of(void* /*stream*/) const { return 0; }
  virtual Clocks clocks() const { return {}; }
  virtual CodeContents contents(const Binary&) const { return {}; }
  /// Whether the device has thrown DeviceLost. From then on submit() throws DeviceLost. On a GPU every other function
  /// that needs the GPU also throws DeviceLost, except release(). The emulated Metal device is never lost: it throws
  /// DeviceFault before the faulty access happens, and goes on.
  bool lost() const { return lost_; }
  /// Bytes of the device's own memory that no program uses; infinity for a device that uses the host's memory, or that
  /// does not report the number.
  virtual double available_bytes() const { return std::numeric_limits<double>::infinity(); }
  /// The bytes of all existing Buffers, including guard bands.
  size_t buffer_bytes() const { return buffer_bytes_; }

 protected:
  virtual void* enter() const { return nullptr; }
  virtual void leave(void* /*before*/) const {}

  DeviceInfo info_;
  std::atomic<bool> lost_ = false;

 private:
  friend class Buffer;
  std::atomic<size_t> buffer_bytes_ = 0;
};

/// Device memory with a guard band on either side. The memory starts as NaN (all bits set), so that an element that a
/// kernel forgets to write, or reads before it is written, usually shows as a NaN in the results. AddressSanitizer
/// reports a touch of the cpu device's guard bands at once.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, size_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// Copy the first `bytes` bytes. Throw BadInput if the buffer is smaller.
  void upload(const void* source, size_t bytes);
  void download(void* target, size_t bytes) const;
  /// Sets every bit of the buffer: NaN as f32, f16 and bf16.
  void poison();
  /// Whether both guard bands are unchanged.
  bool guards_intact() const;

  static constexpr size_t guard_bytes = 4096;

 private:
  Device* device_ = nullptr;
  void* block_ = nullptr;  // the allocated memory, with the guard bands
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Returns a buffer with a copy of the values. Without values its data() is null.
template <typename T>
Buffer uploaded(Device& device, const std::vector<T>& values) {
  if (values.empty()) return {};
  Buffer buffer(device, values.size() * sizeof(T));
  buffer.upload(values.data(), buffer.bytes());
  return buffer;
}

/// Returns a copy of the buffer's content.
template <typename T>
std::vector<T> downloaded(const Buffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  if (!values.empty()) buffer.download(values.data(), buffer.bytes());
  return values;
}
/// Returns the contents of the buffers, one after the other.
std::vector<std::byte> downloaded(std::initializer_list<const Buffer*> buffers);

}  // namespace attn
