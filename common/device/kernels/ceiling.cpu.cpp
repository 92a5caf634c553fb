// Kernels that measure a CPU's ceilings, its highest rates of copies, of reads, and of arithmetic in registers.
//
// Function constants: VECTOR_WIDTH (f32 lanes), ACCUMULATORS (independent chains of multiply-adds or dot products; at
// least an instruction's latency in cycles times the number of instructions that can start in a cycle), NON_TEMPORAL
// (1: with clang, the stores of the copy bypass the caches). Launch: one threadgroup per part of the work, no
// threadgroup memory.
#include "common/device/kernels/ceiling.h"

#include "common/kernel/amx.h"
#include "common/kernel/cpu.h"
// This header comes last, because it uses the two above.
#include "common/device/kernels/ceiling_memory_cpu.h"

// An iteration does 2 * VECTOR_WIDTH * ACCUMULATORS flops.
extern "C" void ceiling_fma(const ArithmeticParams* params, const Threadgroup* group) {
  const Lanes factor = Lanes{} + params->factor, addend = Lanes{} + params->addend;
  Lanes sums[ACCUMULATORS];
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = Lanes{} + static_cast<float>(i);
  for (long long n = 0; n < params->iterations; ++n) {
    UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = sums[i] * factor + addend;
  }
  Lanes total = {};
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) total += sums[i];
  store(params->result + group->index[0] * VECTOR_WIDTH, total);
}

#if defined(__AVX512BF16__) && defined(__clang__)
// An iteration does 4 * VECTOR_WIDTH * ACCUMULATORS flops. The two products of a dot product cancel, so the sums do not
// change.
extern "C" void ceiling_bf16(const ArithmeticParams* params, const Threadgroup* group) {
  static_assert(VECTOR_WIDTH == 16);
  typedef __bf16 Pairs __attribute__((vector_size(64)));
  Pairs left, right;
  UNROLL for (int i = 0; i < 32; ++i) {
    left[i] = static_cast<__bf16>(1.0f);
    right[i] = static_cast<__bf16>(i % 2 == 0 ? 1.0f : -1.0f);
  }
  Lanes sums[ACCUMULATORS];
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = Lanes{} + static_cast<float>(i + 1);
  for (long long n = 0; n < params->iterations; ++n) {
    UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = __builtin_ia32_dpbf16ps_512(sums[i], left, right);
  }
  Lanes total = {};
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) total += sums[i];
  store(params->result + group->index[0] * VECTOR_WIDTH, total);
}
#endif

#ifdef __AMX_BF16__
// An iteration does ceiling_amx_flops flops, in four tiles of sums. The operands are zeros; other operands in registers
// take the same time.
extern "C" void ceiling_amx(const ArithmeticParams* params, const Threadgroup* group) {
  static const TileShapes shapes;
  __builtin_ia32_tile_loadconfig(&shapes);
  for (long long n = 0; n < params->iterations; ++n) {
    __builtin_ia32_tdpbf16ps(0, 4, 6);
    __builtin_ia32_tdpbf16ps(1, 4, 7);
    __builtin_ia32_tdpbf16ps(2, 5, 6);
    __builtin_ia32_tdpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[16 * 16];
  __builtin_ia32_tilestored64(0, sums, 64);
  __builtin_ia32_tilerelease();
  store(params->result + group->index[0] * VECTOR_WIDTH, load<Lanes>(sums));
}
#endif
