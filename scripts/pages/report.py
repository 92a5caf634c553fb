"""Writes one HTML page from records: what to do on each device, then pictures, then tables.

The page opens without a network. A click on a number or a point shows the record that it comes from, and the
command that measures the case again. Numbers of other programs, and of devices, have no record to show.
FILEs hold findings and measurements (JSON lines, plain or gzip), or rows of scripts/peers (.json). Without FILE the
script reads findings.jsonl, measurements.jsonl and peers*.json in the current folder, else the project's records.
The decisions come from kb (scripts/build kb); without kb the page has none. The claims of the project's records are those
that scripts/build pooled has pooled.
"""

import collections
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))  # with $PYTHONSAFEPATH it is not there
import records as rec  # noqa: E402
from charts import chart, escaped, grid, table  # noqa: E402
from command_line import Parser  # noqa: E402
from peer_suites import Refused, pages  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
HERE = ("findings.jsonl", "measurements.jsonl", "peers*.json")  # in the current folder; read if no FILE is named
LENGTH = ("q_len", "kv_len", "batch")
CEILINGS = ("copy_gbps", "f32_tflops", "f16_tflops", "bf16_tflops", "tf32_tflops")
# Fields of a file of scripts/peers that the caption of its table leaves out.
LONG = {"device", "window", "source", "command"}
LEAST = 3  # the smallest number of lengths in a line of a chart
MOST_LINES = 6  # the largest number of lines in a chart; report.css has this number of colours
MOST_ROWS = 12  # of a table of decisions that are not folded away
TILE = ("block_r", "block_c")
SPLIT = ("dtype", "head_dim", "causal", "generator", "function", "kernel")  # axes that divide a chart, in order


def label(case, axes):
    """Returns a text that names a case by these axes. Leaves out modifiers that are off, and axes of the keys that have
    the same value as the axes of the queries."""
    words = []
    for axis in dict.fromkeys(axes):
        value, of_q = case.get(axis), case.get(axis.replace("kv_", "q_"))
        if axis == "causal":
            words.append("causal" if value else "full")
        elif value not in (None, rec.MODIFIERS.get(axis)) and not (axis.startswith("kv_") and value == of_q):
            words.append(f"{axis} {value}")
    return ", ".join(words)


class Records:
    """The page's records. Each record has a number, by which figures refer to it. report.js reads the result of data():
    a list of fields for each record, and tables of the values that many records share."""

    def __init__(self, findings, measurements, devices):
        self.findings, self.measurements = findings, measurements
        self.number = {record["id"]: i for i, record in enumerate(findings + measurements)}
        self.tables = collections.defaultdict(dict)
        self.devices = devices
        for device in devices:
            self.place("devices", device)

    def of(self, record):
        return self.number[record["id"]]

    def place(self, name, value):
        """Returns the index of a shared value in its table."""
        return self.tables[name].setdefault(value, len(self.tables[name]))

    def common(self, record, experiment, device, pairs):
        axes, values = zip(*pairs) if pairs else ((), ())
        return [record["id"], self.place("devices", device), self.place("experiments", experiment),
                self.place("files", record["file"]), self.place("times", rec.run_of(record)[-1]), [self.place("axes", axes), *values]]

    def finding(self, record):
        data, estimate = record["data"], record["data"]["estimate"]
        claim = *(data["hypothesis"][key] for key in ("id", "text", "metric")), rec.holds_if(data["hypothesis"])
        is_exact = estimate["scale"] == "exact" and data["verdict"]["state"] != "inconclusive"
        pairs = [word.partition("=")[::2] for word in data["subject"].split()]
        return [*self.common(record, data["experiment"], data["device"], pairs), data["verdict"]["state"],
                self.place("claims", claim), record["title"], float(rec.digits(estimate["value"])),
                rec.next_text(estimate), "exact" if is_exact else f"{record['wrong']:.2g}" if "wrong" in record else ""]

    def measurement(self, record):
        time, rate, check, pipeline = (rec.time_of(record, rec.scopes_of(record)), rec.rate(record), record["check"],
                                       record["pipeline"])
        share = (record["rate"] or {}).get("pct_matrix_ceiling")
        status = f"{record['status']}: {record['reason']}" if record["reason"] else record["status"]
        return [*self.common(record, record["experiment"], record["device"], record["case"].items()),
                self.place("status", status),
                *(float(f"{1e6 * time[key]:.4g}") if time else None for key in ("median_s", "ci_lo_s", "ci_hi_s")),
                rate and float(f"{rate[0]:.4g}"), share and round(share, 1), check and float(f"{check['max_abs']:.1e}"),
                pipeline and pipeline["compile_s"] is not None and round(1e3 * pipeline["compile_s"])]

    def data(self):
        rows = [*map(self.finding, self.findings), *map(self.measurement, self.measurements)]
        cases = collections.defaultdict(list)
        for record in self.measurements:
            cases[record["experiment"]].append(record["case"])
        return {"records": rows, "findings": len(self.findings), "off": rec.MODIFIERS,
                "varying": {experiment: rec.varying(own) for experiment, own in cases.items()},
                **{name: list(values) for name, values in self.tables.items()}}


