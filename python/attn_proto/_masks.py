"""Describes masks of transformers by their structure: a few numbers and small tables. The kernels take the numbers and
tables in place of a tensor with an element for each query and key.

To get a mask, transformers calls mask(). If the kernels cannot take the mask's structure, mask() returns the mask that
transformers makes for PyTorch's attention."""

import types

import torch
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing

FEW = torch.ops.attn.limits()[0]  # up to this number of queries a call runs the decoding kernel
_tables = ("anchor", "starts", "ends", "lengths", "documents", "seen", "shifts")


class Structure(torch.Tensor):
    """The mask of a call, [batch, 1, queries, keys]. It has no elements until an operation reads it. (If a call has the
    mask None, every query sees every key, as in eager attention.)

    The own key of a query is the key of the query's token. In sequence b the own key of the last query is `used` - 1,
    or, with `lengths`, lengths[b] - 1. From each query to the next, the own key rises by one. A query sees a key if all
    these rules allow the key:

    - `causal`: the keys up to the query's own key, and the first `prefix` keys;
    - `left`, `right`: from `left` keys before the own key to `right` keys after it (-1: no limit);
    - `used`: without `lengths`, the keys before the key `used`;
    - `documents`: the keys of the document of the own key;
    - `starts`, `ends`: the keys starts[b] to ends[b] - 1;
    - `seen` [batch, keys]: the keys for which `seen` is true.

    A table that is None hides no key.

    With `shifts` the rules hold for rolled() sequences, in which the padding on the left has moved to the right."""

    @staticmethod
    def __new__(cls, shape, device, *, causal=False, left=-1, right=-1, prefix=0, used=None, anchor=None, starts=None, ends=None,
                lengths=None, documents=None, seen=None, shifts=None):
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.causal, mask.left, mask.right, mask.prefix = causal, left, right, prefix
        mask.shorter = None if used is None or used == shape[3] else used
        mask.anchor = torch.empty(0, device=device) if anchor is None else anchor  # a traced mask needs a tensor
        mask.starts, mask.ends, mask.lengths, mask.documents, mask.seen = starts, ends, lengths, documents, seen
        mask.shifts = shifts
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def used(self):  # `shorter` is None if all keys are used; traces for a range of sizes can read `shorter`, but not `used`
        return self.shape[3] if self.shorter is None else self.shorter

    def __tensor_flatten__(self):
        numbers = {"causal": self.causal, "left": self.left, "right": self.right, "prefix": self.prefix}
        return [name for name in _tables if getattr(self, name) is not None], (numbers, self.shorter)

    @staticmethod
    def __tensor_unflatten__(tables, context, size, stride):
        numbers, used = context
        return Structure(size, tables["anchor"].device, used=used, **numbers, **tables)

    def on(self, device):
        tables = {name: getattr(self, name) for name in _tables}
        moved = {name: None if table is None else table.to(device) for name, table in tables.items()}
        return Structure(self.shape, device, causal=self.causal, left=self.left, right=self.right, prefix=self.prefix,
                         used=self.used, **moved)

    def whole(self):
        """The mask with all its elements."""
        batch, _, queries, keys = self.shape
        key = torch.arange(keys, device=self.device)
        own = torch.arange(queries, device=self.device)[:, None] - queries
        own = own + (self.used if self.lengths is None else self.lengths[:, None, None, None])
        sees = torch.ones((batch, 1, queries, keys), dtype=torch.bool, device=self.device)
        if self.causal:
            sees = sees & ((key <= own) | (key < self.prefix))
        if self.left >= 0:
            sees = sees & (key >= own - self.left)
        if self.right >= 0:
            sees = sees & (key <= own + self.right)
        if self.lengths is None:
            sees = sees & (key < self.used)
        if self.documents is not None:
            begin, end = self.documents[own].unbind(-1)
            sees = sees & (key >= begin) & (key < end)
        if self.starts is not None:
            sees = sees & (key >= self.starts[:, None, None, None])
        if self.ends is not None:
            sees = sees & (key < self.ends[:, None, None, None])
        if self.seen is not None:
            sees = sees & self.seen[:, None, None, :]
        return sees if self.shifts is None else rolled(rolled(sees, -self.shifts).mT, -self.shifts).mT

    def only_causal(self):
        """Whether each query sees all keys up to its own key, and no other key."""
        return (self.causal and self.left < 0 and self.prefix == 0 and self.used == self.shape[3]
                and all(getattr(self, name) is None for name in _tables[1:]))

    def in_cache(self):
        """Whether the operators over caches can take this structure."""
        return (self.causal and self.right < 0 and self.prefix == 0 and self.used == self.shape[3]
                and all(getattr(self, name) is None for name in ("ends", "documents", "seen", "shifts")))

    def words(self):
        """The structure in a few words, for explain()."""
        window = "" if self.left < 0 and self.right < 0 else f"a window of {self.left + 1 + max(self.right, 0)}"
        parts = ["causal" if self.causal else "every key", window, f"a prefix of {self.prefix}" if self.prefix else ""]
        tables = {"documents": "documents", "starts": "padding on the left", "shifts": "padding on the left",
                  "ends": "padding on the right", "seen": "hidden keys", "lengths": "a static cache"}
        return ", ".join([part for part in parts if part] + [word for name, word in tables.items() if getattr(self, name) is not None])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):  # for example a slice that keeps all keys
            return args[0].on(args[0].device)
        if function is torch.ops.aten._to_copy.default and kwargs.get("dtype") in (None, torch.bool):
            return args[0].on(kwargs.get("device") or args[0].device)
        if function._schema.is_mutable and isinstance(args[0], cls):
            raise ValueError("attn_proto: the mask of a call is not to be written; write a clone")
        args, kwargs = torch.utils._pytree.tree_map_only(cls, cls.whole, (args, kwargs))
        return function(*args, **kwargs)


