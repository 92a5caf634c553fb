// Engine::flash runs a call within these limits on the decoding kernel, if this kernel takes the call's types, sizes
// and options. PyTorch's operator few_rows() gives the limits to the Python code (python/attn_proto/dropin.py).
#pragma once

#include <cstdint>

namespace attn {

struct FewRows {
  int64_t queries = 16;  // the most queries of a sequence
  int64_t rows = 64;     // the most query rows of a sequence that share a key/value head
};
constexpr FewRows few_rows{};

}  // namespace attn
