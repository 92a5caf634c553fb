// Elements that are not finite, on the emulated Metal device. Its check of fast mathematics finds a kernel that
// computes with such an element.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/api/engine.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"

namespace attn {
namespace {

TEST(MetalElementsTest, ElementsThatAreNotFiniteReachTheRowsThatSeeThem) {
  Engine engine("metal:emulated", {.cache_folder = ATTN_TEST_KERNELS});
  const AttentionShape shape{
      .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 40, .kv_len = 40, .head_dim = 64, .causal = true};
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const auto drawn = [&](uint64_t stream) { return random_tensor(1, 1, 40, 64, type, Layout::bhsd, 1, stream); };
    const double most = type == DType::f32 ? 1e-5 : type == DType::f16 ? 4e-3 : 3e-2;
    const auto wrong = [&](Tensor& k, Tensor& v) -> std::string {
      Tensor q = drawn(0);
      std::vector<float> o(40 * 64);
      const auto view = [&](Tensor& tensor) {
        return TensorView{tensor.data.data(), type, 1, 1, 40, 64, tensor.strides()};
      };
      engine.flash({.q = view(q),
                    .k = view(k),
                    .v = view(v),
                    .o = {o.data(), DType::f32, 1, 1, 40, 64, {40 * 64, 40 * 64, 64}},
                    .causal = true});
      const std::vector<double> want = reference_attention(shape, q, k, v, all_rows(shape)).o;
      for (size_t i = 0; i < o.size(); ++i) {
        const bool same = std::isfinite(want[i]) ? std::abs(o[i] - want[i]) <= most
                          : std::isnan(want[i])  ? std::isnan(o[i])
                                                 : o[i] == static_cast<float>(want[i]);
        if (!same) return fmt::format("o[{}] is {}, not {}", i, o[i], want[i]);
      }
      return "";
    };
    for (const float value : {NAN, INFINITY}) {
      for (const int64_t d : {4, 5}) {  // both halves of a word
        Tensor k = drawn(1), v = drawn(2);
        k.set(0, 0, 13, d, value);
        EXPECT_EQ(wrong(k, v), "") << name(type) << ", K, " << value;
        k = drawn(1);
        v.set(0, 0, 13, d, value);
        EXPECT_EQ(wrong(k, v), "") << name(type) << ", V, " << value;
      }
    }
  }
}

}  // namespace
}  // namespace attn
