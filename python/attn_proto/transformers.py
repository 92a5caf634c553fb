"""transformers: the attention implementation "attn_proto", and a paged key/value cache for it.

    import attn_proto.transformers
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attn_proto")
    cache = attn_proto.transformers.PagedCache(model.config, batch=1, max_tokens=8192)
    model.generate(**inputs, cache=cache)    # older transformers: past_key_values=cache
"""

import functools
import math

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

import attn_proto  # noqa: F401: registers the operators
from attn_proto._masks import FEW, Structure, mask, rolled
from attn_proto.dropin import (_bias_of, _check_storage, _decide, _known, _under_autocast, _why_not_now, count, enabled, mask_options,
                               notify_watchers)

NAME = "attn_proto"
# Arguments that eager attention ignores too, because the mask already follows from them, or because no result depends
# on them. Models pass these arguments to every implementation, or pass them on from their callers.
_harmless = {"cache_position", "deterministic", "grid_thw", "input_ids", "is_causal", "labels", "logits_to_keep",
             "mm_token_type_ids", "num_items_in_batch", "output_hidden_states", "output_router_logits", "position_ids",
             "return_dict", "sliding_window", "token_type_ids", "use_cache"}


def _models(base=PreTrainedModel):
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


@torch.compiler.assume_constant_result
@functools.lru_cache
def _eager_only(config_class):
    """Whether transformers says that the models of a configuration run with eager attention alone. The first call comes
    when a model with the configuration runs, so the model's class is loaded by then."""
    models = [model for model in _models() if model.config_class is config_class]
    return bool(models) and not any(model._supports_sdpa or model._supports_flash_attn and model._supports_attention_backend
                                    for model in models)


class _NewTokens(torch.Tensor):
    """New keys or values on their way from a PagedCache to our attention call, which writes them to pages. Any other
    reader would miss all earlier tokens."""

    @staticmethod
    def __new__(cls, tensor, layer):
        tokens = torch.Tensor._make_wrapper_subclass(cls, tensor.shape, strides=tensor.stride(), dtype=tensor.dtype,
                                                     device=tensor.device)
        tokens.tensor, tokens.layer = tensor, layer
        return tokens

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise ValueError(f'attn_proto: a PagedCache serves models of attn_implementation="{NAME}" that hand its keys and values '
                         f"to attention as they are; {function} tried to read them")


def _mask(*sizes, config=None, **given):
    if _eager_only(type(config)):
        raise ValueError(f'attn_proto: {config.model_type} runs with attn_implementation="eager" alone')
    return mask(*sizes, config=config, **given)


def _with_bias(position_bias, mask):
    """The position bias and the mask as one mask."""
    if mask is None:
        return position_bias
    return torch.where(mask, position_bias, -math.inf) if mask.dtype == torch.bool else position_bias + mask


def _goes_with_bias(structure, sizes):
    """Whether the kernels take a position bias and this mask as two arguments. `sizes` is the call's mask shape: batch, 1,
    queries, keys. The decoding kernel takes no `ends`. So for few queries a mask with `ends` becomes a part of the bias."""
    if structure is None:
        return True
    if not isinstance(structure, Structure) or structure.shape != sizes or structure.lengths is not None:
        return False
    whole = structure.shifts is not None or structure.seen is not None
    return not whole and (structure.ends is None or not _known(sizes[2] <= FEW))


