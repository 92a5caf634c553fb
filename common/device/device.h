// Device: the one virtual class between the experiments and what runs their kernels. It knows nothing of attention.
//
// The vocabulary is that of compute APIs; docs/design.md maps each word to CPU, CUDA and Metal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
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
  std::string spec;                     // what opens it again: "cpu:threads=2"
  std::string backend;                  // "cpu", "cuda"
  std::string name;                     // the product's name
  std::string arch;                     // what kernels are compiled for: "znver3", "sm_90a"
  std::string toolchain;                // the kernel compiler and its version
  std::vector<std::string> features;    // optional: instructions that a kernel may ask for ("avx2", "avx512bf16"), and
                                        // "pch" where CompileOptions::precompile_headers does something
  uint32_t units = 1;                   // threadgroups that run at once: host threads, multiprocessors
  uint32_t simd_width = 1;              // fp32 lanes of a simdgroup: a vector register, a warp
  uint32_t vector_registers = 0;        // simdgroup registers a thread can name (cpu), 0 where it is not a limit
  size_t threadgroup_memory_bytes = 0;  // budget of one threadgroup
  size_t last_level_cache_bytes = 0;
  size_t memory_bytes = 0;
  bool on_host = false;                // its kernels run on the host's threads, in the host's memory
  int dlpack_type = 1, dlpack_id = 0;  // as tensors of it are described (https://dmlc.github.io/dlpack); 1: cpu
  const Operations* operations = &no_operations();

  bool has(std::string_view feature) const;
  /// In one line why a threadgroup that needs so many bytes does not fit; nothing where it does.
  std::optional<std::string> lacks_threadgroup_memory(size_t needed) const;
  nlohmann::ordered_json json() const;
};

/// Why a plan does not run on the device. A kernel without a file in the device's dialect, and threadgroup memory that
/// does not fit, are reasons for all plans.
std::optional<std::string> skip_reason(const Plan& plan, const DeviceInfo& device);

/// The plan's launch of that phase. Throws BadInput with the reason where the plan does not run on the device, and
/// std::logic_error where it has no such launch.
const Launch& planned_launch(const Plan& plan, std::string_view phase, const DeviceInfo& device);

/// What the device tells of its state; negative or empty where it does not tell.
struct Clocks {
  double core_mhz = -1;
  double memory_mhz = -1;
  double power_w = -1;
  double temperature_c = -1;
  std::vector<std::string> throttle_reasons;
};

/// What stands in a kernel's machine code.
struct CodeContents {
  std::map<std::string, int> instructions;  // how often each one does; empty where the device does not tell
  std::map<std::string, int> classes;       // how often one of a class does (instruction_class.h); likewise
  /// Of the innermost loop with the most multiply-adds: its classes, and "instructions", all that it has. Empty where
  /// there is none, or the device does not tell.
  std::map<std::string, int> loop;
  int64_t bytes = -1;  // of code, without data; -1 where the device does not tell
};

/// How a kernel is compiled, not to what: the code is the same whatever these say.
struct CompileOptions {
  /// Keeps what the compiler made of headers that read no function constant, for the next kernel. Without effect on
  /// devices that do not have the feature "pch".
  bool precompile_headers = false;
  /// Tells all phases apart in Binary::times, even where that takes a file in the temporary folder (NVRTC, whose
  /// optimiser is counted as front end otherwise). Without effect on devices where it takes none.
  bool trace_phases = false;
};

/// A loaded kernel; it lives no longer than its device.
class Kernel {
 public:
  virtual ~Kernel() = default;
  bool guarded = false;  // KernelSource::guarded; PipelineCache sets it
};