def divided(lines):
    """Divides lines into charts of at most MOST_LINES lines. A line is a list of records. Yields (axes that name a
    line, values of the axes that name the chart, lines)."""
    def divide(some, title):
        own = rec.varying([cells[0]["case"] for cells in some], (*LENGTH, *TILE, "variants"))
        if len(some) <= MOST_LINES or not own:
            for i in range(0, len(some), MOST_LINES):
                yield own, title, some[i:i + MOST_LINES]
            return
        axis = next((axis for axis in SPLIT if axis in own), own[0])
        for value in dict.fromkeys(cells[0]["case"].get(axis) for cells in some):
            yield from divide([cells for cells in some if cells[0]["case"].get(axis) == value], title | {axis: value})

    return divide(lines, {}) if lines else ()


def tile_of(case):
    return f"{case['block_r']}x{case['block_c']}" if all(case.get(axis) for axis in TILE) else ""


# ---- the sections of a device: functions that return markup, or ""

def decision_table(page, title, heads, rows):
    cells = []
    for row in rows:
        number = page.number.get(row["id"])
        cells.append((number, [[f"<b>{escaped(cell)}</b>"] if head == "take" else cell for head, cell in zip(heads, row["cells"])]))
    return table(title, heads, cells)


def decisions(page, tables):
    """Returns the tables of kb decisions. A row links to its record."""
    parts = []
    for each in tables:
        rows, heads = each["rows"], each["heads"]
        if rows:
            parts.append(decision_table(page, each["title"], heads, rows[:MOST_ROWS]))
        if rest := rows[MOST_ROWS:]:
            parts.append(f"<details><summary>{len(rest)} more rows</summary>{decision_table(page, each['title'], heads, rest)}</details>")
    if note := rec.left_out(tables):
        parts.append(f"<p class=note>{note}</p>")
    return "".join(parts)


def chosen_tiles(tables, case):
    """Returns the tiles that the tables take, and call as good, in the shape of this case."""
    def is_of(where, axis, value):
        return axis in TILE or (value in where[axis] if isinstance(where.get(axis), list) else where.get(axis) == value)

    for row in (row for each in tables if each["question"] == "tile" for row in each["rows"]):
        if all(is_of(row["where"], axis, value) for axis, value in case.items()):
            return [row["take"], *row["as_good"]]
    return []


def tile_maps(page, tables, measurements):
    found = collections.defaultdict(list)
    for record in measurements:
        if tile_of(record["case"]):
            found[record["experiment"], rec.case_key(record["case"], TILE)].append(record)
    maps = [cells for cells in found.values()
            if all(len({cell["case"][axis] for cell in cells if rec.rate(cell)}) > 1 for axis in TILE)
            and sum(rec.rate(cell) is not None for cell in cells) > 3]
    axes = rec.varying([cells[0]["case"] for cells in maps], TILE)
    parts = []
    for cells in maps:
        place = {tile_of(cell["case"]): cell for cell in cells}
        timed = [cell for cell in cells if rec.rate(cell)]
        best = max(timed, key=lambda cell: rec.rate(cell)[0])
        ties = chosen_tiles(tables, best["case"])
        rows, columns = (sorted({cell["case"][axis] for cell in timed}) for axis in TILE)

        def td(name):
            cell = place.get(name)
            if not cell or not rec.rate(cell):
                return f"<td data-r={page.of(cell)}>\u2013" if cell else "<td>"
            share = 100 * rec.rate(cell)[0] / rec.rate(best)[0]
            # Shares from 50 to 100 % have a colour: a tile that takes twice the time has none.
            text = f"data-r={page.of(cell)} style=--s:{max(0, 2 * share - 100):.0f}%>{share:.0f}"
            if cell is best:
                return f"<td class=best {text}<span class=sr> the best</span>"
            return f"<td class=tie {text}<span class=sr> as good</span>" if name in ties else f"<td {text}"

        shape = best["case"]
        title = label(shape, [axis for axis in ("dtype", "head_dim", "causal", "q_len", *axes) if axis in shape])
        heads = "".join(f"<th scope=col>{escaped(c)}" for c in columns)
        body = "".join(f"<tr><th scope=row>{escaped(r)}{''.join(td(f'{r}x{c}') for c in columns)}" for r in rows)
        parts.append(f"<table class=tiles><caption>{escaped(best['experiment'])}: {escaped(title)}; best "
                     f"{tile_of(shape)} at {rec.digits(rec.rate(best)[0])} TFLOPS</caption><thead><tr>"
                     f"<th scope=col><abbr title='rows: Br, columns: Bc'>Br\\Bc</abbr>{heads}</thead>"
                     f"<tbody>{body}</tbody></table>")
    return grid(parts)