def _forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, position_bias=None, softcap=None,
             s_aux=None, **kwargs):
    names = [name for name, given in kwargs.items() if not (name in _harmless or given is None or given is False)]
    if names:
        raise ValueError(f'attn_proto: attention with {", ".join(names)} is not served; attn_implementation="eager" may serve it')
    for name, tensor in (("attention_mask", attention_mask), ("position_bias", position_bias), ("s_aux", s_aux)):
        _check_storage(name, tensor)
    paged = key.layer if isinstance(key, _NewTokens) else None
    if paged is not None:
        key, value = key.tensor, value.tensor
    query, key, value = _under_autocast((query, key, value))
    sizes = (query.shape[0], 1, query.shape[2], key.shape[2] if paged is None else paged.tokens)
    structure = bias = None
    if position_bias is not None and paged is None and _goes_with_bias(attention_mask, sizes):
        bias = position_bias
    elif position_bias is not None:
        attention_mask = _with_bias(position_bias, attention_mask)
    if isinstance(attention_mask, Structure):
        structure = attention_mask if attention_mask.shape == sizes else None
        attention_mask = None if structure is not None else attention_mask.whole()
    only_ours = bool(softcap) or s_aux is not None  # PyTorch's attention has no soft cap and no sinks
    why = _why_not_now(*(each for each in (query, key, value, attention_mask, bias, s_aux) if each is not None)) or \
        _decide(query, key, value, attention_mask, dropout, False, scaling, True, compared=not only_ours)
    if why is None and bias is not None:
        why = _decide(query, key, value, bias, dropout, False, scaling, True, compared=_known(sizes[2] <= FEW))
    options = {"scale": scaling, "soft_cap": softcap or 0.0, "sinks": None if s_aux is None else s_aux.float()}
    if paged is not None:
        if attention_mask is not None or structure is None and sizes[2] > 1 or structure is not None and not structure.in_cache():
            why = "masks other than windows and padding on the left"
        if why is not None:
            raise ValueError(f"attn_proto: a PagedCache does not serve this call: {why}")
        o = paged.attend(query, key, value, structure, options)
    elif why is None:
        o = _attend(query, key, value, attention_mask, structure, bias, options)
    elif only_ours:
        raise ValueError(f"attn_proto: soft caps and sinks are not served in this call: {why}")
    else:
        if not (torch.compiler.is_compiling() or enabled()):  # if the drop-in is enabled, the drop-in counts the call
            count(why)
            notify_watchers(module, query, key, _shown_mask(attention_mask, structure, bias), why)
        if bias is not None:
            attention_mask, structure = _with_bias(bias, None if structure is None else structure.whole()), None
        causal = structure is not None and structure.only_causal() and sizes[2] == sizes[3]
        if structure is not None and not causal:  # PyTorch's is_causal puts the first query at the first key
            attention_mask = structure.whole()
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=causal)
    notify_watchers(module, query, key, _shown_mask(attention_mask, structure, bias), None)
    return o.transpose(1, 2).contiguous(), None  # dense, as in eager attention: a model may call view()


def _shown_mask(mask, structure, bias):
    return bias if bias is not None else mask if structure is None else structure


def _attend(query, key, value, mask, structure, bias, options):
    """Attention by the kernels, with a mask in elements or a structure. With neither, each query sees each key. `bias`
    is a position bias, which goes with a structure or with no mask."""
    if structure is None:
        masked = mask_options(mask) if bias is None else {"bias": _bias_of(bias[..., :key.shape[2]])}
        return torch.ops.attn.flash(query, key, value, **masked, **options)
    starts = {} if structure.starts is None else {"starts": structure.starts}
    if structure.lengths is not None:
        attend = torch.ops.attn.paged_decode if query.shape[2] <= FEW else torch.ops.attn.paged_prefill
        return attend(query, key, value, structure.lengths, window_left=structure.left, **starts, **options)
    if structure.shifts is not None:
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            _check_storage(name, tensor)
        query, key, value = (rolled(tokens, structure.shifts) for tokens in (query, key, value))
    seen = structure.seen
    if structure.shorter is not None:
        key, value = key[:, :, :structure.shorter], value[:, :, :structure.shorter]
        seen = None if seen is None else seen[:, :structure.shorter]
    if bias is not None:
        bias = _bias_of(bias[..., :key.shape[2]])
    elif seen is not None:
        bias = _bias_of(seen[:, None, None, :])
    o = torch.ops.attn.flash(query, key, value, causal=structure.causal, window_left=structure.left, window_right=structure.right,
                             prefix=structure.prefix, lengths=structure.ends, documents=structure.documents, bias=bias, **starts, **options)
    return o if structure.shifts is None else rolled(o, -structure.shifts)


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, _mask)


