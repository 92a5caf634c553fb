"""Runs the models of transformers with attn_implementation="attn_proto" and with eager attention, in float32, and
compares their outputs.

    python3 python/tests/models.py             # all: some minutes on two cores
    python3 python/tests/models.py llama t5    # these types
    python3 python/tests/models.py --write     # all, and writes the tables in docs/extension.md anew

The script makes a tiny model of each type from the class of its configuration, with weights so large that a wrong mask
changes the outputs. A model with tokens runs a prompt without padding, with padding on each side, and in three parts. It
also generates tokens with its own growing cache, and with its own static cache. Runs that the model's class or eager
attention does not support are left out. Other models run with pictures, sound or other data, if the script finds an
input that they take. The exit status is 1 if a model is wrong: outputs differ, a call fails without a refusal by
attn_proto, or the process dies or gives no answer.
"""

import argparse
import collections
import concurrent.futures
import copy
import inspect
import json
import os
import pathlib
import re
import sys
import threading
import warnings

TESTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]  # with $PYTHONSAFEPATH it has no folder of this tree
sys.path.append(str(TESTS.parents[1] / "scripts"))
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AttentionInterface, DynamicCache, PreTrainedConfig  # noqa: E402
from transformers.models.auto import modeling_auto as auto  # noqa: E402

import attn_proto  # noqa: E402
import page_tables  # noqa: E402
from attn_proto import transformers as support  # noqa: E402
from command_line import Parser  # noqa: E402
from watched import follow  # noqa: E402

AT_ONCE = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), 4)  # number of processes
SECONDS = 240  # a process that is silent for longer counts as hanging
TOKENS, VOCABULARY = 20, 128
TOKEN_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
LARGEST = 60_000_000  # parameters; a model with more is not small, and not tried
TOLERANCE = 1e-3  # share of the largest output

# The eager attention of these models adds boolean masks to the scores. So these models are compared with the
# implementation that transformers takes by default.
BY_DEFAULT = ("grounding-dino", "mm-grounding-dino")
OWN_WEIGHTS = ("vits",)  # with drawn weights this model makes minutes of speech
# Values for types of models in which the values that small() chooses do not fit together.
SPECIAL = {kind: row["sizes"] for row in json.loads((TESTS / "model_sizes.json").read_text()) for kind in row["types"]}


# ---- a small model of each type


# The largest value of a number of a configuration, by its name. The first row that fits counts. A row with True gives this
# value to a smaller number, too.
RULES = (
    (r"vocab_size|vocab_sizes|codebook_size", VOCABULARY, False),
    (r"sliding_window|attention_chunk_size|local_attention", 8, True),
    (r"position|n_ctx|context_length|max_length|max_seq|max_source|max_target|max_text", 512, False),
    (r"(^|_)(topk|n|num_expert)_groups?$", 1, True),
    (r"experts_per_tok|^top_?k|moe_top_?k|num_selected|moe_k$", 2, False),
    (r"experts$", 4, False),
    (r"^num_queries$", 16, False),
    (r"^(?!.*(window|feat|conv|first|dense|every|index))(.*layers?|depth|.*num_blocks)$", 2, False),
    (r"head_dim|head_size|d_head$|d_kv$|kv_channels|rotary_dim", 16, False),
    (r"mamba_n_heads", 8, False),
    (r"upsample_groups", 64, False),
    (r"^(?=.*(kv|key)).*(heads?$|num_attention_groups)", 2, False),
    (r"heads?$|num_attention_groups", 4, False),
    (r"lora_rank|_rank$", 32, False),
    (r"^(?!.*(patch|image|window|kernel|chunk|block|batch|stride|scale|bins|rate|feature_size|seq|vocab|max|sample))"
     r".*(size|dim|width|d_model|n_embd|d_ff|units|ffn|channels|d_inner)", 64, False))


def rule(name, value):
    """The small value for a number of a configuration."""
    for pattern, most, fixed in RULES:
        if re.search(pattern, name):
            return most if fixed else min(value, most)
    return value


