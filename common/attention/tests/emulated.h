// Plain code for instructions that the host may lack. Of x86: the instructions for the tile registers of AMX, the dot
// product of bf16 pairs, and the conversion of f32 to bf16. Of AArch64: the product of matrices of bf16, and the
// multiply-adds of f16 with sums of f32. With this code, kernels that use these instructions run on any host. A kernel
// that uses tile registers then runs one threadgroup at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/source/kernel_source.h"

namespace attn::test {

/// The features of a host for which `tuned` has all kernels of AArch64.
inline const std::vector<std::string> neon_features = {"bf16", "fp16fml", "neon"};

/// Returns KernelSource::includes for a kernel of the cpu dialect. The headers in this map replace the instructions by
/// plain code.
inline std::map<std::string, std::string> emulated_instructions() {
  constexpr const char* header = "common/kernel/cpu.h";
  constexpr const char* text = R"(
#include "common/kernel/amx.h"

namespace emulated {

using Floats = Vector<float, 16>;
using Words = Vector<unsigned, 16>;

static Words tiles[8][16];  // [register][row]
static int taken;           // tiles belong to one threadgroup, from tile_loadconfig to tilerelease

INLINE void take() {
  while (__atomic_exchange_n(&taken, 1, __ATOMIC_ACQUIRE)) {
  }
}
INLINE void release() { __atomic_store_n(&taken, 0, __ATOMIC_RELEASE); }
INLINE void zero(int tile) {
  for (int row = 0; row < 16; ++row) tiles[tile][row] = Words{};
}
INLINE void load_tile(int tile, const void* from, long step) {
  for (int row = 0; row < 16; ++row) {
    __builtin_memcpy(&tiles[tile][row], static_cast<const char*>(from) + row * step, 64);
  }
}
INLINE void store_tile(int tile, void* to, long step) {
  for (int row = 0; row < 16; ++row) __builtin_memcpy(static_cast<char*>(to) + row * step, &tiles[tile][row], 64);
}

/// Returns `acc` plus two products in each lane. Each lane of a and b is a pair. One product multiplies the low
/// elements of the two pairs, the other product the high elements.
INLINE Floats add_products(Floats acc, Words a, Words b) {
  const auto low = [](Words pairs) { return reinterpret_cast<Floats>(pairs << 16); };
  const auto high = [](Words pairs) { return reinterpret_cast<Floats>(pairs & 0xFFFF0000u); };
  return acc + high(a) * high(b) + low(a) * low(b);
}
INLINE void multiply(int sums, int a, int b) {
  for (int row = 0; row < 16; ++row) {
    Floats acc = reinterpret_cast<Floats>(tiles[sums][row]);
    for (int i = 0; i < 16; ++i) acc = add_products(acc, Words{} + tiles[a][row][i], tiles[b][i]);
    tiles[sums][row] = reinterpret_cast<Words>(acc);
  }
}

/// Rounds to nearest even. A NaN stays a NaN.
INLINE Vector<unsigned short, 32> to_bf16(Floats high, Floats low) {
  Vector<unsigned short, 32> both;
  store_floats<BF16, 16>(&both, 0, low);
  store_floats<BF16, 16>(&both, 16, high);
  return both;
}

using Quad = Vector<float, 4>;
using Bytes = Vector<signed char, 16>;

/// Returns `acc`, 2 x 2 sums, plus the products of two rows of four numbers of bf16 with two such rows.
INLINE Quad multiply_rows(Bytes acc, Bytes a, Bytes b) {
  Quad sums = reinterpret_cast<Quad>(acc);
  const auto left = load_floats<BF16, 8>(&a, 0), right = load_floats<BF16, 8>(&b, 0);
  for (int i = 0; i < 16; ++i) sums[i / 4] += left[i / 8 * 4 + i % 4] * right[i / 4 % 2 * 4 + i % 4];
  return sums;
}
/// Returns `acc` plus the products of four numbers of f16 from number `first` of a and b on.
INLINE Quad multiply_add_f16(Bytes acc, Bytes a, Bytes b, int first) {
  Quad sums = reinterpret_cast<Quad>(acc);
  const auto left = load_floats<F16, 8>(&a, 0), right = load_floats<F16, 8>(&b, 0);
  for (int i = 0; i < 4; ++i) sums[i] += left[first + i] * right[first + i];
  return sums;
}

}  // namespace emulated

#define __builtin_neon_vbfmmlaq_f32(acc, a, b, type) ((void)(type), emulated::multiply_rows(acc, a, b))
#define __builtin_neon_vfmlalq_low_f16(acc, a, b, type) ((void)(type), emulated::multiply_add_f16(acc, a, b, 0))
#define __builtin_neon_vfmlalq_high_f16(acc, a, b, type) ((void)(type), emulated::multiply_add_f16(acc, a, b, 4))
#define __builtin_ia32_tile_loadconfig(shapes) ((void)(shapes), emulated::take())
#define __builtin_ia32_tilerelease emulated::release
#define __builtin_ia32_tilezero emulated::zero
#define __builtin_ia32_tileloadd64 emulated::load_tile
#define __builtin_ia32_tilestored64 emulated::store_tile
#define __builtin_ia32_tdpbf16ps emulated::multiply
#define __builtin_ia32_cvtne2ps2bf16_512 emulated::to_bf16
#define __builtin_ia32_dpbf16ps_512(acc, a, b) \
  emulated::add_products(acc, reinterpret_cast<emulated::Words>(a), reinterpret_cast<emulated::Words>(b))
)";
  return {{header, read_file(source_root() + "/" + header).value() + text}};
}

}  // namespace attn::test
