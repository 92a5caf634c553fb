"""Finds the best tiles, forms of linear attention and page sizes in measurements, for findings/tuning/ARCH.json.

pick_option() of common/experiment/answer.cpp has the same rule for the best choice and for choices that are as good.
scripts/tests/picks.json has cases in which pick_option() and this module must find the same choices."""

import collections

import records as rec

TILE = ("block_r", "block_c")
# The axes that make a form of linear attention. A case counts only if it has all values of PLAIN_FORM.
LINEAR = "proto6_linear"
FORM = ("variant", "scan", "chunk")
PLAIN_FORM = {"normalised": 0, "feature": "identity", "layout": "bhsd", "lengths": "equal", "state": 0, "segments": 0}
PAGED, PAGES = "proto3_paged", ("page_size",)  # the experiment with another choice, and its axes; page_size 0: no pages
AS_GOOD = 1.03  # a choice is as good as the fastest choice if its time is at most this multiple of the fastest choice's time


def tile_of(case):
    return f"{case['block_r']}x{case['block_c']}" if all(case.get(axis) for axis in TILE) else ""


def form_of(case):
    return " ".join(str(case[axis]) for axis in FORM if case[axis] != "none")


def tile_groups(measurements):
    """Returns the measurements of tiles that have a rate, by (experiment, dtype, head_dim, causal, length, modifiers),
    then by all axes of the case but the tile's."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in measurements:
        case = record["case"]
        if not rec.rate(record) or "head_dim" not in case or not case.get("q_len") or case["q_len"] != case.get("kv_len"):
            continue
        if case.get("variant", "tuned") == "tuned" and tile_of(case):
            key = (record["experiment"], case.get("dtype"), case["head_dim"], case.get("causal", 0), case["q_len"],
                   tuple(rec.modifiers_on(case).items()))
            found[key][rec.case_key(case, TILE)].append(record)
    return found


def of_one_run(cells, name):
    """Returns the measurements (cells) of one run: the latest run that compared at least half as many choices as the
    largest run. Cells of different runs would also differ in the kernels and in the state of the machine."""
    runs = collections.defaultdict(list)
    for cell in cells:
        runs[cell.get("run_id")].append(cell)
    count = {run: len({name(cell["case"]) for cell in own}) for run, own in runs.items()}
    enough = [run for run in runs if 2 * count[run] >= max(count.values())]
    return runs[max(enough, key=lambda run: max(cell.get("run", {}).get("ts", "") for cell in runs[run]))]


def entry_of(best, cells, axes, name, modifiers, rate=rec.rate):
    """Returns a tuning entry: the best of the cells that were compared, and the names of the cells that are as good."""
    value, lo, hi = rate(best)
    case = best["case"]
    return {"experiment": best["experiment"], "dtype": case["dtype"], "head_dim": case["head_dim"],
            "causal": case.get("causal", 0), "q_len": case["q_len"], "modifiers": modifiers,
            "params": {axis: case[axis] for axis in axes if axis in case}, "tflops": value, "ci_lo": lo, "ci_hi": hi,
            "tiles_compared": len({name(cell["case"]) for cell in cells}),
            "tied": sorted({name(cell["case"]) for cell in cells if rate(cell)[2] >= lo} - {name(case)}),
            "measurement": best["id"], "case": case}


def best_tiles(measurements):
    """Returns a list of tuning entries: the best tile of each length, in the shape for which most tiles were compared.
    A case with modifiers has an entry only if tiles were compared for the case."""
    entries = []
    for (*_, modifiers), shapes in sorted(tile_groups(measurements).items(), key=str):
        cells = max((of_one_run(own, tile_of) for own in shapes.values()),
                    key=lambda own: (len({tile_of(cell["case"]) for cell in own}), rec.rate(own[0])[0]))
        best = max(cells, key=lambda cell: rec.rate(cell)[0])
        entry = entry_of(best, cells, ("variant", *TILE), tile_of, dict(modifiers))
        if not modifiers or entry["tiles_compared"] > 1:
            entries.append(entry | {"pct_matrix_ceiling": (best["rate"] or {}).get("pct_matrix_ceiling"),
                                    "threadgroup_bytes": (best["pipeline"] or {}).get("threadgroup_bytes")})
    return sorted(entries, key=lambda e: (e["experiment"], str(e["dtype"]), e["head_dim"], e["causal"],
                                          list(map(str, e["modifiers"].items())), e["q_len"]))


def rate_of_form(record):
    """Returns the rate in TFLOPS, with its interval. For a memory-bound case this is the rate with cold caches, as in
    the comparisons of forms."""
    return rec.rate(record, rec.scopes_of(record)[:2])


def best_forms(measurements):
    """Returns a list of tuning entries for linear attention: the fastest form of each length and gate. The gate counts
    as a modifier."""
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in measurements:
        case = record["case"]
        if record["experiment"] != LINEAR or case["variant"] not in ("phases", "fused") or not rate_of_form(record):
            continue
        if case["value_dim"] == case["head_dim"] and all(case[axis] == value for axis, value in PLAIN_FORM.items()):
            key = (case["dtype"], case["head_dim"], case["causal"], case["q_len"], case["gate"])
            groups[key][rec.case_key(case, FORM)].append(record)
    entries = []
    for (*_, gate), shapes in sorted(groups.items()):
        cells = max((of_one_run(own, form_of) for own in shapes.values()), key=len)
        best = min(cells, key=lambda cell: rec.time_of(cell, rec.scopes_of(cell))["median_s"])
        entries.append(entry_of(best, cells, FORM, form_of, {} if gate == "none" else {"gate": gate}, rate_of_form)
                       | {"us": 1e6 * rec.time_of(best, rec.scopes_of(best))["median_s"]})
    return entries


def best_choices(measurements):
    """Returns a list of tuning entries. Each case in which three or more page sizes were compared in turn has an entry,
    with the fastest page size and the page sizes that are as good."""
    groups = collections.defaultdict(list)
    for record in measurements:
        if record["experiment"] == PAGED and record["status"] == "ok" and record["case"]["page_size"]:
            if rec.time_of(record, rec.scopes_of(record)):
                groups[rec.case_key(record["case"], PAGES)].append(record)
    entries = []
    for cells in groups.values():
        cells = of_one_run(cells, lambda case: case["page_size"])
        if len(cells) < 3:
            continue
        own = [(rec.time_of(record, rec.scopes_of(record)), record) for record in cells]
        time, best = min(own, key=lambda item: item[0]["median_s"])
        entries.append({"experiment": PAGED, "dtype": best["case"]["dtype"], "head_dim": best["case"]["head_dim"],
                        "case": {axis: value for axis, value in best["case"].items() if axis not in PAGES},
                        "params": {axis: best["case"][axis] for axis in PAGES},
                        "time_s": time["median_s"], "ci_lo_s": time["ci_lo_s"], "ci_hi_s": time["ci_hi_s"], "scope": time["scope"],
                        "choices_compared": len(own),
                        "as_good": sorted(([record["case"][axis] for axis in PAGES] for other, record in own
                                           if record is not best and other["median_s"] <= AS_GOOD * time["median_s"]), key=str),
                        "measurement": best["id"]})
    return entries


def tables(tiles, forms, choices):
    """Returns the tables of the best choices, for pages: (title, note, heads, rows). The arguments are the results of
    best_tiles(), best_forms() and best_choices(). The cell under "take" has the best choice. A row ends with the id of its
    measurement. An entry for which nothing was compared has no row."""
    def shape(entry):
        return f"{entry['dtype']} {entry['head_dim']}"

    def mask(entry):
        modifiers = (f"{axis}={value}" for axis, value in entry["modifiers"].items())
        return " ".join(("causal" if entry["causal"] else "full", *modifiers))

    rows = [(shape(entry), mask(entry), entry["q_len"], tile_of(entry["case"]),
             f"{entry['tflops']:.4g}" + ("" if (share := entry["pct_matrix_ceiling"]) is None else f" ({share:.0f} %)"),
             ", ".join(entry["tied"]) or f"none of {entry['tiles_compared'] - 1}", entry["measurement"])
            for entry in tiles if entry["tiles_compared"] > 1]
    found = [("Best tiles", "The best tile, Br x Bc, of all tiles that took turns in one run. A tile is *as good* if its interval "
              "reaches the interval of the best tile.",
              ("type, head_dim", "mask", "length", "take", "TFLOPS (of ceiling)", "as good"), rows)]
    named = {"dtype", "head_dim", *rec.varying([entry["case"] for entry in choices])}
    rows = [(" ".join(f"{axis}={value}" for axis, value in entry["case"].items() if axis in named), entry["params"]["page_size"],
             rec.digits(1e6 * entry["time_s"]), ", ".join(str(size) for size, in entry["as_good"]) or "none", entry["measurement"])
            for entry in choices]
    found.append(("Best page size", "The fastest page size of all that took turns in one run, and the page sizes within "
                  f"{round(100 * (AS_GOOD - 1))} % of its time. The time is with cold caches for memory-bound cases.",
                  ("where", "take", "us", "as good"), rows))
    rows = [(shape(entry), mask(entry), f"{entry['case']['batch']} x {entry['q_len']} x {entry['case']['heads']}",
             form_of(entry["case"]), rec.digits(entry["us"]), entry["measurement"])
            for entry in forms if entry["tiles_compared"] > 1]
    found.append(("Best form of linear attention", "The fastest form (variant, scan and chunk) of all forms that took turns in one "
                  "run. The time is with cold caches for memory-bound cases.",
                  ("type, head_dim", "mask, gate", "batch x tokens x heads", "take", "us"), rows))
    return [each for each in found if each[3]]


def ranges(row):
    """Divides the entries of one row into ranges of lengths, in order: neighbouring lengths with equal parameters are one
    range. If tiles were compared at any length of the row, lengths that were measured with one tile are left out. If
    several experiments measured a length, the experiment that compared most tiles counts."""
    most = {}
    for entry in [entry for entry in row if entry["tiles_compared"] > 1] or row:
        known = most.setdefault(entry["q_len"], entry)
        if entry["tiles_compared"] > known["tiles_compared"]:
            most[entry["q_len"]] = entry
    found = []
    for _, entry in sorted(most.items()):
        if found and found[-1][-1]["params"] == entry["params"]:
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


def tuning(devices, choices):
    """Returns the measured part of a file of tuning. It has the best parameters by device, dtype, head_dim and modifiers,
    and, by device, the choices other than tiles. An entry holds from its q_len_min to its q_len_max. An entry for which no
    tiles were compared has the default tile, and says so."""
    tree = {"devices": {}, "choices": {device: own for device, own in choices.items() if own}}
    for device, entries in devices.items():
        own = tree["devices"].setdefault(device, {})
        rows = collections.defaultdict(list)
        for entry in entries:
            rows[entry["experiment"] == LINEAR, entry["dtype"], entry["head_dim"], entry["causal"],
                 tuple(entry["modifiers"].items())].append(entry)
        for (_, dtype, head_dim, causal, modifiers), row in rows.items():
            found = ranges(row)
            for i, members in enumerate(found):
                shown = max(members, key=lambda entry: entry["tiles_compared"])  # stands for the range
                last = found[i + 1][0]["q_len"] - 1 if i + 1 < len(found) else None
                own.setdefault(dtype, {}).setdefault(str(head_dim), []).append(
                    {"experiment": shown["experiment"], "causal": causal, "q_len_min": members[0]["q_len"] if i else 1,
                     "q_len_max": last, "measured_at": [entry["q_len"] for entry in members],
                     **({"modifiers": dict(modifiers)} if modifiers else {}),
                     **({"default": True} if shown["tiles_compared"] == 1 else {}),
                     **{key: shown[key] for key in (
                         "params", "tflops", "ci_lo", "ci_hi", "tiles_compared", "tied", "measurement")}})
    return tree
