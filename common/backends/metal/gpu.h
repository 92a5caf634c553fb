// The GPU of this process, and its memory. Only for files that are compiled with metal-cpp.
#pragma once

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace attn {

/// A reference to an object of Objective-C. NS::TransferPtr() makes it from what a function new...() or alloc()
/// returns.
template <typename T>
using Owned = NS::SharedPtr<T>;

/// Objects that Metal's other functions return live until the Pool of the calling thread ends.
class Pool {
 public:
  Pool() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~Pool() { pool_->drain(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  NS::AutoreleasePool* const pool_;
};

/// Returns a string that lives until the thread's Pool ends. Throws BadInput for a text that is not UTF-8.
NS::String* string_of(const std::string& text);
/// Returns the text; an empty text for null.
std::string text_of(const NS::String* text);
std::string text_of(const NS::Error* error);

/// Safe to use from several threads.
class Gpu {
 public:
  /// Returns the GPU that all devices of this process share. So a kernel of one device may touch memory that another
  /// device allocated. Throws DeviceMissing.
  static std::shared_ptr<Gpu> shared();
  Gpu();
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  MTL::Device& metal() const { return *metal_.get(); }
  /// Whether this system is macOS 15 or later.
  bool is_macos_15() const { return is_macos_15_; }
  /// Parts that run threadgroups at the same time; 1 if the system does not report them.
  static uint32_t cores();

  /// Returns the address for kernels, a multiple of `alignment`. The host cannot use the address. Throws OutOfMemory.
  void* allocate(size_t bytes, size_t alignment);
  void release(void* address) noexcept;
  double available_bytes() const;
  /// For BufferDevice (buffers.h). Kernels of encoders that begin while a buffer is borrowed may touch it.
  void* borrow(MTL::Buffer& buffer);
  void give_back(MTL::Buffer& buffer) noexcept;

  /// Keeps an object without an address, such as a table of functions, where kernels may touch it.
  void keep_resident(MTL::Resource& resource);
  void release_resident(MTL::Resource& resource) noexcept;

  struct Place {
    MTL::Buffer* buffer;
    size_t offset;    // in the buffer
    std::byte* host;  // the host's address; null if the host cannot touch a caller's buffer
  };
  /// Throws std::logic_error if the bytes do not lie in one allocation.
  Place place_of(const void* address, size_t bytes) const;

  /// Lets kernels of a queue or of an encoder touch all memory. If the GPU has residency sets, the queue gets a set of
  /// all own memory once, and each encoder names the callers' memory; else each encoder names all memory.
  void make_resident(MTL::CommandQueue& queue) const;
  void make_resident(MTL::ComputeCommandEncoder& encoder) const;

 private:
  struct Block {
    Owned<MTL::Buffer> buffer;
    size_t offset = 0, bytes = 0;
    bool is_callers = false;
    int uses = 1;  // allocate() or borrow()
  };
  using Blocks = std::map<uint64_t, Block>;
  Blocks::iterator block_of(const MTL::Buffer& buffer);
  void end_use(Blocks::iterator block);

  Owned<MTL::Device> metal_;
  bool is_macos_15_ = false;
  Owned<MTL::ResidencySet> resident_;  // null before macOS 15, and on GPUs before Apple6
  mutable std::mutex mutex_;           // for blocks_ and resident_
  Blocks blocks_;                      // by the address for kernels
  std::set<MTL::Resource*> others_;    // see keep_resident()
};

}  // namespace attn