def rolled(tokens, shifts):
    """Returns `tokens`, [batch, heads, tokens, width], with the first shifts[b] rows of each sequence moved to the
    sequence's end."""
    rows = (torch.arange(tokens.shape[2], device=tokens.device) + shifts[:, None]) % tokens.shape[2]
    return tokens.gather(2, rows[:, None, :, None].expand_as(tokens))


# ---- mask functions


def _kind(function):
    """Returns the name of the function of transformers.masking_utils that has made a mask function, or None if code of
    another module has made it. The globals decide: a wrapper may copy a mask function's names, but not its globals."""
    known = isinstance(function, types.FunctionType) and function.__globals__ is causal_mask_function.__globals__
    return function.__qualname__.split(".")[0] if known else None


def _cells(function):
    """Returns the variables in the closure of a function of transformers.masking_utils, by name."""
    return types.SimpleNamespace(**dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()))))


def _rules(function):
    """Returns the rules of a mask function as a dictionary, or None if one of its rules is not known here. The rule
    "blocks" shows keys that other rules hide; a key must be allowed by all other rules."""
    if function is causal_mask_function:
        return {"causal": True}
    if function is bidirectional_mask_function:
        return {}
    kind = _kind(function)
    if kind is None:
        return None
    own = _cells(function)
    if kind == "sliding_window_overlay":
        return {"left": own.sliding_window - 1} if own.sliding_window > 0 else None  # -1 would be no limit
    if kind == "sliding_window_bidirectional_overlay":
        return {"left": own.sliding_window, "right": own.sliding_window}
    if kind == "chunked_overlay":
        return {"chunk": (own.chunk_size, own.left_padding)}
    if kind == "packed_sequence_mask_function":
        return {"packed": own.packed_sequence_mask}
    if kind == "remap_positions_for_packed_sequence":  # positions rise by one from token to token of a document
        inner = _rules(own.mask_function)
        return None if inner is None else {**inner, "positions": own.position_ids}
    if kind == "and_masks":
        return _all(_rules(part) for part in own.mask_functions)
    if kind == "or_masks" and len(own.mask_functions) == 2:
        first, second = own.mask_functions
        inner = _rules(first)
        if inner is not None and "blocks" not in inner and _kind(second) == "blockwise_overlay":
            return {**inner, "blocks": _cells(second).block_sequence_ids}
    return None


def _all(parts):
    found = {}
    for part in parts:
        if part is None or found.keys() & part.keys() or "blocks" in part and part.keys() != {"blocks"} and found:
            return None
        found.update(part)
    return found


def _rules_in_trace(function, local_size, config, skip, use_vmap):
    """As _rules(). A trace cannot look into a function, so the rules come from the other arguments of mask()."""
    if function is causal_mask_function:
        return {"causal": True}
    if function is bidirectional_mask_function:
        return {}
    only_local = skip and not use_vmap and local_size  # then the model adds no rule, no documents and no blocks
    if only_local and local_size == getattr(config, "sliding_window", None) != getattr(config, "attention_chunk_size", None):
        return {"causal": True, "left": local_size - 1}
    return None


