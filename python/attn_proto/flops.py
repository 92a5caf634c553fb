"""Formulas with which torch.utils.flop_counter counts the operators: two operations for each multiply-add of the
operators' matrix products, computed from shapes. Hidden pairs count too, as in PyTorch's formula for PyTorch's own
attention. Cache slots without a token also count."""

from math import prod

import torch
from torch.utils.flop_counter import register_flop_formula

attn = torch.ops.attn


@register_flop_formula([attn.flash, attn.flash_with_lse])
def _flash(query, key, value, *arguments, bshd=False, **options):
    return 4 * prod(query) * key[1 if bshd else 2]


@register_flop_formula([attn.linear])
def _linear(query, key, value, *arguments, **options):
    return 4 * prod(query) * value[3]  # each token updates and reads a state of [width, value width]


@register_flop_formula([attn.paged_decode, attn.paged_prefill])
def _over_cache(query, key_cache, value_cache, lengths, table=None, *arguments, cache_bshd=False, **options):
    return 4 * prod(query) * key_cache[1 if cache_bshd else 2] * (table[1] if table else 1)


@register_flop_formula([attn.decode_fused, attn.prefill_fused])
def _fused(query, new_key, new_value, *arguments, out_shape=None, **options):
    return _over_cache(query, *arguments, **options)
