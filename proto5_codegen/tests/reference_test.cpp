// Tests of the oracle: results by hand, the tolerance, and the sample of rows.
#include "proto5_codegen/reference.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attn {
namespace {

CodegenCase small(CodegenWork work, int64_t tokens, int64_t head_dim) {
  CodegenCase one;
  one.work = work;
  one.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = tokens, .kv_len = tokens, .head_dim = head_dim};
  return one;
}

TEST(CodegenReference, ScoresAreScaledProducts) {
  const CodegenCase one = small(WORK_SCORES, 2, 4);
  CodegenTensors tensors = random_tensors(one, 1);
  for (int64_t i = 0; i < 8; ++i) {
    tensors.q.store(i, static_cast<double>(i));
    tensors.k.store(i, i < 4 ? 1 : 2);
  }
  const CodegenReference got = codegen_reference(one, tensors, checked_rows(one, 1));
  EXPECT_EQ(got.out, (std::vector<double>{3, 6, 11, 22}));
}

TEST(CodegenReference, SoftmaxDividesExponentialsByTheirSum) {
  const CodegenCase one = small(WORK_SOFTMAX, 3, 0);
  CodegenTensors tensors = random_tensors(one, 1);
  for (int64_t i = 0; i < 3; ++i) tensors.in.store(i, std::log(static_cast<float>(i + 1)));
  const CodegenReference got = codegen_reference(one, tensors, {{0, 0, 0}});
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got.out[i], static_cast<double>(i + 1) / 6, 1e-7);
}

TEST(CodegenReference, ValuesAreWeighted) {
  const CodegenCase one = small(WORK_VALUES, 2, 2);
  CodegenTensors tensors = random_tensors(one, 1);
  for (int64_t i = 0; i < 4; ++i) {
    tensors.in.store(i, static_cast<double>(i + 1));
    tensors.v.store(i, i < 2 ? 1 : 10);
  }
  const CodegenReference got = codegen_reference(one, tensors, checked_rows(one, 1));
  EXPECT_EQ(got.out, (std::vector<double>{21, 21, 43, 43}));
}

// One of n equal terms is 1 / n of the sum. The tolerance must stay below a fifth of this share at every length.
TEST(CodegenReference, AMissingKeyExceedsTheTolerance) {
  for (const int64_t tokens : {64, 1024, 8192}) {
    CodegenCase one = small(WORK_VALUES, tokens, 2);
    CodegenTensors tensors = random_tensors(one, 1);
    const CodegenReference got = codegen_reference(one, tensors, {{0, 0, 0}});
    double size = 0;
    for (int64_t key = 0; key < tokens; ++key) size += std::abs(tensors.in.load(key) * tensors.v.load(2 * key));
    EXPECT_LT(got.allowed[0], 0.2 * size / static_cast<double>(tokens)) << tokens;
  }
}

TEST(CodegenReference, LargeCasesCheckASample) {
  EXPECT_EQ(checked_rows(small(WORK_SCORES, 64, 64), 1).size(), 64u);
  EXPECT_LT(checked_rows(small(WORK_SCORES, 8192, 64), 1).size(), 8192u);
  EXPECT_GE(checked_rows(small(WORK_SCORES, 8192, 64), 1).size(), 57u);
}

}  // namespace
}  // namespace attn
