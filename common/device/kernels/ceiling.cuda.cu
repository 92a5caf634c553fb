// The ceilings of a GPU: a copy, a read, multiply-adds in registers, and matrix products whose operands stay in shared
// memory (wgmma on sm_90a) or in registers (mma.sync on other GPUs from sm_80 on).
//
// Function constants: NON_TEMPORAL (1: the caches drop the data early), ACCUMULATORS (independent chains of
// multiply-adds in a thread; all warps of a scheduler together need at least as many chains as a multiply-add's latency
// has cycles), IN_TYPE (the element type of the matrices; F32 stands for tf32). Launch: ceiling_threads threads per
// threadgroup (ceiling_copy and ceiling_read: copy_threads), no dynamic shared memory.
//
// Checked: ceiling_copy[ACCUMULATORS=8,IN_TYPE=2,NON_TEMPORAL=1] without spills
// Checked: ceiling_read[ACCUMULATORS=8,IN_TYPE=2,NON_TEMPORAL=1] without spills
// Checked: ceiling_fma[ACCUMULATORS=8,IN_TYPE=2,NON_TEMPORAL=0] without spills
// Checked: ceiling_mma[ACCUMULATORS=8,IN_TYPE=0,NON_TEMPORAL=0] without spills
// Checked: ceiling_mma[ACCUMULATORS=8,IN_TYPE=1,NON_TEMPORAL=0] without spills
// Checked: ceiling_mma[ACCUMULATORS=8,IN_TYPE=2,NON_TEMPORAL=0] without spills
#include "common/device/kernels/ceiling.h"
#include "common/kernel/types.h"