class Device {
 public:
  /// "cpu", "cpu:threads=N", "cuda", "cuda:N". Throws BadInput for an unknown spec, DeviceMissing where the device is
  /// not there.
  static std::unique_ptr<Device> open(std::string_view spec);
  /// For a program that has streams of its own, each of which enqueue() takes: on a GPU the program's primary context,
  /// and a stream for what the device copies itself. It may allocate, upload and load while the program captures a
  /// stream. The calling thread's context is as before behind every call, if it had one. With a `stream` of the
  /// program's all that the device does is on that, as open_cuda_device_for() says. Throws as open() does.
  static std::unique_ptr<Device> open_for_caller(std::string_view spec, std::optional<void*> stream = {});
  /// Whether this build has the backend, "cpu" or "cuda". The machine may lack it all the same.
  static bool is_built(std::string_view backend);
  /// The specs this build can be asked for, for messages and --help.
  static std::string known_specs();

  virtual ~Device() = default;
  const DeviceInfo& info() const { return info_; }
  /// Lowers the threadgroup memory budget, to explore another device's. Throws BadInput above the device's own.
  void limit_threadgroup_memory(size_t bytes);

  static constexpr size_t buffer_alignment = 4096;  // bytes
  /// Memory that begins at a multiple of buffer_alignment. Throws OutOfMemory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* pointer) noexcept = 0;
  virtual void upload(void* target, const void* source, size_t bytes) = 0;
  virtual void download(void* target, const void* source, size_t bytes) = 0;
  /// The same after all that is on a stream of the caller's, which must not be captured; the device is one of
  /// open_for_caller().
  virtual void download_after(void* stream, void* target, const void* source, size_t bytes);

  /// Source to machine code, without any cache. Throws CompileError. Safe to call from several threads.
  virtual Binary compile(const KernelSource& source, const CompileOptions& options = {}) = 0;
  /// All that decides the code beside the source: compiler version, options, arch. Part of the cache key.
  virtual std::string compiler_identity() const = 0;
  virtual std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) = 0;

  /// Runs the commands in order and waits. Returns the seconds between successive timestamps. Denormal floats are
  /// flushed to zero in kernels. Throws OutOfMemory where threadgroup memory does not fit, DeviceFault and
  /// DeviceTimeout.
  virtual std::vector<double> submit(const CommandEncoder& encoder) = 0;
  /// Hands the commands to the device and does not wait for them where it can work on its own (cuda); on others it runs
  /// them. Kernels and memory must live until they have run. Throws std::logic_error for an encoder with timestamps,
  /// and what submit() throws for a command that cannot be launched; those before it are then under way.
  virtual void enqueue(const CommandEncoder& encoder);
  /// The same on a stream of the caller's (a cudaStream_t; others take none, and do what enqueue() does). The device is
  /// one of open_for_caller().
  virtual void enqueue(const CommandEncoder& encoder, void* stream);
  /// What a thread that did not open the device needs around its encoding, since tensor maps are made within a context:
  /// while this lives, the context of a GPU is current to the thread, and behind it what was.
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
  /// Numbers the graph that a caller captures the stream into; 0: none.
  virtual uint64_t capture_of(void* /*stream*/) const { return 0; }
  virtual Clocks clocks() const { return {}; }
  virtual CodeContents contents(const Binary&) const { return {}; }
  /// Whether it has thrown DeviceLost; it then does so whatever is asked of it, but for releasing.
  bool lost() const { return lost_; }
  /// Of all Buffers that are there, guard bands included.
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

/// Device memory with a guard band on either side; starts as NaN (all bits set), so that what a kernel fails to write
/// or reads too early shows. A build with AddressSanitizer reports a touch of the cpu device's guard bands at once.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, size_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// `bytes` may be less than the buffer's; more throws BadInput.
  void upload(const void* source, size_t bytes);
  void download(void* target, size_t bytes) const;
  /// Makes every byte all ones: NaN as f32, f16 and bf16.
  void poison();
  /// Whether both guard bands are as they were made.
  bool guards_intact() const;

  static constexpr size_t guard_bytes = 4096;

 private:
  Device* device_ = nullptr;
  void* block_ = nullptr;  // with guard bands
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace attn
