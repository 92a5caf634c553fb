// Tensors of programs on a Metal device: DLPack hands over an MTLBuffer, and an offset in it.
#pragma once

#include <cstdint>
#include <utility>

namespace attn {

/// A device whose callers' tensors are MTLBuffers. Safe to use from several threads.
class BufferDevice {
 public:
  virtual ~BufferDevice() = default;
  /// Lets kernels touch a caller's buffer, an id<MTLBuffer> of the default GPU, until give_back() is called as often as
  /// borrow(). Returns the address of the buffer for kernels. Throws BadInput for a buffer without an address.
  virtual void* borrow(void* buffer) = 0;
  virtual void give_back(void* buffer) noexcept = 0;
  /// Returns the buffer that has the memory at an address of this device, and the offset in it.
  virtual std::pair<void*, uint64_t> buffer_of(const void* address) const = 0;
};

}  // namespace attn