class _Tables:
    """The page table and the lengths that the layers of a PagedCache share. Each device with a layer has its own."""

    def __init__(self, batch, max_tokens, page_size):
        self.batch, self.max_tokens, self.page_size = batch, max_tokens, page_size
        self._of_device = {}

    def on(self, device):
        """Returns the page table, int32 [batch, pages of a sequence], and the lengths, int32 [max_tokens + 1, batch].
        Row n of the lengths is for a batch whose sequences have n tokens, so no step has to write lengths."""
        if device not in self._of_device:
            pages = -(-self.max_tokens // self.page_size)
            table = torch.arange(self.batch * pages, dtype=torch.int32, device=device).view(self.batch, pages)
            lengths = torch.arange(self.max_tokens + 1, dtype=torch.int32, device=device)[:, None].repeat(1, self.batch)
            self._of_device[device] = table, lengths
        return self._of_device[device]


class PagedLayer(CacheLayerMixin):
    """Keys and values of one layer on pages, [pages, kv_heads, page_size, head_dim], on the device and in the type of
    its first keys and values. The attention call itself writes new tokens to the pages. So update() returns the new
    tokens as tensors that only the attention call can read."""

    is_croppable = True

    def __init__(self, tables, device):
        self.tables, self.device = tables, device  # device: None until the first keys come
        self.is_initialized = False
        self.tokens = self.attended = 0

    @property
    def keys(self):
        raise ValueError("attn_proto: keys and values of a PagedCache are on pages, which only its attention call can read")

    values = keys

    def _check(self, key_states):
        if key_states.shape[0] != self.tables.batch:
            raise ValueError(f"attn_proto: the cache is for a batch of {self.tables.batch}, not {key_states.shape[0]}")
        if self.device not in (None, key_states.device):
            raise ValueError(f"attn_proto: the cache is on {self.device}, not {key_states.device}")

    def lazy_initialization(self, key_states, value_states):
        self._check(key_states)
        self.device = key_states.device
        self.table, self.lengths = self.tables.on(self.device)
        pages = (self.table.numel(), key_states.shape[1], self.tables.page_size)
        self.key_pages = key_states.new_zeros(*pages, key_states.shape[3])
        self.value_pages = value_states.new_zeros(*pages, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if self.attended != self.tokens:
            raise ValueError("attn_proto: the last tokens of the PagedCache did not reach the attention call: the call "
                             "failed, or the model changes keys; reset() empties the cache")
        self._check(key_states)
        key_states, value_states = _under_autocast((key_states, value_states), ("key", "value"))
        if self.tokens + key_states.shape[2] > self.tables.max_tokens:
            raise ValueError(f"attn_proto: the cache has room for {self.tables.max_tokens} tokens")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.tokens += key_states.shape[2]
        return _NewTokens(key_states, self), _NewTokens(value_states, self)

    def attend(self, query, key, value, structure, options):
        attend = torch.ops.attn.decode_fused if query.shape[2] <= FEW else torch.ops.attn.prefill_fused
        if structure is not None:
            options = {**options, "window_left": structure.left, "starts": structure.starts}
        o = attend(query, key, value, self.key_pages, self.value_pages, self.lengths[self.tokens], self.table, **options)
        self.attended = self.tokens
        return o

    def get_mask_sizes(self, query_length):
        return self.tokens + query_length, 0

    def get_seq_length(self):
        return self.tokens

    def get_max_length(self):
        return self.tables.max_tokens

    get_max_cache_shape = get_max_length  # the name of the method in older versions of transformers

    def reset(self):
        self.tokens = self.attended = 0

    def crop(self, tokens_to_remove):
        """Removes the last -tokens_to_remove tokens. As in other caches of transformers, the argument is negative."""
        if not -self.tokens <= tokens_to_remove <= 0:
            raise ValueError(f"attn_proto: crop({tokens_to_remove}) is not allowed; -{self.tokens} to 0 are")
        self.tokens += tokens_to_remove
        self.attended = self.tokens

    def reorder_cache(self, beam_idx):
        """Replaces each sequence by a copy of the sequence that beam_idx names for it."""
        if beam_idx.shape != (self.tables.batch,):
            raise ValueError(f"attn_proto: the cache is for a batch of {self.tables.batch}, not {beam_idx.numel()}")
        for pages in (self.key_pages, self.value_pages) if self.is_initialized else ():
            by_sequence = pages.unflatten(0, self.table.shape)
            by_sequence.copy_(by_sequence.index_select(0, beam_idx.to(pages.device)))

    def batch_repeat_interleave(self, *args):
        raise ValueError("attn_proto: the batch of a PagedCache stays as it is")

    batch_select_indices = batch_repeat_interleave


class PagedCache(Cache):
    """A cache for sequences of equal length, as generate() makes them; shorter prompts are padded on the left. batch is
    the number of sequences times the number of beams. Each layer takes the device and the type of its first keys and
    values. With a `device`, keys and values of another device are an error."""

    def __init__(self, config, batch, max_tokens, page_size=16, device=None):
        config = config.get_text_config(decoder=True)
        if config._attn_implementation != NAME:
            raise ValueError(f'attn_proto: a PagedCache needs attn_implementation="{NAME}"')
        for name, number in (("batch", batch), ("max_tokens", max_tokens), ("page_size", page_size)):
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"attn_proto: {name}={number} of a PagedCache is not allowed; whole numbers from 1 on are")
        layer_types = set(getattr(config, "layer_types", None) or ())
        if others := layer_types - {"full_attention", "sliding_attention", "chunked_attention"}:
            raise ValueError(f"attn_proto: a PagedCache does not serve layers of {', '.join(sorted(others))}")
        tables = _Tables(batch, max_tokens, page_size)
        if device is not None:
            device = torch.empty(0, device=device).device  # with the index of a GPU
        super().__init__(layers=[PagedLayer(tables, device) for _ in range(config.num_hidden_layers)])
