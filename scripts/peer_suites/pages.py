"""Files of results, and tables of Markdown."""

import json

from . import Refused

DIFFER = " (results differ)"
RATIOS = "Each turn times every side once. A ratio in the table is the median of the ratios of all turns."


def read(path):
    """Reads a file of results, {"about": {...}, "rows": [{...}, ...]}, and returns it as a dict."""
    try:
        result = json.loads(path.read_text())
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise Refused(f"{path} is no JSON: {error}") from None
    rows = result.get("rows") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not isinstance(result.get("about"), dict) or \
            not all(isinstance(row, dict) for row in rows):
        raise Refused(f"{path} has no results; it must have about and rows, as --out writes them")
    return result


def split(path, mark):
    """Returns the text of a page up to the table of a suite, and the text after the table. The first text ends with the
    mark before the table, the second begins with the mark after it."""
    begin, end = f"<!-- {mark}:begin -->\n", f"<!-- {mark}:end -->\n"
    try:
        head, rest = path.read_text().split(begin)
        _, tail = rest.split(end)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except ValueError:
        raise Refused(f"{path} has no place for the table; {begin.strip()} and {end.strip()} mark one") from None
    return head + begin, end + tail


def markdown(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def cell(row, key, form):
    """The figure `key` of a row, formatted; an empty text if the row does not have it."""
    return f"{row[key]:{form}}" if key in row else ""


def ratio_cell(row, key):
    """A ratio with its lowest and highest value, or with the ends of its interval; an empty text if the row does not
    have the ratio."""
    if key not in row:
        return ""
    ratio, low, high = row[key]
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def microseconds(row, key):
    return cell(row, key, ".0f" if row.get(key, 0) >= 100 else ".1f")


def listed(names):
    """The names as a text: "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def heads_of(row):
    return f"{row['q_heads']}" if row["q_heads"] == row["kv_heads"] else f"{row['q_heads']}/{row['kv_heads']}"


def mask_of(row):
    return "causal" if row["causal"] else "full"


def differ(row):
    return "" if row["agree"] else DIFFER


def column_of(rows, key):
    """[key] if a row has the key, else []: for a column that only some files of results have."""
    return [key] if any(key in row for row in rows) else []