namespace {

using u32 = unsigned;
using u64 = unsigned long long;

// Returns two numbers of 16 bits or one of 32 bits, random in sign and mantissa, of magnitude 0.5 to 1. Random, because
// the power that arithmetic draws depends on the data, and the clock depends on the power.
inline u32 random_word(u32 seed) {
  seed = (seed ^ (seed >> 16)) * 0x7feb352du;
  seed = (seed ^ (seed >> 15)) * 0x846ca68bu;
  seed ^= seed >> 16;
  if constexpr (IN_TYPE == F32) return (seed & 0x807fffffu) | 0x3f000000u;
  return IN_TYPE == BF16 ? (seed & 0x807f807fu) | 0x3f003f00u : (seed & 0x83ff83ffu) | 0x38003800u;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(copy_threads) ceiling_copy(const CopyParams p) {
  const u64 count = p.part_bytes / sizeof(uint4);
  const uint4* source = static_cast<const uint4*>(p.source) + blockIdx.x * count;
  uint4* target = static_cast<uint4*>(p.target) + blockIdx.x * count;
  for (u64 i = threadIdx.x; i < count; i += copy_threads) {
    if (NON_TEMPORAL) {
      __stcs(target + i, __ldcs(source + i));
    } else {
      target[i] = source[i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(copy_threads) ceiling_read(const ReadParams p) {
  const u64 count = p.part_bytes / sizeof(float4);
  const float4* source = static_cast<const float4*>(p.source) + blockIdx.x * count;
  float sum = 0;
#pragma unroll 8
  for (u64 i = threadIdx.x; i < count; i += copy_threads) {
    const float4 values = NON_TEMPORAL ? __ldcs(source + i) : source[i];
    sum += values.x + values.y + values.z + values.w;
  }
  p.result[blockIdx.x * u64{copy_threads} + threadIdx.x] = sum;
}

// In an iteration a threadgroup does 2 * ceiling_threads * ACCUMULATORS flops.
extern "C" __global__ void __launch_bounds__(ceiling_threads) ceiling_fma(const ArithmeticParams p) {
  float sums[ACCUMULATORS];
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = i;
#pragma unroll 32  // so that the loop itself takes almost no instructions
  for (long long n = 0; n < p.iterations; ++n) {
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = sums[i] * p.factor + p.addend;
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; ++i) total += sums[i];
  p.result[blockIdx.x * ceiling_threads + threadIdx.x] = total;
}

// ceiling_mma. In an iteration a threadgroup does as many flops as A times B transposed, where A has ceiling_m rows, B
// has ceiling_n rows, and each row has ceiling_row_bytes bytes.
#if __CUDA_ARCH_FEAT_SM90_ALL

namespace {

// The descriptor of a matrix in shared memory with rows of 128 bytes and a swizzle of 128 bytes.
inline u64 descriptor(const void* matrix) {
  const u64 address = __cvta_generic_to_shared(matrix);
  return (address & 0x3ffff) >> 4 | 1ull << 16 | u64{8 * 128} >> 4 << 32 | 1ull << 62;
}

// The accumulators are registers that the assembly text declares, s0_0 to s15_7: 128 floats a thread.
#define ROW(i) "s" #i "_0, s" #i "_1, s" #i "_2, s" #i "_3, s" #i "_4, s" #i "_5, s" #i "_6, s" #i "_7"
#define ROWS(a, b, c, d) ROW(a) ", " ROW(b) ", " ROW(c) ", " ROW(d)
#define SUMS "{" ROWS(0, 1, 2, 3) ", " ROWS(4, 5, 6, 7) ", " ROWS(8, 9, 10, 11) ", " ROWS(12, 13, 14, 15) "}"
#define WGMMA(k, type, transposed)                                                                             \
  asm volatile(                                                                                                \
      "{ .reg .pred add; setp.ne.b32 add, %2, 0;\n"                                                            \
      "wgmma.mma_async.sync.aligned.m64n256" k ".f32." type "." type " " SUMS ", %0, %1, add, 1, 1" transposed \
      "; }" ::"l"(a),                                                                                          \
      "l"(b), "r"(add))

// Sums += A times B transposed, over 32 bytes of each row of A and of B. If `add` is 0, the sums begin at 0.
inline void multiply(u64 a, u64 b, int add) {
  if constexpr (IN_TYPE == F32) WGMMA("k8", "tf32", "");
  if constexpr (IN_TYPE == F16) WGMMA("k16", "f16", ", 0, 0");
  if constexpr (IN_TYPE == BF16) WGMMA("k16", "bf16", ", 0, 0");
}

}  // namespace

extern "C" __global__ void __launch_bounds__(ceiling_threads) ceiling_mma(const ArithmeticParams p) {
  static_assert(ceiling_m == 64 && ceiling_n == 256 && ceiling_row_bytes == 128 && ceiling_threads == 128);
  constexpr int a_words = ceiling_m * ceiling_row_bytes / 4, b_words = ceiling_n * ceiling_row_bytes / 4;
  __shared__ alignas(1024) u32 a[a_words], b[b_words];
  for (int i = threadIdx.x; i < a_words; i += ceiling_threads) a[i] = random_word(i);
  for (int i = threadIdx.x; i < b_words; i += ceiling_threads) b[i] = random_word(~i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  asm volatile(
      ".reg .f32 s0_<8>, s1_<8>, s2_<8>, s3_<8>, s4_<8>, s5_<8>, s6_<8>, s7_<8>, s8_<8>, s9_<8>, s10_<8>, s11_<8>, "
      "s12_<8>, s13_<8>, s14_<8>, s15_<8>;");
  const u64 a_rows = descriptor(a), b_rows = descriptor(b);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll 1  // the body already has four calls of multiply(), which are inlined
  for (long long n = 0; n < p.iterations; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply(a_rows + 2 * k, b_rows + 2 * k, k > 0 || n > 0);  // 32 bytes a step
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  float sum = 0;
  asm volatile("wgmma.wait_group.sync.aligned 0; add.f32 %0, s0_0, s15_7;" : "=f"(sum)::"memory");
  p.result[blockIdx.x * ceiling_threads + threadIdx.x] = sum;
}

#elif __CUDA_ARCH__ >= 800  // the host does not ask for ceiling_mma below sm_80

#include "common/kernel/ampere.h"

extern "C" __global__ void __launch_bounds__(ceiling_threads) ceiling_mma(const ArithmeticParams p) {
  constexpr int products = ceiling_m * ceiling_n * ceiling_row_bytes / (16 * 8 * 32) / (ceiling_threads / 32);
  constexpr int chains = 8;
  float sums[chains][4] = {};
  u32 a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = random_word(threadIdx.x * 8 + i);
  for (int i = 0; i < 2; ++i) b[i] = random_word(threadIdx.x * 8 + 4 + i);
#pragma unroll 1
  for (long long n = 0; n < p.iterations; ++n) {
#pragma unroll
    for (int i = 0; i < products; ++i) multiply_add<IN_TYPE>(sums[i % chains], a, b[0], b[1]);
  }
  float total = 0;
  for (const auto& sum : sums) total += sum[0] + sum[1] + sum[2] + sum[3];
  p.result[blockIdx.x * ceiling_threads + threadIdx.x] = total;
}

#endif
