// The threadgroup memory that the kernels of the published study (docs/study.md) take in f32, for --dry-run on Metal,
// by the study's formulas. The study's figures at head_dim 128 (40 KB for a tile of 16x32; 14, 22 and 38 KB for pages;
// 24 and 40 KB for chunks) do not follow from these formulas.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/device/device.h"

namespace attn {

constexpr size_t study_floats(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

/// A tile of flash attention: Q, K and the scores.
constexpr size_t study_flash_bytes(int64_t head_dim, int64_t block_r, int64_t block_c) {
  return study_floats(block_r * head_dim + block_c * head_dim + block_r * block_c);
}

/// A page of K and V, with Q and the scores of 16 rows.
constexpr size_t study_page_bytes(int64_t head_dim, int64_t page_size) {
  constexpr int64_t rows = 16;
  return study_floats(rows * head_dim + 2 * page_size * head_dim + rows * page_size);
}

/// A chunk of linear attention: K and V.
constexpr size_t study_chunk_bytes(int64_t head_dim, int64_t value_dim, int64_t chunk) {
  return study_floats(chunk * (head_dim + value_dim));
}

/// Whether --dry-run prints the study's numbers of bytes for this device: the study is about Metal.
inline bool names_study_bytes(const DeviceInfo& device) { return device.operations->kernel_ending == "metal"; }

}  // namespace attn
