"""Fields of the structs of options in attn.h, each with its type and the value that turns the option off; and what
the fields mean. scripts/tools/options writes options.json, from common/attention/options.def."""

import json
import pathlib

_fields = json.loads((pathlib.Path(__file__).parent / "options.json").read_text(encoding="utf-8"))


def _table(operation):
    return [(field["name"], field["type"], field["off"]) for field in _fields[operation]]


def _meanings(operation):
    return {field["name"]: field["meaning"] for field in _fields[operation] if "meaning" in field}


FLASH, CACHE, LINEAR, ROPE = map(_table, ("FLASH", "CACHE", "LINEAR", "ROPE"))
FLASH_MEANINGS, CACHE_MEANINGS, LINEAR_MEANINGS, ROPE_MEANINGS = map(_meanings, ("FLASH", "CACHE", "LINEAR", "ROPE"))
