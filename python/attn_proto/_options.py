"""Fields of the structs of options in attn.h, each with its type and the value that turns the option off; and what
the fields mean.

scripts/tools/options writes this file, from common/attention/options.def."""

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
    ("starts", "const DLTensor*", None),
    ("cu_seqlens_q", "const DLTensor*", None),
    ("cu_seqlens_k", "const DLTensor*", None),
    ("mask", "const DLTensor*", None),
)
FLASH_MEANINGS = {
    "causal":
        "True: a query sees the keys up to its own",
    "scale":
        "None: 1 / sqrt(width)",
    "soft_cap":
        "cap tanh(score / cap), with a cap from 0.001 to 1000; 0: none",
    "window_left":
        "how many keys before its own key a query sees; -1: all",
    "window_right":
        "how many keys after its own key a query sees; -1: all",
    "prefix":
        "with causal: how many first keys every query sees in addition",
    "global_tokens":
        "with a window: how many first tokens see all keys, and are seen by all queries, as far as causal allows",
    "alibi":
        "True: slope times (own key's number - key's number) is subtracted from a score",
    "alibi_slopes":
        "float32 [q_heads]. None: 2^(-8 i / q_heads) for head i, counted from 1, if q_heads is a power of two. "
        "Else the first slopes are the slopes of the next smaller power of two, and the other slopes are every "
        "second slope of the next larger power of two (Press et al. 2022)",
    "sinks":
        "float32 [q_heads]: a logit for each head. Its exponential is added to the denominator of the head's "
        "softmaxes",
    "lengths":
        "int32 [batch], from 0 to kv_len: how many keys each sequence has; later keys are padding",
    "documents":
        "int32 [kv_len, 2]: for each key, the number of the first key of its document, and the number of the last "
        "key plus 1. A query sees only keys of its own key's document. Neither number decreases from a key to the "
        "next",
    "blocks":
        "int32 or unsigned [kv_len / 128, kv_len / 4096], both rounded up: for each block of 128 positions of "
        "queries, a bit for each block of 128 keys, the lowest bit of a word first. If the bit is 0, these queries "
        "see none of these keys. A query's position is the number of its own key",
    "bias":
        "float32 [batch, q_heads, q_len, kv_len rounded up to a multiple of 4], where each size may also be 1; "
        "added to the scores. -infinity hides a key, even if the key holds NaN or infinity. Elements after kv_len "
        "are not used",
    "starts":
        "int32 [batch], from 0 to kv_len: the first key of each sequence; keys before it are padding, which no "
        "query sees. Queries and keys keep their positions. With causal, queries before the first key see nothing",
    "cu_seqlens_q":
        "cu_seqlens_q and cu_seqlens_k are int32 [sequences + 1]; a call sets both or neither. With both, the "
        "batch is 1, and its tokens belong to several sequences, one after the other. Sequence i has the queries "
        "[cu_seqlens_q[i], cu_seqlens_q[i + 1]), and the keys between the same elements of cu_seqlens_k. The first "
        "element is 0, and no element is less than the previous element. A query sees only keys of its sequence. "
        "The last query of a sequence stands at the sequence's last key; prefix counts from the sequence's first "
        "key. Tokens after the last element belong to no sequence. Not allowed with any of global_tokens, alibi, "
        "lengths, documents, blocks, bias, starts and mask",
    "cu_seqlens_k":
        "see cu_seqlens_q",
    "mask":
        "bool or uint8 [batch, q_heads, q_len, kv_len] with any strides, where each size may also be 1: a query "
        "sees a key only if the byte of the pair is not 0. The device makes a bit of each byte, and leaves out "
        "blocks of keys that no query of a tile sees",
}
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
    ("soft_cap", "double", 0),
    ("window_left", "int64_t", -1),
    ("alibi", "bool", 0),
    ("alibi_slopes", "const DLTensor*", None),
    ("sinks", "const DLTensor*", None),
    ("starts", "const DLTensor*", None),
    ("tree", "const DLTensor*", None),
)
CACHE_MEANINGS = {
    "scale":
        "None: 1 / sqrt(width)",
    "lengths":
        "int32 [batch], from 0 to capacity: how many tokens each sequence has, the tokens of its queries included",
    "table":
        "int32 [batch, max_pages]: pages of each sequence; entries after the page of its last token may be "
        "anything. None: the cache is contiguous",
    "k_scales":
        "float32 [pages or batch, kv_heads], of a cache of 8 bits; else None",
    "v_scales":
        "see k_scales",
    "new_k":
        "The q_len tokens that the call appends, in the type of q; None: the cache has them already. Token i "
        "becomes key (length - q_len + i); if this number is negative, the token is left out. Two entries of the "
        "table that get new tokens must not name the same page, and no other sequence may see a slot that gets a "
        "token; the cpu checks this.",
    "new_v":
        "see new_k",
    "cosines":
        "Queries and new keys are rotated by their positions (RoPE): float32 [positions, half of the elements that "
        "are rotated], with at least as many positions as a sequence may have tokens. decode rotates an even "
        "number of elements of a row, prefill a multiple of 8. None: nothing is rotated.",
    "sines":
        "see cosines",
    "interleaved":
        "True: elements 2i and 2i + 1 are a pair; False: elements i and i + n / 2, where n elements are rotated",
    "soft_cap":
        "cap tanh(score / cap), with a cap from 0.001 to 1000; 0: none",
    "window_left":
        "how many keys before its own key a query sees; -1: all",
    "alibi":
        "True: slope times (own key's number - key's number) is subtracted from a score",
    "alibi_slopes":
        "float32 [q_heads]. None: 2^(-8 i / q_heads) for head i, counted from 1, if q_heads is a power of two. "
        "Else the first slopes are the slopes of the next smaller power of two, and the other slopes are every "
        "second slope of the next larger power of two (Press et al. 2022)",
    "sinks":
        "float32 [q_heads]: a logit for each head. Its exponential is added to the denominator of the head's "
        "softmaxes",
    "starts":
        "int32 [batch], from 0 to capacity: the first key of each sequence; keys before it are padding",
    "tree":
        "int64 [batch, q_len], for decode with up to 64 new tokens: which new tokens each new token sees, as in a "
        "tree of draft tokens. Bit i of a token's word, counted from the lowest bit, says whether the token sees "
        "new token i. The token sees itself only if its own bit is set. All new tokens see the older keys. A "
        "token's position is still its number, not its depth in the tree, so cosines and sines are not allowed "
        "with a tree",
}
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
LINEAR_MEANINGS = {
    "causal":
        "False: every query reads the last state",
    "normalised":
        "True: o_t = f(q_t)^T S_t / (f(q_t)^T z_t), where z_t = decay_t z_{t-1} + f(k_t)",
    "feature":
        "f, which is applied to each element: None or \"identity\", \"elu1\", \"relu\"",
    "scale":
        "None: 1 / sqrt(width); with normalised there is no scale",
    "gate":
        "float32, only with causal: logarithms of the decays, [heads], [batch, heads, tokens], or, with a decay "
        "for each row of S, [batch, heads, tokens, width]; None: nothing decays",
    "initial_state":
        "float32 [batch, heads, width, value width]; None: zeros. With normalised only None is allowed",
}
ROPE = (
    ("layout", "attn_layout", 0),
    ("rotary_dim", "int64_t", 0),
    ("interleaved", "bool", 0),
    ("theta", "double", 10000),
    ("scaling", "attn_rope_scaling", 0),
    ("factor", "double", 1),
    ("original_length", "double", 8192),
    ("offsets", "const DLTensor*", None),
    ("attention_factor", "double", 0),
    ("mscale", "double", 0),
    ("mscale_all_dim", "double", 0),
    ("beta_fast", "double", 32),
    ("beta_slow", "double", 1),
    ("truncate", "bool", 1),
    ("low_freq_factor", "double", 1),
    ("high_freq_factor", "double", 4),
)
ROPE_MEANINGS = {
    "rotary_dim":
        "how many elements of a row are rotated, an even number; 0: all",
    "interleaved":
        "True: elements 2i and 2i + 1 are a pair; False: elements i and i + n / 2, where n elements are rotated",
    "theta":
        "the base of the frequencies, above 1",
    "factor":
        "the factor of a scaling, at least 1",
    "original_length":
        "of YaRN and Llama 3: how many tokens the sequences of the training had",
    "offsets":
        "int32 [batch]: positions of first tokens, which may be negative; no token stands beyond 2^31 - 1. None: "
        "zeros",
    "attention_factor":
        "of YaRN: a factor on the rotated elements; 0: 0.1 ln(factor) + 1 or, if neither mscale nor mscale_all_dim "
        "is 0, (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)",
    "mscale":
        "see attention_factor",
    "mscale_all_dim":
        "see attention_factor",
    "beta_fast":
        "of YaRN: pairs that make more than beta_fast turns in original_length keep their frequency; the frequency "
        "of pairs that make fewer than beta_slow turns is divided by factor; between these two groups is a ramp "
        "over pairs",
    "beta_slow":
        "see beta_fast",
    "truncate":
        "of YaRN, True: the ramp begins and ends at whole pairs",
    "low_freq_factor":
        "of Llama 3: as beta_slow and beta_fast, but the ramp is over the number of turns",
    "high_freq_factor":
        "see low_freq_factor",
}
