"""Writes one HTML page from records: devices and their ceilings, hypotheses and verdicts, figures, tables.

The page opens without a network. Every point leads to its record and to the command that measures it again. Without
FILE it reads findings.jsonl and measurements.jsonl in this folder, else what the project recorded.
"""

import argparse
import collections
import html
import pathlib
import shlex
import sys

import plotly
import plotly.graph_objects as go

import records as rec

STATE_COLORS = {"supported": "#1a7f37", "refuted": "#cf222e", "inconclusive": "#9a6700"}
PALETTE = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"]
TILE = ("block_r", "block_c")
LENGTH = ("q_len", "kv_len", "batch")


def text(value):
    """Text for plotly, which reads some tags."""
    return html.escape(str(value), quote=False)


def short(value):
    """A name on an axis or in a legend: what is longer would leave no room for the picture."""
    value = str(value)
    return text(value if len(value) <= 64 else value[:63] + "\u2026")


def judged(finding):
    """A finding's title never stands alone: of a refuted claim it would read like a fact."""
    return text(f"{finding['data']['verdict']['state']}: {finding['title']}")


def replay(record):
    """The command that measures a record again, where its file is."""
    if record["schema"] == "finding/1":
        return shlex.join([record["data"]["experiment"], "--out", record["file"], "--replay", record["id"]])
    return shlex.join([record["experiment"], "--measurements", record["file"], "--replay", record["id"]])


def varying(cases, without=()):
    """Axes with more than one value in these cases."""
    values = collections.defaultdict(set)
    for case in cases:
        for axis, value in case.items():
            values[axis].add(value)
    return [axis for axis in values if len(values[axis]) > 1 and axis not in without]


def label(case, axes):
    return " ".join(f"{axis}={case[axis]}" for axis in axes if axis in case)


def groups(measurements, without):
    """Timed measurements by experiment, device and all axes but some."""
    found = collections.defaultdict(list)
    for record in measurements:
        if rec.rate(record):
            found[record["experiment"], record["device"], rec.case_key(record["case"], without)].append(record)
    return found


def interval(values):
    """Error bars for plotly from (value, lo, hi) triples."""
    return {"type": "data", "symmetric": False, "array": [hi - value for value, _, hi in values],
            "arrayminus": [value - lo for value, lo, _ in values], "thickness": 1}


