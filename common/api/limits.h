// Limits of calls that Python needs too. PyTorch's operator limits() gives them to python/attn_proto/dropin.py.
#pragma once

#include <cstdint>

namespace attn {

/// Engine::flash runs a call within these limits on the decoding kernel, if this kernel takes the call's types, sizes
/// and options.
struct FewRows {
  int64_t queries = 16;  // the most queries of a sequence
  int64_t rows = 64;     // the most query rows of a sequence that share a key/value head
};
constexpr FewRows few_rows{};

constexpr int64_t alignment_bytes = 16;  // of addresses and strides on a GPU; loads and tensor copies need it
constexpr double least_scale = 0x1p-126, most_scale = 0x1p127;  // magnitudes of a scale that is not 0

}  // namespace attn
