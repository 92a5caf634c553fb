#include "common/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "common/base/asan.h"
#include "common/base/error.h"
#include "common/base/json.h"

namespace attn {

bool DeviceInfo::has(std::string_view feature) const {
  return std::find(features.begin(), features.end(), feature) != features.end();
}

std::optional<std::string> DeviceInfo::lacks_threadgroup_memory(size_t needed) const {
  if (needed <= threadgroup_memory_bytes) return std::nullopt;
  return fmt::format("needs {} bytes of threadgroup memory, {} has {}", needed, spec, threadgroup_memory_bytes);
}

std::optional<std::string> DeviceInfo::lacks_grid(const Grid& grid) const {
  const Grid& most = operations->most_threadgroups;
  if (grid.x <= most.x && grid.y <= most.y && grid.z <= most.z) return std::nullopt;
  return fmt::format("needs {} x {} x {} threadgroups, {} launches at most {} x {} x {}", grid.x, grid.y, grid.z, spec,
                     most.x, most.y, most.z);
}

namespace {

/// Returns a reason if the kernel has no file in the device's dialect.
std::optional<std::string> lacks_kernel(const KernelSource& source, const DeviceInfo& device) {
  const std::string ending = fmt::format(".{}", device.operations->kernel_ending);
  const std::string_view path = source.path;
  if (!path.ends_with(ending) || source.includes.contains(source.path)) return std::nullopt;
  const std::filesystem::path file = std::filesystem::path(source_root()) / path;
  // If the kernel's folder is missing too, the source root is wrong, and reading the source fails with that message.
  if (std::filesystem::exists(file) || !std::filesystem::exists(file.parent_path())) return std::nullopt;
  return no_kernel_for(path.substr(0, path.size() - ending.size()));
}

}  // namespace

std::optional<std::string> skip_reason(const Plan& plan, const DeviceInfo& device) {
  if (!plan.unable.empty()) return plan.unable;
  for (const Launch& launch : plan.launches) {
    if (auto reason = lacks_kernel(launch.source, device)) return reason;
    if (auto reason = device.lacks_grid(launch.grid)) return reason;
    if (auto reason = device.lacks_threadgroup_memory(launch.threadgroup_bytes)) return reason;
  }
  return std::nullopt;
}

const Launch& planned_launch(const Plan& plan, std::string_view phase, const DeviceInfo& device) {
  if (const auto reason = skip_reason(plan, device)) throw BadInput(*reason);
  const auto found = std::ranges::find(plan.launches, phase, &Launch::phase);
  if (found == plan.launches.end()) throw std::logic_error(fmt::format("the plan has no launch '{}'", phase));
  return *found;
}

Json DeviceInfo::json() const {
  return {{"spec", spec},
          {"backend", backend},
          {"name", name},
          {"arch", arch},
          {"toolchain", toolchain},
          {"features", features},
          {"units", units},
          {"simd_width", simd_width},
          {"vector_registers", vector_registers},
          {"threadgroup_memory_bytes", threadgroup_memory_bytes},
          {"last_level_cache_bytes", last_level_cache_bytes},
          {"memory_bytes", memory_bytes},
          {"peak_16_bit_tflops", peak_16_bit_tflops > 0 ? Json(peak_16_bit_tflops) : nullptr}};
}

void Device::limit_threadgroup_memory(size_t bytes) {
  if (bytes == 0 || bytes > info_.threadgroup_memory_bytes) {
    throw BadInput(
        fmt::format("threadgroup memory: {} bytes are not allowed; allowed are 1 to {}, the memory that {} has", bytes,
                    info_.threadgroup_memory_bytes, info_.spec));
  }
  info_.threadgroup_memory_bytes = bytes;
}

void Device::download_after(void* /*stream*/, void* target, const void* source, size_t bytes) {
  download(target, source, bytes);
}

void Device::enqueue(const CommandEncoder& encoder) {
  if (encoder.timestamps() > 0)
    throw std::logic_error("commands that are enqueued without a wait must have no timestamps");
  submit(encoder);
}
void Device::enqueue(const CommandEncoder& encoder, void* /*stream*/) { enqueue(encoder); }

namespace {

// The value of every byte of a guard band. poison() writes another byte, so guards_intact() also notices a poison()
// that writes too far.
constexpr unsigned char guard_byte = 0xA5;

// While a GuardAccess exists, the host may touch the guard bands of a buffer; at other times AddressSanitizer reports a
// touch.
class GuardAccess {
 public:
  GuardAccess(const Device& device, void* block, size_t bytes)
      : left_(static_cast<std::byte*>(block)),
        right_(left_ + Buffer::guard_bytes + bytes),
        guard_bytes_(device.info().on_host ? Buffer::guard_bytes : 0) {
    ASAN_UNPOISON_MEMORY_REGION(left_, guard_bytes_);
    ASAN_UNPOISON_MEMORY_REGION(right_, guard_bytes_);
  }
  ~GuardAccess() {
    ASAN_POISON_MEMORY_REGION(left_, guard_bytes_);
    ASAN_POISON_MEMORY_REGION(right_, guard_bytes_);
  }
  GuardAccess(const GuardAccess&) = delete;
  GuardAccess& operator=(const GuardAccess&) = delete;