class Page:
    """Figures in sections, each figure with the records behind it."""

    def __init__(self):
        self.figures = []

    def add(self, section, title, note, figure, used):
        figure.update_layout(template="plotly_white", margin={"l": 60, "r": 20, "t": 20, "b": 90}, font={"size": 12},
                             colorway=PALETTE, hovermode="closest",
                             legend={"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0})
        if not figure.layout.height:
            figure.update_layout(height=380 if section == "Tiles" else 460)
        figure.update_xaxes(automargin=True)
        figure.update_yaxes(automargin=True)
        self.figures.append({"section": section, "title": title, "note": note, "figure": figure,
                             "records": list({record["id"]: record for record in used}.values())})


def tile_maps(page, measurements):
    found = collections.defaultdict(list)
    for record in measurements:
        if all(record["case"].get(axis) for axis in TILE):
            key = record["experiment"], record["device"], rec.case_key(record["case"], TILE)
            found[key].append(record)
    maps = {key: cells for key, cells in found.items()
            if all(len({cell["case"][axis] for cell in cells}) > 1 for axis in TILE)
            and sum(rec.rate(cell) is not None for cell in cells) > 3}
    for (experiment, device, _), cells in maps.items():
        rows, columns = (sorted({cell["case"][axis] for cell in cells}) for axis in TILE)
        place = {(cell["case"]["block_r"], cell["case"]["block_c"]): cell for cell in cells}
        best = max(rec.rate(cell)[0] for cell in cells if rec.rate(cell))

        def cell_text(r, c):
            cell = place.get((r, c))
            if not cell:
                return ""
            value = rec.rate(cell)
            return f"{100 * value[0] / best:.0f} %" if value else "\u2013"  # the reason is in the hover text

        def hover(r, c):
            cell = place.get((r, c))
            if not cell:
                return "not measured"
            value = rec.rate(cell)
            if not value:
                return text(f"{r}x{c}: {cell['status']}: {cell['reason']}")
            return f"{r}x{c}: {value[0]:.4g} TFLOPS [{value[1]:.4g}, {value[2]:.4g}]"

        figure = go.Figure(go.Heatmap(
            x=[str(c) for c in columns], y=[str(r) for r in rows], colorscale="Viridis",
            z=[[(rec.rate(place[r, c]) or [None])[0] if (r, c) in place else None for c in columns] for r in rows],
            text=[[cell_text(r, c) for c in columns] for r in rows], texttemplate="%{text}",
            hovertext=[[hover(r, c) for c in columns] for r in rows], hoverinfo="text",
            customdata=[[place[r, c]["id"] if (r, c) in place else "" for c in columns] for r in rows],
            colorbar={"title": "TFLOPS"}))
        figure.update_xaxes(title="block_c (Bc)", type="category")
        figure.update_yaxes(title="block_r (Br)", type="category")
        shape = {axis: value for axis, value in cells[0]["case"].items() if axis not in TILE}
        page.add("Tiles", f"{device}: head_dim {shape.get('head_dim')}, {shape.get('dtype')}, causal {shape.get('causal')}",
                 f"{experiment}: share of the best tile's rate. {label(shape, shape)}", figure, cells)


def length_axis(figure, title, used):
    lengths = sorted({cell["case"]["q_len"] for cell in used})
    # Ticks at powers of two, where there are some; neighbours would overlap.
    ticks = [n for n in lengths if n & (n - 1) == 0] or lengths
    figure.update_xaxes(title=title, type="log", tickvals=ticks, ticktext=[str(n) for n in ticks])


def best_of(cells):
    return max(cells, key=lambda cell: rec.rate(cell)[0])


def arithmetic_ceiling(ceilings, dtype):
    """TFLOPS, as Ceilings::matrix_tflops has it: three products of tf32 are as exact as one of f32."""
    rate = ceilings.get(f"{dtype}_tflops") or 0
    return max(rate, (ceilings.get("tf32_tflops") or 0) / 3) if dtype == "f32" else rate


def rates_over_length(page, measurements, environments):
    lines = collections.defaultdict(dict)
    for (experiment, device, key), cells in groups(measurements, (*LENGTH, *TILE)).items():
        lengths = collections.defaultdict(list)
        for cell in cells:
            if cell["case"].get("q_len") == cell["case"].get("kv_len"):
                lengths[cell["case"].get("q_len")].append(cell)
        if len(lengths) > 2:
            lines[experiment, device][key] = [best_of(lengths[n]) for n in sorted(lengths)]
    for (experiment, device), traces in lines.items():
        axes = varying([cells[0]["case"] for cells in traces.values()], (*LENGTH, *TILE))
        figure, used = go.Figure(), []
        for cells in traces.values():
            values = [rec.rate(cell) for cell in cells]
            figure.add_scatter(
                x=[cell["case"]["q_len"] for cell in cells], y=[value[0] for value in values], mode="lines+markers",
                name=short(label(cells[0]["case"], axes) or experiment), error_y=interval(values),
                customdata=[cell["id"] for cell in cells],
                hovertext=[text(f"{value[0]:.4g} TFLOPS [{value[1]:.4g}, {value[2]:.4g}] "
                                f"tile {cell['case'].get('block_r')}x{cell['case'].get('block_c')}")
                           for cell, value in zip(cells, values)])
            used += cells
        ceilings = environments.get(device, {}).get("ceilings", {})
        for dtype in dict.fromkeys(cell["dtype"] for cell in used):
            if top := arithmetic_ceiling(ceilings, dtype):
                figure.add_hline(y=top, line_dash="dash", line_color="#888", annotation_text=f"{dtype} ceiling")
        length_axis(figure, "q_len = kv_len", used)
        figure.update_yaxes(title="TFLOPS", rangemode="tozero")
        page.add("Rate against length", f"{device}: {experiment}",
                 "The best tile of each length; bars are 95 % intervals, dashed lines ceilings measured in the same run.",
                 figure, used)


def rooflines(page, measurements, environments):
    shapes = collections.defaultdict(list)
    for (experiment, device, _), cells in groups(measurements, TILE).items():
        cell = best_of(cells)
        if cell["work"]["bytes"]:
            shapes[device].append(cell)
    for device, cells in shapes.items():
        ceilings = environments.get(device, {}).get("ceilings")
        if not ceilings or not ceilings.get("copy_gbps"):
            continue
        intensity = {cell["id"]: cell["work"]["flops"] / cell["work"]["bytes"] for cell in cells}
        figure = go.Figure()
        low, high = min(intensity.values()) / 2, max(intensity.values()) * 2
        for dtype in dict.fromkeys(cell["dtype"] for cell in cells):
            top = arithmetic_ceiling(ceilings, dtype)
            if not top:
                continue
            ridge = top * 1e3 / ceilings["copy_gbps"]
            xs = sorted({min(low, ridge / 4), ridge, max(high, ridge * 4)})
            figure.add_scatter(x=xs, y=[min(top, x * ceilings["copy_gbps"] / 1e3) for x in xs], mode="lines",
                               name=f"roof {dtype}", line={"dash": "dash"}, hoverinfo="name")
        for kind in dict.fromkeys((cell["experiment"], cell["case"].get("variant", ""), cell["dtype"]) for cell in cells):
            own = [cell for cell in cells
                   if (cell["experiment"], cell["case"].get("variant", ""), cell["dtype"]) == kind]
            figure.add_scatter(x=[intensity[cell["id"]] for cell in own], y=[rec.rate(cell)[0] for cell in own],
                               mode="markers", name=short(" ".join(kind)), customdata=[cell["id"] for cell in own],
                               hovertext=[text(label(cell["case"], cell["case"])) for cell in own])
        figure.update_xaxes(title="operations per byte", type="log")
        figure.update_yaxes(title="TFLOPS", type="log")
        page.add("Roofline", device, "Bytes count each input and output once; the best tile of each shape.", figure, cells)


def ladders(page, measurements):
    found = collections.defaultdict(list)
    for (experiment, device, _), cells in groups(measurements, ("variant", *TILE)).items():
        best = {}
        for cell in cells:
            variant = cell["case"].get("variant")
            if variant and (variant not in best or rec.rate(cell)[0] > rec.rate(best[variant])[0]):
                best[variant] = cell
        if len(best) > 1:
            found[experiment, device].append(best)
    for (experiment, device), shapes in found.items():
        axes = varying([next(iter(best.values()))["case"] for best in shapes], ("variant", *TILE))
        figure, used = go.Figure(), []
        for best in shapes:
            cells = sorted(best.values(), key=lambda cell: rec.rate(cell)[0])
            values = [rec.rate(cell) for cell in cells]
            figure.add_bar(x=[short(cell["case"]["variant"]) for cell in cells], y=[value[0] for value in values],
                           error_y=interval(values), name=short(label(cells[0]["case"], axes) or experiment),
                           customdata=[cell["id"] for cell in cells])
            used += cells
        figure.update_yaxes(title="TFLOPS", type="log")
        page.add("Ladders", f"{device}: {experiment}", "Variants of one shape, each with its best tile.", figure, used)


def crossovers(page, measurements):
    found = collections.defaultdict(dict)
    for (experiment, device, key), cells in groups(measurements, ("variant", *LENGTH, *TILE)).items():
        variants = collections.defaultdict(lambda: collections.defaultdict(list))
        for cell in cells:
            if cell["case"].get("variant") and cell["case"].get("q_len"):
                variants[cell["case"]["variant"]][cell["case"]["q_len"], cell["case"].get("batch")].append(cell)
        lengths = [set(of) for of in variants.values() if len(of) > 1]
        if len(lengths) > 1 and len(set.intersection(*lengths)) > 1:
            found[experiment, device][key] = variants
    for (experiment, device), shapes in found.items():
        for variants in shapes.values():
            figure, used = go.Figure(), []
            for variant, lengths in variants.items():
                cells = [best_of(lengths[n]) for n in sorted(lengths)]
                times = [rec.time_of(cell) for cell in cells]
                figure.add_scatter(
                    x=[cell["case"]["q_len"] for cell in cells], y=[1e6 * time["median_s"] for time in times],
                    error_y=interval([tuple(1e6 * time[key] for key in ("median_s", "ci_lo_s", "ci_hi_s"))
                                      for time in times]),
                    mode="lines+markers", name=short(variant), customdata=[cell["id"] for cell in cells])
                used += cells
            shape = {axis: value for axis, value in used[0]["case"].items() if axis not in ("variant", *LENGTH, *TILE)}
            length_axis(figure, "q_len", used)
            figure.update_yaxes(title="microseconds", type="log")
            page.add("Crossovers", f"{device}: {experiment}", f"Time of each variant. {label(shape, shape)}", figure, used)


def comparisons(page, findings):
    found = collections.defaultdict(list)
    for finding in findings:
        if finding["data"]["compare"]:
            found[finding["data"]["experiment"], finding["data"]["device"]].append(finding)
    for (experiment, device), own in found.items():
        own.sort(key=lambda finding: finding["data"]["hypothesis"]["id"], reverse=True)
        names, pairs = [], []
        for finding in own:
            data = finding["data"]
            axes = varying([data["compare"]["baseline"], data["compare"]["contender"]])
            names.append(short(f"{data['hypothesis']['id']} {finding['id'][:4]}"))
            pairs.append(text(f"{label(data['compare']['contender'], axes)} / {label(data['compare']['baseline'], axes)}"))
        figure = go.Figure()
        figure.add_scatter(x=[1] * len(own), y=names, mode="markers", name="A/A floor",
                           marker={"symbol": "line-ns", "size": 1, "color": "#bbb"},
                           error_x={"array": [finding["data"]["compare"]["aa_floor"] for finding in own], "thickness": 9,
                                    "width": 0, "color": "#ddd"}, hoverinfo="skip")
        figure.add_scatter(x=[finding["data"]["hypothesis"]["threshold"] for finding in own], y=names, mode="markers",
                           name="threshold", marker={"symbol": "line-ns-open", "size": 16, "color": "#444"},
                           hovertemplate="threshold %{x}<extra></extra>")
        for state, color in STATE_COLORS.items():
            some = [one for one in zip(names, pairs, own) if one[2]["data"]["verdict"]["state"] == state]
            if some:
                values = [tuple(finding["data"]["compare"][key] for key in ("ratio", "ci_lo", "ci_hi"))
                          for _, _, finding in some]
                figure.add_scatter(x=[value[0] for value in values], y=[name for name, _, _ in some], mode="markers",
                                   name=state, marker={"color": color, "size": 8}, error_x=interval(values),
                                   customdata=[finding["id"] for _, _, finding in some],
                                   hovertext=[f"{judged(finding)}<br>{pair}" for _, pair, finding in some])
        figure.update_xaxes(title="time of contender / time of baseline", type="log")
        figure.update_layout(height=180 + 28 * len(own))
        page.add("Comparisons", f"{device}: {experiment}",
                 "Measured in turn, pair by pair; bars are 95 % intervals, grey the noise of the baseline against itself.",
                 figure, own)


def compile_costs(page, measurements):
    found = collections.defaultdict(dict)
    for record in measurements:
        if record["pipeline"] and record["pipeline"]["compile_s"] > 0:
            found[record["device"]][record["experiment"], record["pipeline"]["key"]] = record
    for device, pipelines in found.items():
        figure = go.Figure()
        for kind in dict.fromkeys((r["experiment"], r["case"].get("variant", "")) for r in pipelines.values()):
            own = [r for r in pipelines.values() if (r["experiment"], r["case"].get("variant", "")) == kind]
            figure.add_box(y=[1e3 * r["pipeline"]["compile_s"] for r in own], name=short(f"{kind[1]} ({len(own)})"),
                           boxpoints="all", pointpos=0, customdata=[r["id"] for r in own],
                           hovertext=[text(r["pipeline"]["key"]) for r in own])
        figure.update_yaxes(title="milliseconds to compile", rangemode="tozero")
        page.add("Compile cost", device, f"{len(pipelines)} pipelines, by variant.", figure, pipelines.values())


def costs_over_variants(page, measurements):
    """How long many variants take to get, by where they come from."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for record in measurements:
        time = rec.time_of(record)
        if record["status"] == "ok" and time and record["case"].get("variants", 0) > 0:
            found[record["experiment"], record["device"]][rec.case_key(record["case"], ("variants",))][
                record["case"]["variants"]] = record
    for (experiment, device), lines in found.items():
        lines = {key: cells for key, cells in lines.items() if len(cells) > 1}
        if not lines:
            continue
        axes = varying([next(iter(cells.values()))["case"] for cells in lines.values()], ("variants",))
        figure, used = go.Figure(), []
        for cells in lines.values():
            own = [cells[count] for count in sorted(cells)]
            values = [tuple(1e3 * rec.time_of(cell)[key] for key in ("median_s", "ci_lo_s", "ci_hi_s")) for cell in own]
            figure.add_scatter(x=[cell["case"]["variants"] for cell in own], y=[value[0] for value in values],
                               mode="lines+markers", name=short(label(own[0]["case"], axes)), error_y=interval(values),
                               customdata=[cell["id"] for cell in own])
            used += own
        figure.update_xaxes(title="variants", type="log")
        figure.update_yaxes(title="milliseconds for all of them", type="log")
        page.add("Cost against variants", f"{device}: {experiment}", "Bars are 95 % intervals.", figure, used)


def overheads_over_work(page, measurements):
    """What calling a function costs, by how much it does."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for record in measurements:
        if record["status"] == "ok" and record["case"].get("function") == "chain" and rec.time_of(record):
            shape = rec.case_key(record["case"], ("form", "grain", "work"))
            found[record["experiment"], record["device"], shape][record["case"]["form"], record["case"]["grain"]][
                record["case"]["work"]] = record
    for (experiment, device, shape), lines in found.items():
        baseline = lines.pop(("monolithic", "element"), {})
        figure, used = go.Figure(), []
        for (form, grain), cells in lines.items():
            own = [cells[work] for work in sorted(cells) if work in baseline]
            times = [(rec.time_of(cell), rec.time_of(baseline[cell["case"]["work"]])) for cell in own]
            values = [(a["median_s"] / b["median_s"], a["ci_lo_s"] / b["ci_hi_s"], a["ci_hi_s"] / b["ci_lo_s"])
                      for a, b in times]
            figure.add_scatter(x=[cell["case"]["work"] for cell in own], y=[value[0] for value in values],
                               mode="lines+markers", name=f"{form} by {grain}", error_y=interval(values),
                               customdata=[cell["id"] for cell in own])
            used += own
        if not used:
            continue
        figure.add_hline(y=1.01, line_dash="dash", line_color="#888", annotation_text="1 %")
        figure.update_xaxes(title="multiply-adds of the function", type="log")
        figure.update_yaxes(title="time / time with the text in place")
        page.add("Overhead against work", f"{device}: {experiment}",
                 f"{text(shape)}. Both intervals at their worst; comparisons above are tighter.", figure, used)


def side_by_side(page, findings):
    devices = list(dict.fromkeys(finding["data"]["device"] for finding in findings))
    for experiment in dict.fromkeys(finding["data"]["experiment"] for finding in findings):
        own = [finding for finding in findings
               if finding["data"]["experiment"] == experiment and finding["data"]["hypothesis"]["threshold"] > 0
               and finding["data"]["estimate"]["value"] > 0]
        figure = go.Figure()
        for device in devices:
            some = [finding for finding in own if finding["data"]["device"] == device]
            if some:
                figure.add_scatter(
                    x=[f["data"]["estimate"]["value"] / f["data"]["hypothesis"]["threshold"] for f in some],
                    y=[short(f"{f['data']['hypothesis']['id']} {f['data']['hypothesis']['op']} "
                            f"{f['data']['hypothesis']['threshold']:g}") for f in some],
                    mode="markers", name=short(device), customdata=[f["id"] for f in some],
                    marker={"symbol": [{"supported": "circle", "refuted": "x"}.get(f["data"]["verdict"]["state"],
                                                                                   "circle-open") for f in some]},
                    hovertext=[judged(f) for f in some])
        if not own:
            continue
        figure.add_vline(x=1, line_color="#444")
        figure.update_xaxes(title="figure / threshold", type="log")
        figure.update_layout(scattermode="group", height=180 + 40 * len({f["data"]["hypothesis"]["id"] for f in own}))
        page.add("Devices side by side", experiment,
                 "Every claim's figure over its threshold; a dot where the claim held, a cross where it was refuted.",
                 figure, own)


def device_table(findings, environments):
    rows = []
    for device, env in environments.items():
        info, ceilings, git = env.get("device") or {}, env.get("ceilings") or {}, env.get("git") or {}
        runs = [finding["data"]["run"]["ts"] for finding in findings if finding["data"]["device"] == device]
        rows.append([device, info.get("arch", ""), info.get("toolchain", ""), *(
            f"{ceilings[key]:.4g}" if ceilings.get(key) else "" for key in
            ("copy_gbps", "f32_tflops", "f16_tflops", "bf16_tflops", "tf32_tflops")),
            f"{info.get('threadgroup_memory_bytes', 0) >> 10} KiB", max(runs, default=""),
            git.get("commit", "")[:12] + (" (changed)" if git.get("dirty") else "")])
    return rows


def table_html(name, heads, rows):
    """Rows are (id, cells); a head with '#' sorts by number, the cells below one with '+' may take several lines."""
    head = "".join(f"<th tabindex=0 data-number={int(h[0] == '#')}>{html.escape(h.lstrip('#+'))}</th>" for h in heads)
    body = []
    for key, cells in rows:
        row = f"<tr id=r-{key}>" if key else "<tr>"
        for h, value in zip(heads, map(str, cells)):
            kind = value if value in STATE_COLORS else "wide" if h[0] == "+" else ""
            row += f"<td{f' class={kind}' if kind else ''}>{html.escape(value)}</td>"
        body.append(row + "</tr>")
    return (f'<div class=tools><input type=search data-table={name} placeholder="filter: all words" aria-label="filter">'
            f"<span class=count data-count={name}></span></div>"
            f"<div class=scroll><table id={name}><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>")


def finding_rows(findings):
    for finding in findings:
        data, estimate = finding["data"], finding["data"]["estimate"]
        yield finding["id"], [
            data["verdict"]["state"], data["hypothesis"]["id"], data["device"], finding["title"],
            f"{estimate['value']:.4g}", f"{estimate['ci_lo']:.4g} to {estimate['ci_hi']:.4g}",
            f"{data['hypothesis']['op']} {data['hypothesis']['threshold']:g}", f"{finding['confidence']:g}",
            data["subject"], " ".join(finding["tags"]), data["run"]["ts"], finding["id"], replay(finding)]


def measurement_rows(measurements):
    for record in measurements:
        time, value = rec.time_of(record), rec.rate(record)
        share = (record["rate"] or {}).get("pct_matrix_ceiling")
        yield record["id"], [
            record["experiment"], record["device"], rec.case_key(record["case"]),
            record["status"] + (f": {record['reason']}" if record["reason"] else ""),
            f"{1e6 * time['median_s']:.2f}" if time else "",
            f"{50e2 * (time['ci_hi_s'] - time['ci_lo_s']) / time['median_s']:.1f}" if time else "",
            f"{value[0]:.4g}" if value else "", f"{share:.1f}" if share is not None else "",
            f"{record['check']['max_abs']:.1e}" if record["check"] else "",
            f"{1e3 * record['pipeline']['compile_s']:.0f}" if record["pipeline"] else "", record["id"], replay(record)]


STYLE = """
:root{color-scheme:light}body{font:15px/1.5 system-ui,sans-serif;margin:0;color:#1f2328;background:#fff}
header,main{max-width:1180px;margin:auto;padding:0 16px}h1{font-size:26px}h2{margin-top:40px;border-bottom:1px solid #d0d7de}
nav{display:flex;flex-wrap:wrap;gap:6px 14px}a{color:#0550ae}.grid{display:grid;gap:20px;
grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr))}figure{margin:0;border:1px solid #d0d7de;
border-radius:8px;padding:10px;min-width:0}figure.wide{grid-column:1/-1}figcaption b{display:block}
figcaption{font-size:13px;color:#59636e}figcaption b{color:#1f2328;font-size:15px}.plot{width:100%;min-height:380px}
details{font-size:13px}details li{overflow-wrap:anywhere}code{font-size:12px}.scroll{overflow:auto;max-height:75vh;border:1px solid #d0d7de;
border-radius:8px}table{border-collapse:collapse;font-size:13px;width:100%}th,td{padding:4px 8px;text-align:left;
border-bottom:1px solid #eaeef2;vertical-align:top}td{white-space:nowrap}td.wide{white-space:normal;min-width:280px}th{position:sticky;top:0;background:#f6f8fa;cursor:pointer;
white-space:nowrap}tr.hit{background:#fff8c5}.supported{color:#1a7f37}.refuted{color:#cf222e}.inconclusive{color:#9a6700}
.tools{display:flex;gap:12px;align-items:center;margin:10px 0}input{font:inherit;padding:5px 9px;width:min(100%,420px);
border:1px solid #8c959f;border-radius:6px}.count{color:#59636e;white-space:nowrap}
"""

SCRIPT = r"""
const errors = [];
window.addEventListener('error', e => { errors.push(e.message); document.body.dataset.errors = errors.join(' | '); });
function show(id) {
  const row = document.getElementById('r-' + id);
  if (!row) return;
  for (const hit of document.querySelectorAll('tr.hit')) hit.classList.remove('hit');
  if (row.hidden) { const box = document.querySelector(`input[data-table=${row.closest('table').id}]`); box.value = ''; filter(box); }
  row.classList.add('hit');
  row.scrollIntoView({block: 'center'});
}
function filter(box) {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0, all = 0;
  for (const row of document.querySelectorAll(`#${box.dataset.table} tbody tr`)) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    shown += !row.hidden; ++all;
  }
  document.querySelector(`[data-count=${box.dataset.table}]`).textContent = `${shown} of ${all}`;
}
function sort(head) {
  const table = head.closest('table'), column = [...head.parentNode.children].indexOf(head);
  const up = head.dataset.up !== '1', number = head.dataset.number === '1';
  const key = row => { const t = row.children[column].textContent; return number ? (t === '' ? -Infinity : parseFloat(t)) : t; };
  const rows = [...table.tBodies[0].rows].sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y) * (up ? 1 : -1); });
  for (const other of head.parentNode.children) { delete other.dataset.up; other.removeAttribute('aria-sort'); }
  head.dataset.up = up ? '1' : '0';
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  table.tBodies[0].append(...rows);
}
for (const box of document.querySelectorAll('input[data-table]')) { box.addEventListener('input', () => filter(box)); filter(box); }
for (const head of document.querySelectorAll('th')) {
  head.addEventListener('click', () => sort(head));
  head.addEventListener('keydown', e => { if (e.key === 'Enter') sort(head); });
}
// The address may carry what to show: #findings=bf16+d128&sort=findings.5&r-ID
function follow() {
  for (const part of decodeURIComponent(location.hash.slice(1).replaceAll('+', ' ')).split('&')) {
    const [name, value] = part.split('=');
    const box = document.querySelector(`input[data-table="${CSS.escape(name)}"]`);
    if (box && value !== undefined) { box.value = value; filter(box); }
    if (name === 'sort' && value) { const [table, column] = value.split('.'); sort(document.getElementById(table).tHead.rows[0].children[+column]); }
    if (name.startsWith('r-')) show(name.slice(2));
  }
}
window.addEventListener('hashchange', follow);
follow();
(async () => {
  for (const [i, figure] of FIGURES.entries()) {
    const place = document.getElementById('f' + i);
    await Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displaylogo: false});
    place.on('plotly_click', event => {
      const id = [].concat(event.points[0].customdata ?? '')[0];
      if (id) { history.replaceState(null, '', '#r-' + id); show(id); }
    });
    await new Promise(done => setTimeout(done));
  }
  document.body.dataset.drawn = document.querySelectorAll('.plot .main-svg').length ? FIGURES.length : 0;
})().catch(e => { errors.push(String(e)); document.body.dataset.errors = errors.join(' | '); });
"""


def page_html(page, findings, measurements, environments, sources, problems):
    sections = list(dict.fromkeys(figure["section"] for figure in page.figures))
    anchors = {section: "s" + str(i) for i, section in enumerate(sections)}
    parts = ["<!doctype html><html lang=en><head><meta charset=utf-8>"
             '<meta name=viewport content="width=device-width,initial-scale=1"><title>attention-proto report</title>'
             f"<style>{STYLE}</style></head><body><header><h1>attention-proto report</h1>"
             f"<p>{len(findings)} findings and {len(measurements)} measurements of {len(environments)} devices, from "
             f"{html.escape(', '.join(sources))}. A click on a point shows its record and the command that measures it "
             "again.</p><nav><a href=#devices-section>Devices</a><a href=#findings-section>Hypotheses and verdicts</a>"]
    parts += [f"<a href=#{anchors[section]}>{html.escape(section)}</a>" for section in sections]
    parts.append("<a href=#measurements-section>Measurements</a></nav></header><main>")
    if problems:
        parts.append("<p class=refuted>Left out: " + html.escape("; ".join(problems[:20])) + "</p>")
    parts.append("<h2 id=devices-section>Devices and ceilings</h2>")
    parts.append(table_html("devices", ["device", "arch", "toolchain", "#copy GB/s", "#f32 TFLOPS", "#f16 TFLOPS",
                                        "#bf16 TFLOPS", "#tf32 TFLOPS", "#threadgroup memory", "last run", "commit"],
                            [(None, row) for row in device_table(findings, environments)]))
    parts.append("<h2 id=findings-section>Hypotheses and verdicts</h2>")
    parts.append(table_html("findings", ["verdict", "hypothesis", "device", "+finding", "#figure", "95 % interval",
                                         "holds if", "#confidence", "+subject", "tags", "when", "id", "+replay"],
                            finding_rows(findings)))
    for section in sections:
        parts.append(f"<h2 id={anchors[section]}>{html.escape(section)}</h2><div class=grid>")
        for i, figure in enumerate(page.figures):
            if figure["section"] != section:
                continue
            links = "".join(f'<li><a href="#r-{r["id"]}">{r["id"]}</a> <code>{html.escape(replay(r))}</code></li>'
                            for r in figure["records"])
            wide = "" if section == "Tiles" else " class=wide"
            parts.append(f"<figure{wide}><figcaption><b>{html.escape(figure['title'])}</b>{html.escape(figure['note'])}"
                         f"</figcaption><div class=plot id=f{i}></div><details><summary>{len(figure['records'])} records"
                         f"</summary><ul>{links}</ul></details></figure>")
        parts.append("</div>")
    parts.append("<h2 id=measurements-section>Measurements</h2>")
    parts.append(table_html("measurements", ["experiment", "device", "+case", "status", "#median us", "#CI %", "#TFLOPS",
                                             "#% of ceiling", "#max abs error", "#compile ms", "id", "+replay"],
                            measurement_rows(measurements)))
    # Within a script element "<" would be markup, whatever the quotes around it.
    figures = "[" + ",".join(figure["figure"].to_json() for figure in page.figures) + "]"
    figures = figures.replace("<", "\\u003c").replace(">", "\\u003e")
    parts.append(f"</main><script>{plotly.offline.get_plotlyjs()}</script><script>const FIGURES = {figures};{SCRIPT}</script>"
                 "</body></html>\n")
    return "".join(parts)


def build(findings, measurements):
    environments = rec.environments(findings)
    page = Page()
    side_by_side(page, findings)
    comparisons(page, findings)
    tile_maps(page, measurements)
    rates_over_length(page, measurements, environments)
    rooflines(page, measurements, environments)
    ladders(page, measurements)
    crossovers(page, measurements)
    overheads_over_work(page, measurements)
    compile_costs(page, measurements)
    costs_over_variants(page, measurements)
    return page, environments


def main():
    parser = argparse.ArgumentParser(prog="scripts/report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Exit status: 0 done; 1 lines were no records; 2 bad input.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="findings and measurements, in any order")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="default report.html")
    options = parser.parse_args()
    here = [pathlib.Path(name) for name in ("findings.jsonl", "measurements.jsonl")]
    files = [pathlib.Path(name) for name in options.files] or [p for p in here if p.exists()] or rec.recorded()
    try:
        findings, measurements, problems = rec.load(files)
    except OSError as error:
        print(f"report: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if not findings and not measurements:
        print(f"report: {', '.join(map(str, files))}: no records; name files of an experiment", file=sys.stderr)
        return 2
    findings, measurements = rec.latest_findings(findings), rec.latest_measurements(measurements)
    page, environments = build(findings, measurements)
    sources = [str(path.relative_to(rec.ROOT)) if path.is_relative_to(rec.ROOT) else path.name for path in files]
    try:
        pathlib.Path(options.out).write_text(page_html(page, findings, measurements, environments, sources, problems),
                                             encoding="utf-8")
    except OSError as error:
        print(f"report: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"report: {problem}", file=sys.stderr)
    print(f"{options.out}: {len(page.figures)} figures, {len(findings)} findings, {len(measurements)} measurements")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
