"""explain(): runs a model and prints which of its calls of attention the kernels serve, and why others go to PyTorch."""

import collections
import contextlib
import inspect

import torch

from attn_proto import dropin


class Call(collections.namedtuple("Call", "run layer sizes mask why")):
    """A call of attention. run: "prompt", "step" or "call"; layer: the name of the module, or "" for a call of
    scaled_dot_product_attention; sizes: batch, query heads, queries and keys; mask: the mask in words; why: the reason
    why the call goes to PyTorch, None if the kernels serve it."""

    __slots__ = ()

    def __str__(self):
        where = "the kernels" if self.why is None else f"PyTorch, for: {self.why}"
        return f"{self.run:6} {self.layer or 'scaled_dot_product_attention'}: {' x '.join(map(str, self.sizes))}, {self.mask} -> {where}"


def _words(mask):
    if mask is None:
        return "no mask"
    if hasattr(mask, "words"):
        return mask.words()
    return f"a mask of {str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}"


@contextlib.contextmanager
def watched(model, calls, run):
    """Adds the calls that a model makes in the block to the list `calls`."""
    names = {module: name for name, module in model.named_modules()}

    def watch(module, query, key, mask, why):
        calls.append(Call(run, names.get(module, ""), (*query.shape[:-1], key.shape[-2]), _words(mask), why))

    dropin.watchers.append(watch)
    try:
        yield
    finally:
        dropin.watchers.remove(watch)


def explain(model, **inputs):
    """Runs the model, prints a line for each call of attention, and returns the calls. Without inputs the model gets
    two prompts of 24 tokens, of which the second one is padded on the left, and then takes one decoding step if it has
    returned a cache.

    Lines that differ only in the layer are printed once, with the number of calls."""
    if not inputs and (model.main_input_name != "input_ids" or model.config.is_encoder_decoder):
        raise ValueError(f"attn_proto: explain() has inputs only for models that read input_ids alone; give {type(model).__name__} its "
                         f"inputs, as explain(model, {model.main_input_name}=...)")
    calls = []
    with torch.no_grad():
        if inputs:
            with watched(model, calls, "call"):
                model(**inputs)
        else:
            ids = torch.arange(5, 29, device=model.device).repeat(2, 1) % model.config.get_text_config().vocab_size
            padding = torch.ones_like(ids)
            padding[1, :5] = 0
            with watched(model, calls, "prompt"):
                out = model(input_ids=ids, attention_mask=padding, use_cache=True)
            cache = getattr(out, "past_key_values", None)
            if cache is not None:
                name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
                with watched(model, calls, "step"):
                    model(input_ids=ids[:, :1], attention_mask=torch.nn.functional.pad(padding, (0, 1), value=1), **{name: cache})
    if not calls:
        print('no call of attention reached attn_proto: call attn_proto.enable(), and load models of transformers after it, with '
              'attn_implementation="attn_proto"')
    alike = collections.defaultdict(list)
    for call in calls:
        alike[call._replace(layer="")].append(call)
    for same in alike.values():
        print(same[0] if len(same) == 1 else f"{same[0]} ({len(same)} calls like it)")
    return calls
