"""What help() says about PyTorch's operators: signature, tensors, and the meanings of the options."""

import inspect
import re
import textwrap

from attn_proto import _options

_attention = """query: [batch, q_heads, q_len, width]; key, value: [batch, kv_heads, kv_len, width], where kv_heads divides
q_heads. With bshd=True, all three are [batch, tokens, heads, width]. All have one type, float32, float16 or bfloat16.
The width is a multiple of 8, on a GPU up to 256."""
_cache = """query: [batch, q_heads, q_len, width], with bshd=True [batch, q_len, q_heads, width]. key_cache, value_cache:
[pages, kv_heads, page_size, width] with a table, else [batch, kv_heads, capacity, width]; with cache_bshd=True, heads
and tokens change places. kv_heads divides q_heads. A cache has the type of query, or int8 or float8_e4m3fn with scales.
Query i of a sequence stands at key length - q_len + i, and sees the keys up to this key."""
_fused = """new_key, new_value: [batch, kv_heads, q_len, width], with bshd=True [batch, q_len, kv_heads, width]: the tokens of
the queries, which the call writes into the cache. The result has the shape, the order and the type of query."""
_result = "The result has the shape, the order and the type of query."
_few = "q_len is up to 16, or up to 64 with a tree."
_torch_names = {"k_scales": "key_scales", "v_scales": "value_scales", "new_k": "new_key", "new_v": "new_value"}
_of_attn_h = re.compile(rf"\b({'|'.join(_torch_names)})\b")
_texts = {
    "flash": (f"Attention, softmax(scale Q K^T) V. {_attention} {_result}", _options.FLASH_MEANINGS),
    "flash_with_lse": (f"Like flash(). {_attention} {_result} Also returns the natural logarithm of each softmax's denominator, "
                       "float32 [batch, q_heads, q_len].", _options.FLASH_MEANINGS),
    "why_not": (f"Returns in one line why flash() refuses a call with the same arguments, or None if flash() serves it. Reads no "
                f"tensor, opens no device and compiles nothing; values of tables are not checked. A tensor on the device meta stands "
                f"for one on `device`, which is query's device if it is not given. {_attention}", _options.FLASH_MEANINGS),
    "paged_decode": (f"Attention of a few new queries of each sequence over a cache. {_few} {_cache} {_result}", _options.CACHE_MEANINGS),
    "paged_prefill": (f"Like paged_decode(), for prompts, with any q_len and without a tree. {_cache} {_result}", _options.CACHE_MEANINGS),
    "decode_fused": (f"Rotates queries and new keys, writes new keys and values into the cache, and computes attention. {_few} "
                     f"{_cache} {_fused}", _options.CACHE_MEANINGS),
    "prefill_fused": (f"Like decode_fused(), for prompts, with any q_len and without a tree. {_cache} {_fused}", _options.CACHE_MEANINGS),
    "check_cache": ("Raises RuntimeError if a call of decode_fused() or prefill_fused() with these tensors would read or write "
                    "memory outside of the cache, or if a value of a table is not allowed. On a GPU the call waits for the stream; "
                    "the other operators check the tables' values on a CPU only.", _options.CACHE_MEANINGS),
    "linear": ("""Linear attention: S_t = decay_t S_{t-1} + f(k_t) v_t^T, o_t = scale f(q_t)^T S_t. query, key: [batch, heads,
tokens, width]; value: [batch, heads, tokens, value width]. With bshd=True, all three are [batch, tokens, heads, width]. All
have one type, float32, float16 or bfloat16. Both widths are multiples of 8, up to 256. Returns the outputs, in the shape of
value and the type of query, and the final state, float32 [batch, heads, width, value width].""", _options.LINEAR_MEANINGS),
    "rope": ("""Rotary position embedding. query, key: [batch, heads, tokens, width], with bshd=True [batch, tokens, heads,
width]; only the numbers of heads may differ. The width is a multiple of 8, up to 512. Returns query and key rotated.""",
             {**_options.ROPE_MEANINGS, "scaling": '"none", "linear", "ntk", "yarn" or "llama3"'})}


def _parameter(argument):
    kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, kind, default=default)


def describe(operators):
    """Gives each operator of torch.ops.attn the text and the signature that help() and inspect.signature() show."""
    for name, (text, meanings) in _texts.items():
        operator = getattr(operators, name)
        signature = inspect.Signature([_parameter(argument) for argument in operator.default._schema.arguments])
        head = textwrap.fill(f"{name}{signature}", 100, subsequent_indent=" " * (len(name) + 1), break_on_hyphens=False)
        lines = []
        for option, meaning in meanings.items():
            line = _of_attn_h.sub(lambda found: _torch_names[found[0]], f"{option}: {meaning}")
            if line.partition(":")[0] in signature.parameters:
                lines.append(textwrap.fill(line, 100, subsequent_indent="    ", break_on_hyphens=False))
        operator.__signature__ = signature
        operator.__doc__ = "\n\n".join([head, textwrap.fill(text, 100), "\n".join(lines)])