def arithmetic_ceiling(ceilings, dtype):
    """Returns the ceiling in TFLOPS, as Ceilings::matrix_tflops computes it. For f32 a third of the rate of tf32 counts
    if this third is higher than the rate of f32: three products of tf32 are as exact as one product of f32."""
    rate = ceilings.get(f"{dtype}_tflops") or 0
    return max(rate, (ceilings.get("tf32_tflops") or 0) / 3) if dtype == "f32" else rate


def rates_by_length(page, measurements, ceilings):
    """Returns charts of the rate over the length for each experiment. For each length, a line has the record with the highest
    rate of all tiles and sizes of the problem (LENGTH). A line with fewer than LEAST lengths is left out."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for record in measurements:
        at = record["case"].get("q_len")
        if rec.rate(record) and at and at == record["case"].get("kv_len"):
            line = found[record["experiment"]][rec.case_key(record["case"], (*LENGTH, *TILE))]
            line[at] = max(line.get(at, record), record, key=lambda cell: rec.rate(cell)[0])
    charts = []
    for experiment, lines in found.items():
        lines = [[line[at] for at in sorted(line)] for line in lines.values() if len(line) >= LEAST]
        for axes, title, some in divided(lines):
            drawn = [(label(cells[0]["case"], axes or ("variant", "task", "dtype", "head_dim", "causal")),
                      [(cell["case"]["q_len"], *rec.rate(cell), page.of(cell)) for cell in cells]) for cells in some]
            dtypes = dict.fromkeys(cells[0]["dtype"] for cells in some)
            rules = [(f"{dtype} ceiling", top) for dtype in dtypes if (top := arithmetic_ceiling(ceilings, dtype))]
            charts.append(chart(f"{experiment} {label(title, title)}", "q_len = kv_len", "TFLOPS", drawn, rules))
    return grid(charts)


def peers(results):
    """Returns a table for each file of scripts/peers, with the ratio of each other program's time to our kernel's time.
    Above 1 our kernel is faster."""
    parts = []
    for name, result in results:
        about, found = result["about"], collections.defaultdict(list)
        for row in result["rows"]:
            axes = [key for key, value in row.items()
                    if not isinstance(value, (float, list, dict)) and key not in ("turns", "agree", "tile")]
            shape = label(row, axes) + ("" if row.get("agree", True) else pages.DIFFER)
            for key in (key for key in row if key == "ratio" or key.endswith("_ratio")):
                side = "the fastest other" if key == "ratio" else key.removesuffix("_ratio")
                ratio = row[key] if isinstance(row[key], list) else [row[key]]
                if not ratio or not all(isinstance(value, (int, float)) and value > 0 for value in ratio):
                    raise Refused(f"{name}: {key} is {row[key]}; a ratio must be above 0")
                found[side].append((ratio[0], min(ratio), max(ratio), shape))
        rows, every = [], []
        for side, own in found.items():
            values = [value for value, *_ in own]
            said = rec.span(values)
            if all(low < high for _, low, high, _ in own):  # else some ratio has no interval, and nothing is counted
                said += (f"; faster on {sum(low > 1 for _, low, *_ in own)} of {len(own)}, slower on "
                         f"{sum(high < 1 for _, _, high, _ in own)}")
            rows.append((None, (side, rec.digits(statistics.median(values)), said)))
            every += [(None, (f"{side}: {shape}", f"{value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low < high else "")))
                      for value, low, high, shape in own]
        if rows:
            versions = ", ".join(f"{key} {value}" for key, value in about.items() if value and key not in LONG)
            ratio = "speed of ours / speed of the other"
            parts.append(table(f"{name}: {versions}", ("other program", "median", ratio), rows) + f"<details><summary>{len(every)} "
                         f"rows</summary>{table(name, ('other program and shape', ratio), every)}</details>")
    return "".join(parts)


def device_rows(environments, latest):
    for device, env in environments.items():
        info, ceilings, git = env.get("device") or {}, env.get("ceilings") or {}, env.get("git") or {}
        memory = f"{info.get('threadgroup_memory_bytes', 0) >> 10} KiB of threadgroup memory"
        commit = f"commit {git.get('commit', '')[:12]}{' (changed)' if git.get('dirty') else ''}"
        more = "; ".join(filter(None, (info.get("arch"), info.get("toolchain"), memory, commit)))
        yield None, ([f"{escaped(device)}<br><small>{escaped(more)}</small>"],
                     *(f"{ceilings[key]:.4g}" if ceilings.get(key) else "" for key in CEILINGS), latest[device][:10])


SECTIONS = {
    "Decisions": "What to take, of so many options, by question. As good: no run is expected to show that it takes over 2 % "
                 "longer. In brackets, the interval in which the next run's figure is expected. A click on a row shows its "
                 "record.",
    "Tiles": "Share of the best tile's rate, in %. The fastest tile of the latest run has a thick frame. Tiles with a dashed "
             "frame are as good, by all runs. A dash is a tile that could not run.",
    "Rate by length": "The best tile of each length. Bars are 95 % intervals; dashed lines are the rates of "
                      "matrix products alone on the same device.",
    "Peers": "Other programs on the same shapes, timed in turns. If a ratio is above 1, our kernel is faster. If an "
             "interval contains 1, neither side counts as faster. If a ratio of a program has no interval, nothing is "
             "counted for this program."}
TABLES = {"Verdicts": ("findings", ("verdict", "claim", "finding", "figure", "next run", "holds if", "wrong")),
          "Measurements": ("measurements", ("experiment", "case", "status", "median us", "\u00b1 %", "TFLOPS",
                                            "% of ceiling"))}


def sections_of(page, device, environments, tables, compared):
    """Returns the markup of each of SECTIONS for one device, in order."""
    measurements = [record for record in page.measurements if record["device"] == device]
    ceilings = environments.get(device, {}).get("ceilings") or {}
    return (decisions(page, tables), tile_maps(page, tables, measurements),
            rates_by_length(page, measurements, ceilings), peers(compared.get(device, [])))


def page_html(findings, measurements, tables, compared, sources, problems):
    """Returns the page. For each device `tables` has the tables of kb decisions, and `compared` the results of
    scripts/peers, each with its name."""
    environments = rec.environments(findings)
    latest = {device: max(rec.run_of(finding)[-1] for finding in findings if finding["data"]["device"] == device)
              for device in environments}
    devices = [*sorted(latest, key=latest.get, reverse=True), *(record["device"] for record in measurements), *compared,
               *(finding["data"]["device"] for finding in findings)]
    page = Records(findings, measurements, list(dict.fromkeys(devices)))
    blocks = collections.defaultdict(list)
    for i, device in enumerate(page.devices):
        for title, text in zip(SECTIONS, sections_of(page, device, environments, tables.get(device, []), compared)):
            if text:
                blocks[title].append(f"<div data-device={i}><h3>{escaped(device)}</h3>{text}</div>")
    shown = [title for title in SECTIONS if title in blocks]

    def anchor(title):
        return title.replace(" ", "-")

    options = "".join(f"<option value={i}>{escaped(device)}" for i, device in enumerate(page.devices))
    links = "".join(f'<a href="#{anchor(title)}">{title}</a>' for title in (*shown, "Tables"))
    left_out = f"<p class=refuted>Left out: {escaped('; '.join(problems[:20]))}</p>" if problems else ""
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    parts = [f"""<!doctype html><html lang=en><head><meta charset=utf-8>
<meta name=viewport content="width=device-width,initial-scale=1"><title>attention-proto report</title>
<style>{style}</style></head><body><header><h1>attention-proto report</h1>
<p>{len(findings)} findings and {len(measurements)} measurements. A click on a number or a point shows its
record and the command that measures it again.</p>{left_out}
<label>Device <select id=device>{options}</select></label><nav>{links}</nav></header><main>"""]
    for title in shown:
        parts.append(f'<section><h2 id="{anchor(title)}">{title}</h2><p class=note>{SECTIONS[title]}</p>'
                     f'{"".join(blocks[title])}</section>')
    parts.append(f"<section><h2 id=Tables>Tables</h2><p class=note>From {escaped(', '.join(sources))}.</p>")
    for title, (name, heads) in TABLES.items():
        buttons = "".join(f"<th scope=col><button>{escaped(head)}</button>" for head in heads)
        parts.append(f"<h3>{title}</h3><label>Filter: all words <input type=search data-table={name}></label>"
                     f"<table class=cards id={name}><caption>{title}: <span></span></caption><thead><tr>{buttons}"
                     f"</thead><tbody></tbody></table><button data-more={name}>Show more</button>")
    heads = "device", "copy GB/s", "f32 TFLOPS", "f16 TFLOPS", "bf16 TFLOPS", "tf32 TFLOPS", "last run"
    rows = device_rows(environments, latest)
    parts.append("<h3>Devices</h3>" + table("Ceilings that the devices reached", heads, rows))
    # Within a script element "<" would be markup, even in quotes.
    data = json.dumps(page.data(), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    parts.append("</section></main><dialog id=panel aria-labelledby=panel-title></dialog>"
                 f"<script type=application/json id=data>{data}</script><script>{script}</script></body></html>\n")
    return "".join(parts)


def device_of(path, about, devices):
    """Returns the device of a file of scripts/peers. If all recorded runs in the file's folder are of one device, this
    device counts, otherwise the device that the file names."""
    folder = {rec.when(run)[1] for run in path.parent.glob("*" + rec.COMPRESSED)}
    name = str(about.get("device", path.name))
    return folder.pop() if len(folder) == 1 else next((d for d in devices if d.rpartition(",")[0] == name), name)


def name_of(path):
    """Returns the name of a source. The name of a recorded run is the folder of its device."""
    path = path.parent if path.is_relative_to(rec.ROOT / rec.RECORDED) else path
    return str(path.relative_to(rec.ROOT)) if path.is_relative_to(rec.ROOT) else path.name


def main():
    parser = Parser(prog="scripts/report", description=__doc__,
                    epilog="Exit status: 0 done; 1 some lines were no records, or a run has no header; 2 bad input.")
    parser.add_argument("files", nargs="*", type=pathlib.Path, metavar="FILE", help="records and rows, in any order")
    parser.add_argument("--out", default="report.html", type=pathlib.Path, metavar="FILE", help="default report.html")
    here = [path for pattern in HERE for path in sorted(pathlib.Path().glob(pattern))]
    try:
        options = parser.parse_args()
        files = options.files or here or [*rec.recorded(), *sorted((rec.ROOT / rec.RECORDED).glob("*/peers_*.json"))]
        if options.out.exists() and any(path.exists() and path.samefile(options.out) for path in files):
            raise Refused(f"--out {options.out} is one of the files to read; name another file")
        own = [path for path in files if path.suffix != ".json"]
        findings, measurements, problems = rec.load(own)
        results = [(path, pages.read(path)) for path in files if path.suffix == ".json"]
        if not findings and not measurements and not results:
            raise Refused(f"{', '.join(map(str, files))}: no records; name files of an experiment"
                          + (f" ({problems[0]})" if problems else ""))
        # Without kb the page has no decisions, and each claim the figure of its latest run.
        has_kb = (rec.BUILD / "bin/kb").exists()
        given = own if options.files or here else ()
        claims, tables = (rec.claims_of(given), rec.decisions(given)) if own and has_kb else ([], {})
        findings, measurements = list(rec.pooled(findings, claims)), rec.latest_measurements(measurements)
        devices = dict.fromkeys(record["device"] for record in measurements)
        compared = collections.defaultdict(list)
        for path, result in results:
            compared[device_of(path, result["about"], devices)].append((path.stem, result))
        text = page_html(findings, measurements, tables, compared, dict.fromkeys(map(name_of, files)), problems)
        options.out.write_text(rec.with_one_unit(text), encoding="utf-8")
    except (OSError, Refused, *rec.UNSOUND) as error:
        print(f"report: {rec.said(error)}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"report: {problem}", file=sys.stderr)
    print(f"{options.out}: {len(findings)} findings, {len(measurements)} measurements")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