def small(config):
    """A configuration of the same class with small sizes."""
    def number(*names):
        return next((name for name in names if isinstance(before.get(name), int)), None)

    special = SPECIAL.get(config.model_type, {})
    before = {name: value for name, value in vars(config).items()
              if not name.startswith("_") and name not in ("transformers_version", "dtype", "architectures")}
    default = vars(type(config)())
    staged = "depths" in before  # each stage has its own sizes, which must fit the sizes of the other stages
    change, ids = {}, iter(range(100, VOCABULARY))
    for name, value in before.items():
        if isinstance(value, PreTrainedConfig):
            change[name] = small(value)
        elif name in TOKEN_IDS or isinstance(value, (int, list)) and name.endswith(("token_id", "token_index")):
            change[name] = TOKEN_IDS[name] if name in TOKEN_IDS else next(ids)
        elif type(value) is int:
            new = value if staged and re.search("embed_dim|hidden_layers", name) else rule(name, value)
            if new != default.get(name):
                change[name] = new
        elif isinstance(value, (bool, float, str, list, tuple)) and value != default.get(name):
            change[name] = value
    if staged:
        change["depths"] = [1] * len(before["depths"])
        if getattr(config, "out_indices", None) is not None:
            change["out_indices"] = list(config.out_indices)
    heads = number("num_attention_heads", "n_head", "num_heads")
    layers = number("num_hidden_layers", "n_layer", "num_layers")
    if "kv_lora_rank" in before and "num_key_value_heads" in before:  # every head has its own keys
        change["num_key_value_heads"] = change.get(heads, before.get(heads))
    for name, unset in (("head_dim", 16), ("num_key_value_heads", 2)):
        if name in before and before[name] is None:
            change[name] = unset
    if "qk_head_dim" in before:
        change["qk_head_dim"] = change.get("qk_nope_head_dim", 0) + change.get("qk_rope_head_dim", 0)
    for name, value in before.items():  # sections of a rotation, made for heads of 128
        if isinstance(value, dict) and "mrope_section" in value:
            change[name] = {**value, "mrope_section": [part // 4 for part in value["mrope_section"]]}
            change.update({"head_dim": 32} if "head_dim" in before else {heads: 2, "num_key_value_heads": 2})
    if layers and not staged:
        kinds = next((name for name in ("layer_types", "layers_block_type", "block_types") if before.get(name)), None)
        some = list(dict.fromkeys(before[kinds])) if kinds else []
        count = change[layers] = special.get(layers, max(2, len(some)))
        for name, value in before.items():
            if isinstance(value, (list, tuple)) and len(value) == before[layers] and before[layers] > 2:
                change[name] = type(value)(value[:count])
        if some:
            change[kinds] = (some * 2)[:count]
    if isinstance(patch := before.get("patch_size"), int) and isinstance(before.get("image_size"), int) and not staged:
        change["image_size"] = 4 * patch
    change.update(special)
    known = inspect.signature(type(config).__init__).parameters
    return type(config)(**{name: value for name, value in change.items() if name in {*known, *before, "out_indices"}})


def classes(kind):
    """Returns the classes of a type that are tried: up to two classes that generate. The bare model is tried, too, if
    no class generates, or if the type can also read in both directions."""
    generating = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ")
    names = [getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(kind) for task in generating]
    found = list(dict.fromkeys(name for name in names if name))[:2]
    bare = auto.MODEL_MAPPING_NAMES.get(kind)
    bare = bare[0] if isinstance(bare, (list, tuple)) else bare
    config = auto.CONFIG_MAPPING_NAMES[kind]
    two_ways = hasattr(transformers, config) and "is_decoder" in vars(getattr(transformers, config)())
    if bare and (not found or two_ways):
        found.append(bare)
    return [getattr(transformers, name) for name in found if hasattr(transformers, name)]


def draw(model):
    """Draws weights that keep activations near 1, so that scores differ and a wrong mask shows."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dim() > 1 and parameter.numel():
            fan = 1 if "embed" in name or "bias" in name or "table" in name else parameter[0].numel()
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / fan**0.5)


# ---- inputs


def inputs(model):
    """Inputs that the model may take, the likeliest first."""
    config, names = model.config, inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(2)

    def noise(*shape):
        return torch.randn(shape, generator=generator)

    def first(*names, default):
        for each in (config, *(getattr(config, name, None) for name in config.sub_configs)):
            for name in names:
                if isinstance(value := getattr(each, name, None), (int, list, tuple)):
                    return value
        return default

    known = max(min(99, first("vocab_size", default=99)), 4)
    ids = torch.randint(3, known, (2, TOKENS), generator=generator)
    ids[:, -1] = 2  # the end token; some models look for their answer there
    size = first("image_size", "pretrain_image_size", default=64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = first("num_channels", "in_channels", "in_chans", default=3)
    channels = channels if isinstance(channels, int) else 3
    bins = first("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels", default=80)
    frames = 2 * first("max_source_positions", default=64)
    pictures = {"pixel_values": noise(2, channels, height, width)}
    text = {"input_ids": ids}
    if config.is_encoder_decoder:
        text["decoder_input_ids"] = torch.randint(3, known, (2, TOKENS - 2), generator=generator)
        text["decoder_input_ids"][:, 0] = 1
    decoder = {"decoder_input_ids": ids} if "decoder_input_ids" in names and not config.is_encoder_decoder else {}
    few = {"input_ids": ids[:, :16]}
    every = []
    if "input_ids" in names:
        every += [text, {"input_ids": ids}]
        if "bbox" in names:
            every += [{**text, "bbox": box} for box in (torch.zeros(2, TOKENS, 4).long(), torch.rand(2, TOKENS, 4))]
    if "pixel_values" in names:
        frame_count = first("num_frames", "frames_per_clip", default=4)
        film = {"pixel_values": noise(2, frame_count, channels, height, width)}
        pair = {"pixel_values": noise(2, 1, channels, height, width),
                "image_attention_mask": torch.ones(2, TOKENS, 1).long()}
        if "input_ids" in names:
            every += [{**text, **pictures}, {**few, **pictures}, {**text, **film}, {**text, **pair}]
        every += [pictures, {**pictures, **decoder}, film]
    if "spatial_shapes" in names:
        depth = channels * first("patch_size", default=16) ** 2
        patches = {"pixel_values": noise(2, 16, depth), "pixel_attention_mask": torch.ones(2, 16).long(),
                   "spatial_shapes": torch.full((2, 2), 4)}
        every += [patches, {**text, **patches}]
    if "grid_thw" in names or "image_grid_thw" in names:  # patches of two pictures, one after the other
        grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
        main = next(name for name in ("pixel_values", "hidden_states", "input_ids") if name in names)
        patch = first("patch_size", default=14)
        patch = patch if isinstance(patch, int) else patch[0]
        for depth in (1, 2):
            depth *= channels * patch**2
            every += [{main: noise(48, depth), "grid_thw" if "grid_thw" in names else "image_grid_thw": grid}]
    if "pixel_values_videos" in names:
        frame_count = first("frames_per_clip", "num_frames", default=4)
        film = {"pixel_values_videos": noise(2, frame_count, channels, height, width)}
        every += [film, {**text, **film}]
    if "input_features" in names:
        extra = {"decoder_input_ids": text["decoder_input_ids"]} if config.is_encoder_decoder else {}
        wide = first("feature_projection_input_dim", "input_dim", "input_feature_size", default=bins)
        every += [{"input_features": noise(2, bins, frames), **extra}, {"input_features": noise(2, 64, bins), **extra},
                  {"input_features": noise(2, 64, 2 * bins), **extra}, {"input_features": noise(2, 64, wide), **extra},
                  {"input_features": noise(2, 64, 80), **extra}]
        if "input_features_mask" in names:
            every += [{"input_features": noise(2, bins, frames), "input_features_mask": torch.ones(2, frames).long()}]
    if "input_values" in names:
        extra = {"decoder_input_ids": text["decoder_input_ids"]} if config.is_encoder_decoder else {}
        every += [{"input_values": noise(2, 4000), **extra}, {"input_values": noise(2, 1, 4800)},
                  {"input_values": noise(2, 4800)}, {"input_values": noise(2, 3840)},
                  {"input_values": noise(2, first("max_length", default=64), bins)}]
    if "past_values" in names:
        length = first("context_length", default=64)
        every += [{"past_values": noise(2, length, first("num_input_channels", default=1))},
                  {"past_values": noise(2, length)}, {"past_values": noise(2, length), "past_values_padding": torch.zeros(2, length),
                   "freq": torch.zeros(2, 1).long()}]
    if "inputs_embeds" in names:
        every += [{"inputs_embeds": noise(2, TOKENS, first("hidden_size", "d_model", default=64))}]
    if "hidden_states" in names:
        every += [{"hidden_states": noise(2, TOKENS, first("hidden_size", "d_model", default=64))}]
    return every


# ---- comparison


def floats(output, name=""):
    """All float tensors of an output, with the names of their places."""
    if torch.is_tensor(output):
        if output.is_floating_point() and output.numel():
            yield name, output
    elif isinstance(output, dict):
        for key, value in output.items():
            if "cache" not in key and "past_key" not in key:
                yield from floats(value, f"{name}.{key}" if name else key)
    elif isinstance(output, (list, tuple)):
        for index, value in enumerate(output):
            yield from floats(value, f"{name}[{index}]")


def forward(model, given, seen=None):
    """The outputs without the rows of padding. A model may add rows to the rows of its tokens."""
    torch.manual_seed(0)
    found = dict(floats(model(**given)))
    if seen is None:
        return found
    for name, value in found.items():
        if value.dim() > 1 and len(value) == len(seen) and 0 <= (more := value.shape[1] - seen.shape[1]) < 3:
            found[name] = value[torch.nn.functional.pad(seen, (0, more), value=True)]
    return found


def padded(given, side):
    name = "decoder_attention_mask" if side == "decoder" else "attention_mask"
    ids = given["decoder_input_ids" if side == "decoder" else "input_ids"]
    mask = torch.ones_like(ids)
    if side == "left":
        mask[1, :4] = 0
    elif side != "no":
        mask[1, -4:] = 0
    return {**given, name: mask}, mask.bool()


def scenarios(model, given):
    """Yields for each scenario its name, and a function from a model to its outputs."""
    names = inspect.signature(model.forward).parameters
    yield "prompt", lambda m: forward(m, given)
    if "input_ids" not in given:
        return
    decodes = "decoder_input_ids" in given
    if "attention_mask" in names:
        for side in ("no", "right", "left"):
            with_mask, seen = padded(given, side)
            yield f"{side} padding", lambda m, g=with_mask, s=seen: forward(m, g, s)
    if decodes and "decoder_attention_mask" in names:
        with_mask, seen = padded(given, "decoder")
        yield "padding of the decoder", lambda m, g=with_mask, s=seen: forward(m, g, s)
    if not model.can_generate():
        return

    def in_parts(m):
        cache = DynamicCache(config=m.config.get_text_config(decoder=True))
        parts, ids = [], given["input_ids"]
        for part in (slice(0, 9), slice(9, 17), slice(17, TOKENS)):
            parts.append(forward(m, {"input_ids": ids[:, part], "cache": cache, "use_cache": True}))
        return {f"{name} of part {index}": value for index, part in enumerate(parts) for name, value in part.items()}

    if not decodes and "cache" in names:
        yield "prompt in parts", in_parts

    def generate(m, given, cache):
        torch.manual_seed(0)
        m.generation_config.eos_token_id = None
        out = m.generate(**given, max_new_tokens=4, min_new_tokens=4, do_sample=False, num_beams=1, use_cache=True,
                         output_logits=True, return_dict_in_generate=True, cache_implementation=cache, pad_token_id=0,
                         **({"decoder_start_token_id": 1} if decodes else {}))
        return {f"token {index}": logits for index, logits in enumerate(out.logits)}

    prompt = {name: value for name, value in given.items() if name != "decoder_input_ids"}
    masks = [("", prompt)]
    if "attention_mask" in names:
        masks += [(", left padding" if not decodes else ", padding", padded(prompt, "right" if decodes else "left")[0])]
    for cache in (None, "static"):
        for label, g in masks:
            yield f"generate{', static cache' if cache else ''}{label}", lambda m, g=g, c=cache: generate(m, g, c)


def difference(got, want):
    """The largest difference, relative to the largest element of the same tensor. Generated tokens are compared up to
    the first token that differs."""
    worst = 0.0
    for name, value in want.items():
        other = got[name]
        if other.shape != value.shape:
            return float("inf")
        if not torch.equal(value.isfinite(), other.isfinite()):
            return float("inf")
        finite = value.isfinite()
        if finite.any():
            largest = max(value[finite].abs().max().item(), 1e-3)
            worst = max(worst, (other - value)[finite].abs().max().item() / largest)
        if name.startswith("token ") and not torch.equal(other.argmax(-1), value.argmax(-1)):
            break
    return worst


# ---- the walk


def line(error):
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:160]


def walk(cls, kind):
    result = {"kind": kind, "class": cls.__name__, "calls": 0, "reasons": {}, "wrong": {}, "refused": {}, "skipped": {}}

    def made(implementation):
        torch.manual_seed(0)
        return cls._from_config(copy.deepcopy(config), attn_implementation=implementation).float().eval()

    try:
        config = small(cls.config_class())
        if "ForCausalLM" in cls.__name__ or "LMHead" in cls.__name__:
            if "is_decoder" in vars(config):
                config.is_decoder = True
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in made("eager").parameters())
        if count > LARGEST:
            raise ValueError(f"{count / 1e6:.0f} million parameters")
        plain = made(None if kind in BY_DEFAULT else "eager")
    except Exception as error:
        return {**result, "untried": line(error)}
    given = None
    # The model keeps its own weights if it gives no finite output with drawn weights.
    for drawn in (False,) if kind in OWN_WEIGHTS else (True, False):
        if drawn:
            draw(plain)
        else:
            plain = made(None if kind in BY_DEFAULT else "eager")
        errors = []
        for each in inputs(plain):
            try:
                want = forward(plain, each)
            except Exception as error:
                errors.append(line(error))
                continue
            if want and all(value.isfinite().any() for value in want.values()):
                given = each
                break
            errors.append("no finite output")
        if given is not None:
            break
    if given is None:
        return {**result, "untried": errors[0] if errors else "no input known", "errors": errors}

    calls = 0

    def counted(*arguments, **named):
        nonlocal calls
        calls += 1
        return support._forward(*arguments, **named)

    AttentionInterface.register(support.NAME, counted)
    attn_proto.reset_reasons()
    try:
        ours = made(support.NAME)
        ours.load_state_dict(plain.state_dict())
    except Exception as error:
        return {**result, "refused" if isinstance(error, KeyError) else "wrong": {"construction": line(error)}}
    for name, run in scenarios(plain, given):
        print(json.dumps({"begin": kind, "ours": False}), flush=True)
        try:
            want = run(plain)
        except Exception as error:
            result["skipped"][name] = line(error)
            continue
        print(json.dumps({"begin": kind, "ours": True}), flush=True)
        try:
            got = run(ours)
        except Exception as error:
            refusal = isinstance(error, ValueError) and str(error).startswith("attn_proto: ")
            result["refused" if refusal else "wrong"][name] = str(error) if refusal else line(error)
            continue
        off = difference(got, want)
        if not off <= TOLERANCE:
            result["wrong"][name] = f"differs by {off:.2g}"
    result["calls"], result["reasons"] = calls, attn_proto.reasons()
    return result


def child(kinds):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for kind in kinds:
        print(json.dumps({"begin": kind, "ours": False}), flush=True)
        try:
            found = classes(kind)
        except Exception as error:  # the type's default configuration is refused, or needs another package
            print(json.dumps({"kind": kind, "class": "", "untried": line(error)}), flush=True)
            continue
        for cls in found:
            try:
                result = walk(cls, kind)
            except Exception as error:
                result = {"kind": kind, "class": cls.__name__, "wrong": {"the walk": line(error)}}
            print(json.dumps(result), flush=True)


def run_some(kinds, tell):
    """Runs types in separate processes, so that a model that dies or hangs does not end the walk. Such a model counts
    as wrong if it ran with our attention, and as not tried if it ran with eager attention."""
    left = list(kinds)
    while left:
        now = {"begin": left[0], "ours": False}

        def take(text):
            if text.startswith("{"):
                found = json.loads(text)
                (now.update if "begin" in found else tell)(found)

        if why := follow([sys.executable, __file__, "--child", *left], SECONDS, take):
            tell({"kind": now["begin"], "class": "", **({"wrong": {"": why}} if now["ours"] else {"untried": why})})
        left = left[left.index(now["begin"]) + 1:] if why else []


# ---- the table


def listed(kinds):
    return sorted(set(kinds))


def summary(results, version):
    """Returns the record for the page's tables: the types of models by the result of their calls."""
    def general(why):  # leaves out the sizes of the small model
        for text, kind in ((r"(a )?widths? ", "widths"), (r"query is [A-Z]|[qkv]: [a-z]+\d+ is", "types"),
                           (r"[qkv]: a stride of .* last dimension", "a last dimension that is not dense")):
            if re.match(text, why):
                return kind
        return why.partition(";")[0]

    groups, refused, untried = (collections.defaultdict(list) for _ in range(3))
    shares = {}
    for kind in sorted({found["kind"] for found in results}):
        own = [found for found in results if found["kind"] == kind]
        for found in own:
            for why in {"its class takes no implementation by name" if "KeyError" in why else
                        re.sub(r"attn_proto: (\S+ (?=runs))?|; attn_implementation.*", "", why)
                        for why in found.get("refused", {}).values()}:
                refused[why].append(kind)
        tried = [found for found in own if "untried" not in found and not found.get("refused")]
        calls = sum(found["calls"] for found in tried)
        back = sum(sum(found["reasons"].values()) for found in tried)
        if calls:
            reasons = {general(why) for found in tried for why in found["reasons"]}
            groups[tuple(sorted(reasons))].append(kind)
            shares[kind] = round(100 * (calls - back) / calls)
        elif tried:
            groups[None].append(kind)
        elif all("untried" in found for found in own):
            why = own[0]["untried"]
            untried["it needs another package" if re.search("ImportError|ModuleNotFound", why) else
                    "it is not small" if "million parameters" in why else
                    "the script finds no sizes or input that the model takes"].append(kind)

    def by_size(found):
        return sorted(found.items(), key=lambda each: -len(each[1]))

    return {"types": len({found["kind"] for found in results}), "transformers": version, "agree": len(shares),
            "whole": listed(groups.pop((), [])), "never": listed(groups.pop(None, [])),
            "some": [{"for": "; ".join(reasons), "types": {kind: shares[kind] for kind in own}} for reasons, own in by_size(groups)],
            "refused": [{"for": why, "types": listed(own)} for why, own in by_size(refused)],
            "untried": [{"for": why, "types": listed(own)} for why, own in sorted(untried.items())]}


def main():
    parser = Parser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help="types of models; all if none is named")
    parser.add_argument("--write", action="store_true", help="write the table of docs/extension.md anew")
    parser.add_argument("--out", type=pathlib.Path, help="file for a line of JSON for each model")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.kinds)
    if options.write and options.kinds:
        parser.error("the table is of all models: --write takes no names")
    names = {*auto.MODEL_MAPPING_NAMES, *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
             *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    kinds = options.kinds or sorted(names)
    if unknown := set(kinds) - names:
        parser.error(f"no such type: {', '.join(sorted(unknown))}")
    results, lock = [], threading.Lock()

    def tell(found):
        with lock:
            results.append(found)
            print(json.dumps(found) if options.kinds else f"{len(results)} {found['kind']}", flush=True)

    size = max(1, min(16, -(-len(kinds) // AT_ONCE)))
    chunks = [kinds[at:at + size] for at in range(0, len(kinds), size)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda chunk: run_some(chunk, tell), chunks))
    results.sort(key=lambda found: (found["kind"], found["class"]))
    if options.out:
        options.out.write_text("".join(json.dumps(found) + "\n" for found in results))
    wrong = [found for found in results if found.get("wrong")]
    for found in wrong:
        print(found["kind"], found["class"], found["wrong"])
    if options.write and not wrong:
        page_tables.write("models", summary(results, transformers.__version__))
    print(f"{len(results)} models, {len(wrong)} wrong, {sum('untried' in found for found in results)} not tried")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
