// The calls of attention with so few rows that a kernel of decoding serves them, if the device's kernel takes their
// types and width. Engine::flash uses these limits. PyTorch's operator few_rows() gives them to the Python code
// (python/attn_proto/dropin.py).
#pragma once

#include <cstdint>

namespace attn {

struct FewRows {
  int64_t queries = 16;  // the most queries of a sequence
  int64_t rows = 64;     // the most rows of queries for a key/value head
};
constexpr FewRows few_rows{};

}  // namespace attn
