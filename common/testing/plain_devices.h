// Devices from which devices of tests derive.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/device/device.h"

namespace attn::test {

/// Keeps buffers in the host's memory. Compiles no source and runs no kernel, unless a derived class does.
class HostMemoryDevice : public Device {
 public:
  void* allocate(size_t bytes) override {
    void* block =
        std::aligned_alloc(buffer_alignment, (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment);
    return block ? block : throw OutOfMemory("the host has no memory left", bytes);
  }
  void release(void* pointer) noexcept override { std::free(pointer); }
  void upload(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);  // an empty vector's data may be null
  }
  void download(void* target, const void* source, size_t bytes) override { upload(target, source, bytes); }
  Binary compile(const KernelSource& source, const CompileOptions&) override {
    Binary binary;
    binary.key = source.key();
    return binary;
  }
  std::string compiler_identity() const override { return "none"; }
  std::unique_ptr<Kernel> load(const Binary&, const std::string&) override { return std::make_unique<Kernel>(); }
  std::vector<double> submit(const CommandEncoder&) override { return {}; }
};

/// Does what another device does.
class OtherDevice : public Device {
 public:
  explicit OtherDevice(Device& device) : device_(device) { info_ = device.info(); }

  void* allocate(size_t bytes) override { return device_.allocate(bytes); }
  void release(void* pointer) noexcept override { device_.release(pointer); }
  void upload(void* target, const void* source, size_t bytes) override { device_.upload(target, source, bytes); }
  void download(void* target, const void* source, size_t bytes) override { device_.download(target, source, bytes); }
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    return device_.compile(source, options);
  }
  std::string compiler_identity() const override { return device_.compiler_identity(); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return device_.load(binary, entry);
  }
  std::vector<double> submit(const CommandEncoder& encoder) override { return device_.submit(encoder); }

 protected:
  Device& device_;
};

}  // namespace attn::test
