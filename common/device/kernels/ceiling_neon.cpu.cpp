// The kernels of ceiling.cpu.cpp for AArch64, where a multiply-add adds to a register: sum * factor + addend, as in
// ceiling.cpu.cpp, would first copy the addend. The function constants and the launch are the same.
#include "common/device/kernels/ceiling.h"
#include "common/kernel/cpu.h"
// This header comes last, because it uses the two above.
#include "common/device/kernels/ceiling_memory_cpu.h"

// An iteration does 2 * VECTOR_WIDTH * ACCUMULATORS flops. The compiler must see each multiply-add as one operation:
// it would move a product that does not change out of the loop. A sum grows until the products no longer change it.
extern "C" void ceiling_fma(const ArithmeticParams* params, const Threadgroup* group) {
  const Lanes factor = Lanes{} + params->factor, addend = Lanes{} + params->addend;
  Lanes sums[ACCUMULATORS];
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = Lanes{} + static_cast<float>(i);
  for (long long n = 0; n < params->iterations; ++n) {
    UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = __builtin_elementwise_fma(factor, addend, sums[i]);
  }
  Lanes total = {};
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) total += sums[i];
  store(params->result + group->index[0] * VECTOR_WIDTH, total);
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
// BFMMLA does 32 flops: 2 x 2 dot products of 4 numbers. The products of a dot product cancel, so the sums do not
// change.
extern "C" void ceiling_bf16(const ArithmeticParams* params, const Threadgroup* group) {
  static_assert(VECTOR_WIDTH == 4);
  using Bytes = Vector<signed char, 16>;
  constexpr int floats = 41;  // clang's number for the type of the result
  const auto left = reinterpret_cast<Bytes>(Vector<unsigned, 4>{} + 0x3f803f80u);   // pairs (1, 1)
  const auto right = reinterpret_cast<Bytes>(Vector<unsigned, 4>{} + 0xbf803f80u);  // pairs (1, -1)
  Lanes sums[ACCUMULATORS];
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = Lanes{} + static_cast<float>(i + 1);
  for (long long n = 0; n < params->iterations; ++n) {
    UNROLL for (int i = 0; i < ACCUMULATORS; ++i) {
      sums[i] =
          reinterpret_cast<Lanes>(__builtin_neon_vbfmmlaq_f32(reinterpret_cast<Bytes>(sums[i]), left, right, floats));
    }
  }
  Lanes total = {};
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) total += sums[i];
  store(params->result + group->index[0] * VECTOR_WIDTH, total);
}
#endif
