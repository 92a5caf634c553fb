// The work of a launch, for rates and their ceiling.
#pragma once

#include <string_view>

#include "common/data/tensor.h"

namespace attn {

/// The resource that limits work at best: the rate of products, or the rate of memory. Work that memory limits is
/// judged by its time with cold caches, and by the bytes a second that it moves.
enum class Bound { matrix, memory };
std::string_view name(Bound bound);

/// The work of one launch. Causal attention counts only unmasked pairs (about half).
struct Work {
  double flops = 0;
  double bytes = 0;  // each input read once, each output written once
  Bound bound = Bound::matrix;
  DType dtype = DType::f32;  // of the products; the rate is compared with the ceiling of this type
};

}  // namespace attn
