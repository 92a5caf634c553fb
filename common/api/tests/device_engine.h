// An engine on the device under test, for tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/api/engine.h"
#include "common/base/error.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/testing/messages.h"
#include "common/testing/tested_device.h"

namespace attn::test {

/// Returns the largest difference between a number of `got` and of `want`. It is infinity if one of two numbers is NaN,
/// or if only one is infinite.
inline double largest_difference(std::span<const float> got, std::span<const double> want) {
  EXPECT_EQ(got.size(), want.size());
  double most = got.size() == want.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double difference = got[i] == want[i] ? 0 : std::abs(got[i] - want[i]);
    most = std::max(most, std::isnan(difference) ? INFINITY : difference);
  }
  return most;
}

/// A call of Engine::flash() on random tensors, and the tensors for the oracle.
struct DrawnFlash {
  AttentionShape shape;
  Tensor q, k, v;
  FlashCall call;
};

class EngineOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    try {
      reopen();
      device_ = Device::open_for_caller(test_device);
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Opens the engine again, for example because the sources of kernels changed.
  void reopen() { engine_ = std::make_unique<Engine>(test_device, EngineOptions{.cache_folder = ATTN_TEST_KERNELS}); }
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
  DrawnFlash draw_flash(const AttentionShape& s, DType dtype = DType::f32) {
    const auto random = [&](int64_t heads, int64_t tokens, uint64_t stream) {
      return random_tensor(s.batch, heads, tokens, s.head_dim, dtype, Layout::bhsd, 1, stream);
    };
    DrawnFlash made{
        s, random(s.q_heads, s.q_len, 0), random(s.kv_heads, s.kv_len, 1), random(s.kv_heads, s.kv_len, 2), {}};
    made.call = {.q = on_device(made.q),
                 .k = on_device(made.k),
                 .v = on_device(made.v),
                 .o = drawn(s.batch, s.q_heads, s.q_len, s.head_dim, 3)};
    made.call.causal = s.causal;
    made.call.lse = on_device(std::vector<float>(static_cast<size_t>(s.batch * s.q_heads * s.q_len), NAN));
    return made;
  }
  /// Returns the largest difference of the call's outputs from the oracle's.
  double worst_of(const DrawnFlash& made, const ScoreFunction& score = {}, const SinkFunction& sink = {}) {
    const ReferenceRows want =
        reference_attention(made.shape, made.q, made.k, made.v, all_rows(made.shape), score, sink);
    const auto rows = static_cast<int64_t>(want.rows.size());
    return std::max(largest_difference(values(made.call.o), want.o),
                    largest_difference(values(made.call.lse, rows), want.lse));
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
  ASSERT_LE(largest_difference(got, want), most);
}

}  // namespace attn::test
