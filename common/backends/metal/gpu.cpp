#include "common/backends/metal/gpu.h"

#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/IOKitLib.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "common/base/error.h"

namespace attn {

NS::String* string_of(const std::string& text) {
  NS::String* const made =
      text.find('\0') == text.npos ? NS::String::string(text.c_str(), NS::UTF8StringEncoding) : nullptr;
  if (!made) throw BadInput("metal: a text is not UTF-8, or has a byte 0");
  return made;
}

std::string text_of(const NS::String* text) {
  const char* const bytes = text ? text->utf8String() : nullptr;
  return bytes ? bytes : "";
}

std::string text_of(const NS::Error* error) {
  const std::string text = error ? text_of(error->localizedDescription()) : "";
  return text.empty() ? "Metal gives no reason" : text;
}

namespace {

Owned<MTL::Device> default_gpu() {
  const Pool pool;
  auto gpu = NS::TransferPtr(MTL::CreateSystemDefaultDevice());
  if (gpu) return gpu;
  const auto all = NS::TransferPtr(MTL::CopyAllDevices());
  return all && all->count() > 0 ? NS::RetainPtr(all->object<MTL::Device>(0)) : Owned<MTL::Device>();
}

}  // namespace

std::shared_ptr<Gpu> Gpu::shared() {
  static std::mutex mutex;
  static std::weak_ptr<Gpu> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Gpu> gpu = known.lock();
  if (!gpu) known = gpu = std::make_shared<Gpu>();
  return gpu;
}

Gpu::Gpu() : metal_(default_gpu()) {
  if (!metal_) throw DeviceMissing("metal: this machine has no GPU that Metal can use");
  const Pool pool;
  is_macos_15_ = NS::ProcessInfo::processInfo()->isOperatingSystemAtLeastVersion({15, 0, 0});
  // GPUs before Apple6, and virtual ones, have no residency sets; make_resident() then names the memory to each
  // encoder.
  if (!is_macos_15_ || !metal_->supportsFamily(MTL::GPUFamilyApple6)) return;
  const auto descriptor = NS::TransferPtr(MTL::ResidencySetDescriptor::alloc()->init());
  NS::Error* error = nullptr;
  resident_ = NS::TransferPtr(metal_->newResidencySet(descriptor.get(), &error));
}

Gpu::~Gpu() {
  const Pool pool;  // for what Metal releases later
  blocks_.clear();
  resident_.reset();
  metal_.reset();
}

uint32_t Gpu::cores() {
  const io_service_t service = IOServiceGetMatchingService(kIOMainPortDefault, IOServiceMatching("AGXAccelerator"));
  if (!service) return 1;  // a virtual machine
  int cores = 0;
  const CFTypeRef found = IORegistryEntryCreateCFProperty(service, CFSTR("gpu-core-count"), kCFAllocatorDefault, 0);
  if (found && CFGetTypeID(found) == CFNumberGetTypeID()) {
    CFNumberGetValue(static_cast<CFNumberRef>(found), kCFNumberIntType, &cores);
  }
  if (found) CFRelease(found);
  IOObjectRelease(service);
  return static_cast<uint32_t>(std::max(cores, 1));
}

double Gpu::available_bytes() const {
  const double all = static_cast<double>(metal_->recommendedMaxWorkingSetSize());
  return std::max(all - static_cast<double>(metal_->currentAllocatedSize()), 0.0);
}

void* Gpu::allocate(size_t bytes, size_t alignment) {
  const Pool pool;
  const auto none = [&](const char* why) {
    return OutOfMemory(fmt::format("metal has no room for {} bytes{}", bytes, why), bytes);
  };
  const size_t most = metal_->maxBufferLength();
  if (most < alignment || bytes > most - alignment) throw none(", which are more than one buffer may have");
  if (static_cast<double>(bytes) > available_bytes()) throw none("");
  Block block{.buffer = NS::TransferPtr(metal_->newBuffer(
                  bytes + alignment, MTL::ResourceStorageModeShared | MTL::ResourceHazardTrackingModeUntracked)),
              .bytes = bytes};
  if (!block.buffer) throw none("");
  const uint64_t begin = block.buffer->gpuAddress(), address = (begin + alignment - 1) / alignment * alignment;
  if (begin == 0) throw std::runtime_error("metal: this GPU gives no addresses of its memory");
  block.offset = address - begin;
  MTL::Buffer* const buffer = block.buffer.get();
  const std::lock_guard lock(mutex_);
  if (!blocks_.emplace(address, std::move(block)).second) {
    throw std::runtime_error("metal: this GPU gives two buffers one address");
  }
  if (resident_) {
    resident_->addAllocation(buffer);
    resident_->commit();
  }
  return reinterpret_cast<void*>(address);
}

void Gpu::release(void* address) noexcept {
  const Pool pool;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<uint64_t>(address));
  if (found != blocks_.end()) end_use(found);
}