# ---- tables


def _documents(keys, *numbers):
    """Returns [keys, 2]: for each key the first key of its document, and the key after the document. Neighbouring keys
    are in one document if they have the same element in each of `numbers`."""
    at = torch.arange(keys, device=numbers[0].device)
    first = torch.ones(keys, dtype=torch.bool, device=at.device)
    for each in numbers:
        first[1:] &= each[1:] == each[:-1]
    first[1:] = ~first[1:]
    begin = torch.where(first, at, 0).cummax(0).values
    last = torch.cat([first[1:], first.new_ones(1)])
    end = torch.where(last, at + 1, keys).flip(0).cummin(0).values.flip(0)
    return torch.stack([begin, end], -1).int()


def _readable(*tensors):
    """Whether the host may read the elements of tensors now. On a GPU reading waits, as in transformers' own masks."""
    return not any(is_tracing(tensor) for tensor in tensors if tensor is not None) and not (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _padding(attention_mask, keys, offset, readable):
    """Returns `starts`, `ends` and `seen` of a Structure for the padding of `keys` keys from the key `offset` on.
    Either `seen` is None, or `starts` and `ends` are None."""
    shown = attention_mask[:, offset:offset + keys].bool()
    if shown.shape[1] < keys:
        shown = torch.nn.functional.pad(shown, (0, keys - shown.shape[1]))
    if not readable:
        return None, None, shown
    if shown.all():
        return None, None, None
    starts = (shown.cumsum(-1) == 0).sum(-1)  # `keys` for a sequence of padding alone
    ends = (keys - (shown.flip(-1).cumsum(-1) == 0).sum(-1)).where(shown.any(-1), keys)
    tokens = torch.stack([starts, ends, shown.sum(-1)], -1).tolist()
    if any(end - start != count for start, end, count in tokens):
        return None, None, shown
    return (starts.int() if any(start for start, _, _ in tokens) else None,
            ends.int() if any(end != keys for _, end, _ in tokens) else None, None)


def _prefix(blocks, starts):
    """Returns `prefix` of a Structure. `blocks` [batch, keys] has the number of each key's block, or -1 for a key in no
    block. The tokens of a block see each other. Returns None unless each sequence has one block, which begins at the
    sequence's first token, and all blocks end at the same key."""
    inside = blocks >= 0
    begin, count = (inside.cumsum(-1) == 0).sum(-1), inside.sum(-1)
    at = torch.arange(blocks.shape[1], device=blocks.device)
    one = (inside == (at >= begin[:, None]) & (at < (begin + count)[:, None])) & (~inside | (blocks == blocks.amax(-1, keepdim=True)))
    after = begin > (0 if starts is None else starts)  # a token before the block would see the block
    ends = (begin + count).tolist()
    return ends[0] if ends.count(ends[0]) == len(ends) and bool(one.all()) and not after.any() else None


def _later(starts, others):
    others = others.clamp(min=0).int()
    return others if starts is None else torch.maximum(starts, others)


def _structure(rules, batch, queries, keys, q_offset, kv_offset, attention_mask, device):
    """Returns the Structure of a call that transformers describes, or None if the kernels cannot take it."""
    tensors = (attention_mask, q_offset if isinstance(q_offset, torch.Tensor) else None)
    readable = _readable(*tensors)
    numbers = {name: rules[name] for name in ("causal", "left", "right") if name in rules}
    first = q_offset - kv_offset  # the first query's own key; a tensor if q_offset, from a static cache, is a tensor
    on_device = isinstance(first, torch.Tensor)
    used, lengths = keys, None
    if numbers and not on_device:
        used = first + queries
        if first < 0 or used > keys or used < keys and "causal" not in rules:
            return None
    starts = ends = seen = documents = shifts = None
    if attention_mask is not None:
        known = int(first) + queries if on_device and "causal" in numbers and readable else used
        starts, ends, seen = _padding(attention_mask, known, kv_offset, readable)
        if seen is not None and seen.shape[1] != keys:
            seen = torch.nn.functional.pad(seen, (0, keys - known))

    if "chunk" in rules:
        size, padding = rules["chunk"]
        if "positions" in rules or queries == 1:
            one_chunk = queries == 1
        elif on_device or not readable or is_tracing(padding):
            return None
        else:
            lefts = padding.tolist()
            one_chunk = all((q_offset - left) // size == (q_offset + queries - 1 - left) // size for left in lefts)
            if not one_chunk and any(left != lefts[0] for left in lefts):
                alike = starts is not None and starts.tolist() == lefts
                if queries != keys or used != keys or kv_offset != 0 or seen is not None or not alike:
                    return None
                shifts, starts, lefts = padding, None, [0]  # in the rolled sequences all chunks begin at the same tokens
                # A sequence of padding alone has no keys.
                ends = ((keys if ends is None else ends) - padding.int()).clamp(min=0)
        if "positions" not in rules and one_chunk:
            begin = padding + (q_offset - padding).div(size, rounding_mode="floor") * size - kv_offset
            starts = _later(starts, begin.expand(batch))
        elif "positions" not in rules:
            at = torch.arange(used, device=device) + kv_offset - lefts[0]
            documents = _documents(used, at.div(size, rounding_mode="floor"))
    if ("packed" in rules) != ("positions" in rules):
        return None
    if "packed" in rules:
        packed, positions = rules["packed"], rules["positions"].expand(batch, -1)
        if on_device or packed.shape[1] != used or used != keys:
            return None
        if batch > 1 and not (readable and (packed == packed[:1]).all() and (positions == positions[:1]).all()):
            return None
        chunks = [positions[0].div(rules["chunk"][0], rounding_mode="floor")] if "chunk" in rules else []
        documents = _documents(used, packed[0], *chunks)
    if "blocks" in rules:
        if not readable:
            return None
        blocks = rules["blocks"][:, kv_offset:kv_offset + keys]
        own = torch.arange(queries, device=blocks.device) + first
        if (blocks[:, own] >= 0).any():  # else the blocks change nothing for these queries
            prefix = None if on_device else _prefix(blocks, starts)
            if prefix is None or prefix > used or numbers != {"causal": True} or documents is not None:
                return None
            numbers["prefix"] = prefix

    plain = documents is None and seen is None and ends is None and "prefix" not in numbers and "right" not in numbers and numbers.get("causal")
    if on_device and numbers:
        if not plain and queries == 1:  # a table of the keys that the query sees has the same size in all steps
            lengths = (first + 1).expand(batch)
            sees = Structure((batch, 1, 1, keys), device, starts=starts, ends=ends, lengths=lengths, seen=seen, **numbers).whole()
            return Structure(sees.shape, device, seen=sees[:, 0, 0])
        if not plain:
            return None
        lengths = (first + queries).int().expand(batch).contiguous()
    elif used != keys and plain and queries <= FEW:
        lengths = torch.full((batch,), used, dtype=torch.int32, device=device)
    if lengths is not None:
        used = keys
    return Structure((batch, 1, queries, keys), device, used=used, starts=starts, ends=ends, lengths=lengths,
                     documents=documents, seen=seen, shifts=shifts, **numbers)


def mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=causal_mask_function, attention_mask=None,
         local_size=None, allow_is_causal_skip=True, allow_is_bidirectional_skip=False, use_vmap=False, device="cpu", config=None,
         **kwargs):
    """Takes the arguments of transformers' mask interface. Returns a Structure, or what sdpa_mask() returns."""
    if torch.compiler.is_compiling():
        rules = _rules_in_trace(mask_function, local_size, config, allow_is_causal_skip, use_vmap)
    elif torch.jit.is_tracing():  # the graph would keep the numbers of this call for all calls
        rules = None
    else:
        rules = _rules(mask_function)
    found = None
    if rules is not None:
        sizes = (rules, batch_size, q_length, kv_length)
        found = _structure(*sizes, q_offset, kv_offset, attention_mask, device)
        if found is None and isinstance(q_offset, torch.Tensor) and _readable(q_offset, attention_mask):
            found = _structure(*sizes, int(q_offset), kv_offset, attention_mask, device)
    if found is None:
        return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
                         mask_function=mask_function, attention_mask=attention_mask, local_size=local_size, allow_is_causal_skip=False,
                         allow_is_bidirectional_skip=allow_is_bidirectional_skip, use_vmap=use_vmap, device=device, **kwargs)
    every = not rules and found.starts is None and found.ends is None and found.seen is None
    return None if every and allow_is_bidirectional_skip else found
