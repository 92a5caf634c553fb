#include "common/backends/metal/emulated_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "common/backends/cpu/threadgroups.h"
#include "common/backends/metal/emulator/emulator.h"
#include "common/backends/metal/operations.h"
#include "common/backends/metal/table.h"
#include "common/backends/metal/text.h"
#include "common/base/error.h"
#include "common/base/host_memory.h"
#include "common/base/number.h"
#include "common/base/sha256.h"

namespace attn {

namespace {

struct EmulatedKernel : TableKernel {
  EmulatedKernel(const Binary& binary, std::string entry) : name(std::move(entry)), kernel(binary) {}
  uint64_t table() const override { return reinterpret_cast<uint64_t>(kernel.functions().data()); }
  const std::string name;
  const msl::Kernel kernel;
};

// Returns the lines that precede the kernel's text: users' texts, and declarations of the kernel's constants.
std::string prologue(const KernelSource& source) {
  return users_text_line(source) + metal_constants(source, [](const std::string& name) {
           return fmt::format("extern \"C\" {{ extern const int {}; }}\n", name);
         });
}

class EmulatedDevice : public Device {
 public:
  /// `spec` opens the same device in another process. With `callers_memory` a kernel may touch all addresses from
  /// buffer_alignment on, because the device cannot know which memory is the caller's. With `order` all launches run
  /// their threads in this order (msl::Run::order).
  EmulatedDevice(std::string_view spec, bool callers_memory, std::optional<uint32_t> order = std::nullopt,
                 msl::Generation generation = msl::Generation::m1)
      : callers_memory_(callers_memory), order_(order), generation_(generation) {
    info_.spec = spec;
    info_.backend = "metal";
    info_.name = info_.arch = "emulated";
    info_.toolchain = "clang, with the project's metal_stdlib";
    info_.features = {"untimed", metal_3_2, metal_tables, metal_libraries};
    info_.simd_width = msl::lanes_per_simdgroup;
    info_.threadgroup_memory_bytes = msl::most_threadgroup_bytes;
    info_.last_level_cache_bytes = size_t{8} << 20;
    info_.memory_bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
    info_.operations = &metal_operations();
  }
  ~EmulatedDevice() override {
    for (const auto& [block, memory] : blocks_) std::free(memory.whole);
  }

