#!/usr/bin/env python3
"""Makes the tables in docs/extension.md (models) and docs/reports.md (reports) from the records in
findings/recorded/python. models.py and reports.py write these records. The words about reports and trials come from
reports.py. This program needs neither PyTorch nor transformers.

    python/tests/page_tables.py             # writes both tables
    python/tests/page_tables.py --check     # fails if a page differs from its record
"""

import ast
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDS = ROOT / "findings/recorded/python"
MOST_NAMES = 8  # in a row of the table of models
LONGEST = 139  # characters of an error's line; records of older runs hold at most 140
PAGES = {"models": ROOT / "docs/extension.md", "reports": ROOT / "docs/reports.md"}


def models(found):
    """The number of types of models by the result of their calls. Few types are named; the record names all."""
    def row(types, outcome):
        names = [f"{name} ({types[name]} %)" if isinstance(types, dict) else name for name in types]
        return f"| {len(types)} | {outcome} | {', '.join(names) if len(names) <= MOST_NAMES else ''} |"

    return [f"Of {found['types']} types of models in transformers {found['transformers']}, {found['agree']} ran with attention and agree "
            "with eager attention. A type whose classes end differently stands in several rows. "
            "[models.json](../findings/recorded/python/models.json) names all types.", "",
            "| types | outcome | which (per cent: the share of calls that reach the kernels) |", "|---|---|---|",
            row(found["whole"], "all calls of attention reach the kernels"),
            *(row(each["types"], f"some calls go to PyTorch, for {each['for']}") for each in found["some"]),
            *(row(each["types"], f"refused, with one line: {each['for']}") for each in found["refused"]),
            row(found["never"], "no call of attention: the model has none, or computes it itself"),
            *(row(each["types"], f"not tried, because {each['for']}") for each in found["untried"])]


def words():
    """The words of each report in reports.py by its address: what the report said, and a text for each trial."""
    found = {}
    for function in ast.parse((ROOT / "python/tests/reports.py").read_text(encoding="utf-8")).body:
        for call in getattr(function, "decorator_list", []):
            said, *tried = (" ".join(text.split()) for text in ast.get_docstring(function).split("\n\n"))
            found[f"https://github.com/{ast.literal_eval(call.args[0])}"] = said, tried
    return found


def results(now):
    """The results of a report's trials, from the record's text. The drop-in leaves a call to PyTorch for a reason; the
    result that follows the reason belongs to the same trial."""
    def code(line):
        return "`" + textwrap.shorten(line.replace("`", "'").replace("|", "\\|"), LONGEST, placeholder=" ...") + "`"

    found, kept = [], []
    for part in re.split(r"; (?=right$|right;|refused|PyTorch: )", now):
        kind, _, line = part.partition(": ")
        kept.append(f"{kind}: {code(line)}" if kind.startswith("refused") else f"{kind} ({line})" if kind == "PyTorch" else part)
        if kind != "PyTorch" or kept[1:]:
            found, kept = [*found, ": ".join(kept)], []
    return found + kept


def reports(found):
    def cell(text):
        return text.replace("|", "\\|").replace("<", "&lt;")

    lines, texts = [f"{len(found)} reports.", "", "| report | what it said | tried here | result now |", "|---|---|---|---|"], words()
    for row in found:
        name = "/".join(row["report"].split("/")[-4:]).replace("/issues/", "#").replace("/pull/", "#")
        said, tried = texts[row["report"]]
        ends = results(row["now"])
        if len(ends) == 1:  # all trials have this result
            tried = ["; ".join(tried)]
        first = f"[{name}]({row['report']}) | {cell(said)}"
        for trial, end in zip(tried, ends, strict=True):
            lines.append(f"| {first} | {cell(trial)} | {end} |")
            first = " | "
    return lines


def page_of(name):
    """The text of a page with the table from its record."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
    found = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    before, rest = PAGES[name].read_text(encoding="utf-8").split(begin)
    table = "".join(line + "\n" for line in {"models": models, "reports": reports}[name](found))
    return before + begin + table + end + rest.split(end)[1]


def write(name, found):
    """Writes a record, and its table into the page."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGES[name].write_text(page_of(name), encoding="utf-8")


def main(arguments):
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if arguments not in ([], ["--check"]):
        print(f"page_tables: '{' '.join(arguments)}' is not allowed; --check, or nothing", file=sys.stderr)
        return 2
    stale = {name: page_of(name) for name, page in PAGES.items() if page_of(name) != page.read_text(encoding="utf-8")}
    for name, text in stale.items():
        if arguments:
            print(f"{PAGES[name].name}: the table {name} differs from its record; run python/tests/page_tables.py", file=sys.stderr)
        else:
            PAGES[name].write_text(text, encoding="utf-8")
    return int(bool(stale and arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
