#include "common/backends/cpu/device.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "common/backends/cpu/compiler.h"
#include "common/backends/cpu/denormals.h"
#include "common/backends/cpu/guard.h"
#include "common/backends/cpu/loader.h"
#include "common/backends/cpu/memory.h"
#include "common/backends/cpu/pool.h"
#include "common/backends/cpu/threadgroups.h"
#include "common/base/asan.h"
#include "common/base/error.h"
#include "common/base/host_memory.h"
#include "common/base/number.h"
#include "common/base/platform.h"

namespace attn {

namespace {

// Keeps the pool's workers awake while an Awake lives.
class Awake {
 public:
  explicit Awake(ThreadPool& pool) : pool_(pool) { pool_.begin(); }
  ~Awake() { pool_.end(); }
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;

 private:
  ThreadPool& pool_;
};

class CpuKernel : public Kernel {
 public:
  CpuKernel(CpuLoader::Loaded loaded, std::string entry) : name(std::move(entry)), loaded_(std::move(loaded)) {}
  KernelFunction function() const { return loaded_.function; }

  const std::string name;

 private:
  CpuLoader::Loaded loaded_;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(unsigned threads, const Caller& caller) : pool_(threads, caller), scratch_(threads) {
    info_ = cpu_info(compiler_.target());
    info_.spec = fmt::format("cpu:threads={}", threads);
    // Processors of different architectures may have the same product name ("AMD EPYC"). So the name in records also
    // has the arch.
    const std::string product = processor_name();
    if (!product.empty()) info_.name = fmt::format("{} ({})", product, info_.arch);
    info_.units = threads;
    if (const uint32_t ways = data_cache(1).ways) info_.l1_ways = ways;
    if (const size_t l2 = data_cache(2).bytes) info_.threadgroup_memory_bytes = l2;
    info_.last_level_cache_bytes = std::max(data_cache(0).bytes, info_.threadgroup_memory_bytes);
    info_.memory_bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  }

  void* allocate(size_t bytes) override {
    // Linux may hand out more memory than the host has, and kill the process later. So this function first asks how
    // much memory is available.
    const bool fits = static_cast<double>(bytes) < available_host_bytes();
    if (void* block = fits ? memory_.allocate(bytes) : nullptr) return block;
    throw OutOfMemory(fmt::format("{} has no room for {} bytes", info_.spec, bytes), bytes);
  }
  void release(void* pointer) noexcept override { memory_.release(pointer); }
  void upload(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);  // an empty vector's data may be null
  }
  void download(void* target, const void* source, size_t bytes) override { upload(target, source, bytes); }

  Binary compile(const KernelSource& source, const CompileOptions& /*options*/) override {
    return compiler_.compile(source);
  }
  std::string compiler_identity() const override { return compiler_.identity(); }
  CodeContents contents(const Binary& binary) const override { return compiler_.contents(binary.code); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return std::make_unique<CpuKernel>(loader_.load(binary, entry), entry);
  }

  std::vector<double> submit(const CommandEncoder& encoder) override {
    const std::lock_guard lock(submitting_);
    if (lost()) std::rethrow_exception(why_lost_);
    std::optional<Awake> awake;
    if (shares_work(encoder.commands())) awake.emplace(pool_);
    return run_in_order(encoder, [this](const auto& command) { run(command); });
  }

 private:
  // Returns whether any command has work for more than one thread. If no command has such work, the workers may stay
  // asleep.
  static bool shares_work(const std::vector<CommandEncoder::Command>& commands) {
    return std::ranges::any_of(commands, [](const CommandEncoder::Command& command) {
      const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command);
      const auto* fill = std::get_if<CommandEncoder::Fill>(&command);
      return (dispatch && dispatch->grid.count() > 1) || (fill && fill->bytes > fill_chunk_bytes);
    });
  }

