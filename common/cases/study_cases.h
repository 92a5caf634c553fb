// The cases of the published study (docs/study.md), for --profile study: most have one head, f32 and head_dim 64.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/records/case.h"

namespace attn {

inline const std::vector<int64_t> study_lengths = {256, 512, 1024, 2048};

/// Returns a sweep of `blocks`, each with the axes of `common` too.
inline Sweep study_cases(const Block& common, std::vector<Block> blocks) {
  for (Block& block : blocks) block.insert(block.end(), common.begin(), common.end());
  return {std::move(blocks)};
}

}  // namespace attn