Gpu::Blocks::iterator Gpu::block_of(const MTL::Buffer& buffer) {
  const auto found = blocks_.lower_bound(buffer.gpuAddress());
  return found != blocks_.end() && found->second.buffer.get() == &buffer ? found : blocks_.end();
}

void Gpu::end_use(Blocks::iterator block) {
  if (--block->second.uses > 0) return;
  if (resident_ && !block->second.is_callers) {
    resident_->removeAllocation(block->second.buffer.get());
    resident_->commit();
  }
  blocks_.erase(block);
}

void* Gpu::borrow(MTL::Buffer& buffer) {
  const Pool pool;
  const uint64_t address = buffer.gpuAddress();
  const std::lock_guard lock(mutex_);
  const auto known = block_of(buffer);
  if (known != blocks_.end()) {
    ++known->second.uses;
  } else if (address == 0 ||
             !blocks_.emplace(address, Block{NS::RetainPtr(&buffer), 0, buffer.length(), true}).second) {
    throw BadInput("metal: a tensor's MTLBuffer has no address of its own for kernels");
  }
  return reinterpret_cast<void*>(address);
}

void Gpu::give_back(MTL::Buffer& buffer) noexcept {
  const Pool pool;
  const std::lock_guard lock(mutex_);
  const auto found = block_of(buffer);
  if (found != blocks_.end()) end_use(found);
}

void Gpu::keep_resident(MTL::Resource& resource) {
  const Pool pool;
  const std::lock_guard lock(mutex_);
  others_.insert(&resource);
  if (!resident_) return;
  resident_->addAllocation(&resource);
  resident_->commit();
}

void Gpu::release_resident(MTL::Resource& resource) noexcept {
  const Pool pool;
  const std::lock_guard lock(mutex_);
  others_.erase(&resource);
  if (!resident_) return;
  resident_->removeAllocation(&resource);
  resident_->commit();
}

Gpu::Place Gpu::place_of(const void* address, size_t bytes) const {
  const auto at = reinterpret_cast<uint64_t>(address);
  const std::lock_guard lock(mutex_);
  const auto after = blocks_.upper_bound(at);
  if (after != blocks_.begin()) {
    const auto& [begin, block] = *std::prev(after);
    const uint64_t from = at - begin;
    if (from <= block.bytes && bytes <= block.bytes - from) {
      const size_t offset = block.offset + from;
      auto* const host = static_cast<std::byte*>(block.buffer->contents());
      return {block.buffer.get(), offset, host ? host + offset : nullptr};
    }
  }
  throw std::logic_error(fmt::format("metal: {} bytes at {} lie in no memory of the device", bytes, address));
}

void Gpu::make_resident(MTL::CommandQueue& queue) const {
  if (resident_) queue.addResidencySet(resident_.get());
}

void Gpu::make_resident(MTL::ComputeCommandEncoder& encoder) const {
  const std::lock_guard lock(mutex_);
  std::vector<const MTL::Resource*> all;
  for (const auto& [address, block] : blocks_) {
    if (!resident_ || block.is_callers) all.push_back(block.buffer.get());
  }
  if (!all.empty()) encoder.useResources(all.data(), all.size(), MTL::ResourceUsageRead | MTL::ResourceUsageWrite);
  const std::vector<const MTL::Resource*> others(others_.begin(), others_.end());
  if (!resident_ && !others.empty()) encoder.useResources(others.data(), others.size(), MTL::ResourceUsageRead);
}

}  // namespace attn
