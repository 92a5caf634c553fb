"""Files of results, and tables of Markdown."""

import json

from . import Refused

DIFFER = " (results differ)"
MICROSECONDS = "Times are in microseconds. The GPU's L2 cache is flushed before each timed launch."


def read(path):
    """Reads a file of results, {"about": {...}, "rows": [{...}, ...]}, and returns it as a dict."""
    try:
        result = json.loads(path.read_text())
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is no JSON: {error}") from None
    rows = result.get("rows") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not isinstance(result.get("about"), dict) or \
            not all(isinstance(row, dict) for row in rows):
        raise Refused(f"{path} has no results; it must have about and rows, as --out writes them")
    return result


def split(path, mark):
    """Returns the text of a page before the table of a suite, and the text after the table. The marks around the table
    belong to these texts."""
    begin, end = f"<!-- {mark}:begin -->\n", f"<!-- {mark}:end -->\n"
    try:
        head, rest = path.read_text().split(begin)
        _, tail = rest.split(end)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except ValueError:
        raise Refused(f"{path} has no place for the table; {begin.strip()} and {end.strip()} must mark it") from None
    return head + begin, end + tail


def markdown(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def cell(row, key, form):
    """Returns the figure `key` of a row as a text, with its interval if there is one, or "" if the row lacks the
    figure."""
    if key not in row:
        return ""
    if isinstance(row[key], list):
        figure, low, high = row[key]
        return f"{figure:{form}} ({low:{form}} to {high:{form}})"
    return f"{row[key]:{form}}"


def measured(about, sides, suite):
    when = f", at commit {about['commit']}, {about['date']}" if "date" in about else ""
    return f"Measured on {about['device']} with {sides}{when}, by `scripts/peers {suite}`."


def ratios(about):
    """Says what a ratio of the table is."""
    if about.get("processes", 1) == 1:
        return "A ratio is the median of the ratios of all turns."
    return (f"A ratio is the geometric mean over {about['processes']} processes; the interval in which the ratio of another "
            "process is expected (95 %) stands in parentheses.")


def leads(about, rows, keys):
    """Says, for each side, on how many rows ours is faster and on how many it is slower. `keys` has the key of a ratio
    by the side's name; a ratio above 1 means that ours is faster. The text is empty if only one process measured
    the rows."""
    texts = []
    for name, key in keys.items():
        intervals = [row[key] for row in rows if key in row]
        if intervals and about.get("processes", 1) > 1:
            ahead = sum(low > 1 for _, low, _ in intervals)
            after = sum(high < 1 for _, _, high in intervals)
            level = len(intervals) - ahead - after
            texts.append(f"{name}: ours is faster on {ahead} of {len(intervals)} rows and slower on {after}"
                         + (f"; on {level} the interval contains 1." if level else "."))
    return " ".join(texts) + "\n\n" if texts else ""


def microseconds(row, key):
    return cell(row, key, ".0f" if row.get(key, 0) >= 100 else ".1f")


def listed(names):
    """Returns the names as a text, such as "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def heads_of(row):
    return f"{row['q_heads']}" if row["q_heads"] == row["kv_heads"] else f"{row['q_heads']}/{row['kv_heads']}"


def mask_of(row):
    return "causal" if row["causal"] else "full"


def differ(row):
    return "" if row["agree"] else DIFFER


def of_peers(row, peers, unit, form, ratio_form):
    """Returns two cells for each peer: its figure in the unit, and its ratio. Without `form` the figure is a time in
    microseconds."""
    return [text for peer in peers for text in (
        cell(row, f"{peer}_{unit}", form) if form else microseconds(row, f"{peer}_{unit}"), cell(row, f"{peer}_ratio", ratio_form))]


def heads(names, ratio):
    """Returns the heads of the columns that of_peers() fills; {} in `ratio` stands for the peer's name."""
    return [head for name in names for head in (name, ratio.format(name))]