  void* allocate(size_t bytes) override {
    const size_t whole = bytes + 2 * gap_bytes;
    void* block = nullptr;
    if (whole < bytes || static_cast<double>(whole) >= available_host_bytes() ||
        posix_memalign(&block, buffer_alignment, whole) != 0) {
      throw OutOfMemory(fmt::format("{} has no room for {} bytes", info_.spec, bytes), bytes);
    }
    void* const begin = static_cast<std::byte*>(block) + gap_bytes;
    const std::lock_guard lock(mutex_);
    blocks_[begin] = {block, bytes};
    return begin;
  }
  void release(void* pointer) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end()) return;
    std::free(found->second.whole);
    blocks_.erase(found);
  }
  void upload(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);  // an empty vector's data may be null
  }
  void download(void* target, const void* source, size_t bytes) override { upload(target, source, bytes); }

  Binary compile(const KernelSource& source, const CompileOptions& /*options*/) override {
    const std::string root = source_root() + "/";
    msl::Source text{.path = root + source.path,
                     .function = source.entry,
                     .before = prologue(source),
                     .folders = {root},
                     .language = metal_language(source),
                     .key = source.key()};
    text.texts[text.path] = read_source(source, source.path);
    for (const auto& [name, content] : source.includes) text.texts[root + name] = content;
    for (const KernelSource& fragment : source.fragments)
      text.linked.emplace_back(fragment.entry, metal_text(fragment));
    Binary binary = compiler_.compile(text);
    binary.source_sha256 = source_sha256(source);
    binary.run_time = source.run_time_values();
    return binary;
  }
  std::string compiler_identity() const override { return compiler_.identity(); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return std::make_unique<EmulatedKernel>(binary, entry);
  }

  std::vector<double> submit(const CommandEncoder& encoder) override {
    std::vector<double> seconds = run_in_order(encoder, [this](const auto& command) { run(command); });
    std::ranges::fill(seconds, 0.0);  // the host's times say nothing about a GPU
    return seconds;
  }

 private:
  // Each buffer has this many bytes before it and after it, which no kernel may touch.
  static constexpr size_t gap_bytes = size_t{64} << 10;
  struct Block {
    void* whole = nullptr;
    size_t bytes = 0;
  };

  void run(const CommandEncoder::Dispatch& dispatch) {
    const auto& kernel = *static_cast<const EmulatedKernel*>(dispatch.kernel);
    msl::Run launch{.grid = dispatch.grid,
                    .threads = {dispatch.threads, 1, 1},
                    .order = order_.value_or(orders_++ % most_orders),
                    .generation = generation_};
    if (dispatch.threadgroup_bytes > 0) launch.threadgroup_bytes[0] = dispatch.threadgroup_bytes;
    const auto give = [&](uint32_t index, const std::vector<std::byte>& bytes) {
      launch.buffers[index] = bytes.data();
      launch.memory.push_back({fmt::format("the kernel's argument {}", index), bytes.data(), bytes.size()});
    };
    if (dispatch.arguments) {
      for (uint32_t index = 0; const Arguments::Value& value : dispatch.arguments->values()) give(index++, value);
    } else {
      give(0, dispatch.parameters);
    }
    if (const auto& functions = kernel.kernel.functions(); !functions.empty()) {
      launch.memory.push_back({"the table of functions", functions.data(), functions.size() * sizeof(void*)});
    }
    if (callers_memory_) {
      add_all_other(launch.memory);
    } else {
      const std::lock_guard lock(mutex_);
      for (const auto& [begin, block] : blocks_) {  // no kernel may touch a Buffer's guard bands
        const size_t bytes = block.bytes - 2 * Buffer::guard_bytes;
        launch.memory.push_back({fmt::format("a buffer of {} bytes", bytes),
                                 static_cast<const std::byte*>(begin) + Buffer::guard_bytes, bytes});
      }
    }
    try {
      kernel.kernel.run(launch);
    } catch (const DeviceFault& fault) {
      throw DeviceFault(fmt::format("{}: {}", info_.spec, fault.what()));
    }
  }
  // Adds all memory that is not in `parts` yet. In this memory the emulator finds races, but it cannot find accesses
  // out of bounds.
  static void add_all_other(std::vector<msl::Memory>& parts) {
    std::ranges::sort(parts, {}, &msl::Memory::data);
    const auto* begin = reinterpret_cast<const std::byte*>(buffer_alignment);  // a null pointer is out of bounds
    std::vector<msl::Memory> gaps;
    const auto add = [&](const void* end) {
      gaps.push_back({"the caller's memory", begin, static_cast<size_t>(static_cast<const std::byte*>(end) - begin)});
    };
    for (const msl::Memory& part : parts) {
      add(part.data);
      begin = static_cast<const std::byte*>(part.data) + part.bytes;
    }
    add(reinterpret_cast<const void*>(INTPTR_MAX));
    parts.insert(parts.end(), gaps.begin(), gaps.end());
  }
  void run(const CommandEncoder::Fill& fill) { std::memset(fill.target, fill.value, fill.bytes); }

  static constexpr uint32_t most_orders = 4;  // the number of orders that launches use in turn
  const bool callers_memory_;
  const msl::Compiler compiler_;
  std::mutex mutex_;
  std::map<void*, Block> blocks_;
  const std::optional<uint32_t> order_;  // of all launches; without a value the launches use several orders in turn
  uint32_t orders_ = 0;
  const msl::Generation generation_;
};

}  // namespace

std::unique_ptr<Device> open_metal_device(std::string_view spec) {
  constexpr std::string_view name = "metal:emulated", order_option = ":order=", gpu_option = ":gpu=";
  std::string_view rest = spec.starts_with(name) ? spec.substr(name.size()) : spec;
  if (spec.starts_with(name) && rest.empty()) return std::make_unique<EmulatedDevice>(spec, false);
  if (rest.starts_with(order_option)) {
    const auto order = to_number<uint32_t>(rest.substr(order_option.size()));
    if (order) return std::make_unique<EmulatedDevice>(spec, false, *order);
  } else if (rest.starts_with(gpu_option)) {
    rest.remove_prefix(gpu_option.size());
    const auto* const gpu = std::ranges::find(msl::generations, rest);
    if (gpu != std::end(msl::generations)) {
      const auto generation = static_cast<msl::Generation>(gpu - std::begin(msl::generations));
      return std::make_unique<EmulatedDevice>(spec, false, std::nullopt, generation);
    }
  }
  throw BadInput(
      fmt::format("device '{0}' is not allowed; allowed are {1}, {1}{2}N with N from 0 on, and {1}{3}G with G {4}",
                  spec, name, order_option, gpu_option, fmt::join(msl::generations, ", ")));
}
std::unique_ptr<Device> open_metal_device_for_caller(std::string_view spec, const Caller& /*caller*/) {
  if (spec == "metal:emulated") return std::make_unique<EmulatedDevice>(spec, true);
  throw BadInput(fmt::format("device '{}' is not allowed for a caller's memory; allowed is metal:emulated", spec));
}

}  // namespace attn
