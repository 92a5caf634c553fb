// The work of a launch: its flops and bytes. Rates are this work divided by a time, and are compared with a ceiling.
#pragma once

#include <string_view>

#include "common/data/tensor.h"

namespace attn {

/// The resource that limits the work's rate: matrix products or memory. Memory-bound work is judged by its time with
/// cold caches, and by its bytes per second.
enum class Bound { matrix, memory };
std::string_view name(Bound bound);

/// The work of one launch, or of all launches of a plan. In causal attention only unmasked pairs of query and key count
/// (about half of all pairs if there are as many queries as keys).
struct Work {
  double flops = 0;
  double bytes = 0;  // each input read once, each output written once
  Bound bound = Bound::matrix;
  DType dtype = DType::f32;  // type of the products; the rate of work is compared with the ceiling of this type
};

}  // namespace attn