 private:
  std::byte* const left_;
  std::byte* const right_;
  const size_t guard_bytes_;
};

size_t with_guards(size_t bytes) {
  if (bytes > SIZE_MAX - 2 * Buffer::guard_bytes)
    throw OutOfMemory(fmt::format("no device has {} bytes", bytes), bytes);
  return bytes + 2 * Buffer::guard_bytes;
}

void require_room(size_t bytes, size_t buffer_bytes) {
  if (bytes > buffer_bytes) throw BadInput(fmt::format("{} bytes do not fit a buffer of {}", bytes, buffer_bytes));
}

}  // namespace

Buffer::Buffer(Device& device, size_t bytes) : Buffer() {
  block_ = device.allocate(with_guards(bytes));
  data_ = static_cast<std::byte*>(block_) + guard_bytes;
  device_ = &device;
  bytes_ = bytes;
  device_->buffer_bytes_ += with_guards(bytes_);
  {
    const GuardAccess access(device, block_, bytes_);
    std::array<unsigned char, guard_bytes> guard;
    guard.fill(guard_byte);
    device_->upload(block_, guard.data(), guard_bytes);
    device_->upload(static_cast<std::byte*>(data_) + bytes_, guard.data(), guard_bytes);
  }
  poison();
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(block_, other.block_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (!block_) return;
  device_->release(block_);
  device_->buffer_bytes_ -= with_guards(bytes_);
}

void Buffer::upload(const void* source, size_t bytes) {
  require_room(bytes, bytes_);
  device_->upload(data(), source, bytes);
}

void Buffer::download(void* target, size_t bytes) const {
  require_room(bytes, bytes_);
  device_->download(target, data(), bytes);
}

void Buffer::poison() {
  CommandEncoder encoder;
  encoder.fill(data(), 0xFF, bytes_);
  device_->submit(encoder);
}

bool Buffer::guards_intact() const {
  if (!block_) return true;
  const GuardAccess access(*device_, block_, bytes_);
  std::array<unsigned char, 2 * guard_bytes> guard;
  device_->download(guard.data(), block_, guard_bytes);
  device_->download(guard.data() + guard_bytes, static_cast<std::byte*>(data_) + bytes_, guard_bytes);
  return std::all_of(guard.begin(), guard.end(), [](unsigned char byte) { return byte == guard_byte; });
}

std::vector<std::byte> downloaded(std::initializer_list<const Buffer*> buffers) {
  std::vector<std::byte> all;
  for (const Buffer* buffer : buffers) {
    const std::vector<std::byte> own = downloaded<std::byte>(*buffer);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace attn
