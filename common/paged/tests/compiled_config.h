// A configuration for tests that compile kernels and do not run them.
#pragma once

#include "common/paged/decode.h"

namespace attn {

inline DecodeConfig compiled_config(DType dtype, DType cache_dtype, int64_t q_len) {
  return {.shape = {.batch = 2, .q_heads = 10, .kv_heads = 2, .q_len = q_len, .kv_len = 512, .head_dim = 128},
          .dtype = dtype,
          .cache_dtype = cache_dtype,
          .out_dtype = dtype,
          .page_size = 16,
          .join_last = false};
}

}  // namespace attn
