// An engine on the device under test, for tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "common/api/engine.h"
#include "common/base/error.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/testing/tested_device.h"

namespace attn::test {

class EngineOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    try {
      engine_ = std::make_unique<Engine>(test_device, EngineOptions{.cache_folder = ATTN_TEST_KERNELS});
      device_ = Device::open_for_caller(test_device);
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Copies a table, or a tensor's elements, to the device. The copy exists until the test ends.
  template <typename T>
  T* on_device(const std::vector<T>& values) {
    Buffer& buffer = buffers_.emplace_back(*device_, values.size() * sizeof(T));
    buffer.upload(values.data(), buffer.bytes());
    return static_cast<T*>(buffer.data());
  }
  TensorView on_device(const Tensor& tensor) {
    std::byte* const data = tensor.data.empty() ? nullptr : on_device(tensor.data);
    return {data, tensor.dtype, tensor.batch, tensor.heads, tensor.seq, tensor.dim, tensor.strides()};
  }
  /// Returns a dense bhsd tensor on the device with random elements.
  TensorView drawn(int64_t batch, int64_t heads, int64_t tokens, int64_t width, uint64_t stream,
                   DType dtype = DType::f32) {
    return on_device(random_tensor(batch, heads, tokens, width, dtype, Layout::bhsd, 1, stream));
  }
  /// Returns a copy of `data` on the host, made after all work on the default stream.
  template <typename T>
  std::vector<T> values(const T* data, int64_t count) {
    std::vector<T> copy(static_cast<size_t>(count));
    device_->download_after(nullptr, copy.data(), data, copy.size() * sizeof(T));
    return copy;
  }
  std::vector<float> values(const TensorView& view) {
    return values(static_cast<const float*>(view.data), view.batch * view.heads * view.tokens * view.width);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
};

/// Expects that every element differs by at most `most` from the wanted element, and is no NaN.
inline void expect_near(const std::vector<float>& got, const std::vector<double>& want, double most) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::abs(static_cast<double>(got[i]) - want[i]) <= most)
        << "element " << i << " is " << got[i] << ", not " << want[i];
  }
}

}  // namespace attn::test
