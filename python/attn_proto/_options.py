"""Fields of the structs of options in attn.h, each with its type in C and the value that is off.

scripts/options writes this file, from common/attention/options.def."""

FLASH = (
    ("layout", "attn_layout", 0),
    ("causal", "bool", 0),
    ("scale", "scale", 0),
    ("soft_cap", "double", 0),
    ("window_left", "int64_t", -1),
    ("window_right", "int64_t", -1),
    ("prefix", "int64_t", 0),
    ("global_tokens", "int64_t", 0),
    ("alibi", "bool", 0),
    ("alibi_slopes", "const DLTensor*", None),
    ("sinks", "const DLTensor*", None),
    ("lengths", "const DLTensor*", None),
    ("documents", "const DLTensor*", None),
    ("blocks", "const DLTensor*", None),
    ("bias", "const DLTensor*", None),
    ("lse", "output", None),
)
CACHE = (
    ("layout", "attn_layout", 0),
    ("cache_layout", "attn_layout", 0),
    ("scale", "scale", 0),
    ("lengths", "const DLTensor*", None),
    ("table", "const DLTensor*", None),
    ("k_scales", "const DLTensor*", None),
    ("v_scales", "const DLTensor*", None),
    ("new_k", "const DLTensor*", None),
    ("new_v", "const DLTensor*", None),
    ("cosines", "const DLTensor*", None),
    ("sines", "const DLTensor*", None),
    ("interleaved", "bool", 0),
    ("lse", "output", None),
)
LINEAR = (
    ("layout", "attn_layout", 0),
    ("causal", "bool", 1),
    ("normalised", "bool", 0),
    ("feature", "const char*", None),
    ("scale", "scale", 0),
    ("gate", "const DLTensor*", None),
    ("initial_state", "const DLTensor*", None),
    ("final_state", "output", None),
)
ROPE = (
    ("layout", "attn_layout", 0),
    ("rotary_dim", "int64_t", 0),
    ("interleaved", "bool", 0),
    ("theta", "double", 10000),
    ("scaling", "attn_rope_scaling", 0),
    ("factor", "double", 1),
    ("original_length", "double", 8192),
    ("offsets", "const DLTensor*", None),
)