  void run(const CommandEncoder::Dispatch& dispatch) {
    reserve_scratch(dispatch.threadgroup_bytes);
    const auto& kernel = *static_cast<const CpuKernel*>(dispatch.kernel);
    const KernelFunction function = kernel.function();
    std::vector<const void*> list;
    if (dispatch.arguments) {
      for (const Arguments::Value& value : dispatch.arguments->values()) list.push_back(value.data());
    }
    const void* const parameters =
        dispatch.arguments ? static_cast<const void*>(list.data()) : dispatch.parameters.data();
    const Grid grid = dispatch.grid;
    std::atomic<bool> ended = false;
    std::optional<KernelFault> fault;  // the first fault
    pool_.run(grid.count(), [&](uint64_t item, unsigned thread) {
      if (kernel.guarded && ended) return;
      const Threadgroup group = threadgroup_at(grid, item, scratch_[thread].get(), dispatch.threadgroup_bytes);
      const FlushDenormals flush;
      if (!kernel.guarded) {
        function(parameters, &group);
      } else if (auto found = run_guarded(function, parameters, &group); found && !ended.exchange(true)) {
        fault = std::move(found);
      }
    });
    if (fault) lose(*fault, kernel.name);
  }

  // Faulty code may have written to any address before its fault, so the device is lost.
  [[noreturn]] void lose(const KernelFault& fault, const std::string& kernel) {
    const std::string what = fmt::format("{}: {}, with a user's function, {}", info_.spec, kernel, fault.what);
    why_lost_ =
        fault.timeout ? std::make_exception_ptr(DeviceTimeout(what)) : std::make_exception_ptr(DeviceFault(what));
    lost_ = true;
    std::rethrow_exception(why_lost_);
  }

  void run(const CommandEncoder::Fill& fill) {
    pool_.run((fill.bytes + fill_chunk_bytes - 1) / fill_chunk_bytes, [&](uint64_t item, unsigned) {
      const size_t begin = item * fill_chunk_bytes;
      std::memset(static_cast<std::byte*>(fill.target) + begin, fill.value,
                  std::min(fill_chunk_bytes, fill.bytes - begin));
    });
  }

  // Gives every thread at least `bytes` bytes of threadgroup memory. A build with AddressSanitizer reports an access
  // beyond `bytes`.
  void reserve_scratch(size_t bytes) {
    if (bytes > scratch_bytes_) {
      // A block has at least the size of a huge page, so that Linux can put the block on a huge page.
      const size_t rounded = std::max(bytes, CpuMemory::huge_page_bytes);
      for (auto& block : scratch_) block = {static_cast<unsigned char*>(allocate(rounded)), Release{this}};
      scratch_bytes_ = rounded;
    }
    for (const auto& block : scratch_) {
      ASAN_UNPOISON_MEMORY_REGION(block.get(), bytes);
      ASAN_POISON_MEMORY_REGION(block.get() + bytes, scratch_bytes_ - bytes);
    }
  }

  struct Release {
    CpuDevice* device = nullptr;
    void operator()(void* block) const { device->release(block); }
  };

  static constexpr size_t fill_chunk_bytes = size_t{1} << 20;

  CpuMemory memory_;
  const CpuCompiler compiler_;
  CpuLoader loader_;
  ThreadPool pool_;
  std::mutex submitting_;
  std::exception_ptr why_lost_;
  std::vector<std::unique_ptr<unsigned char, Release>> scratch_;  // one block per thread
  size_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Device> open_cpu_device(std::string_view spec) { return open_cpu_device_for_caller(spec, {}); }

std::unique_ptr<Device> open_cpu_device_for_caller(std::string_view spec, const Caller& caller) {
  constexpr std::string_view option = "cpu:threads=";
  constexpr unsigned most = 1024;
  if (spec == "cpu") return std::make_unique<CpuDevice>(usable_cores(), caller);
  if (spec.starts_with(option)) {
    const auto threads = to_number<unsigned>(spec.substr(option.size()));
    if (threads && *threads >= 1 && *threads <= most) return std::make_unique<CpuDevice>(*threads, caller);
  }
  throw BadInput(
      fmt::format("device '{}' is not allowed; allowed are cpu, and cpu:threads=N with N from 1 to {}", spec, most));
}

}  // namespace attn
