#!/usr/bin/env python3
"""Compares recorded runs before and after the migration: compare.py BEFORE AFTER, two folders like findings/recorded.

Every measurement must be the same but for its id, the identities of its kernels and their hooks. Every finding must
have the same figures: value, cv, comparison (the noise floor in the new form), values, hypothesis, cases and texts'
templates; a figure may differ in the 13th digit. Prints what was compared; exits 1 at the first difference.
"""

import gzip
import json
import math
import pathlib
import sys


def records(folder):
    for path in sorted(pathlib.Path(folder).glob("*/*.jsonl*")):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield path.name.removesuffix(".gz"), json.loads(line)


def pipelines(record):
    return [p for p in [record.get("pipeline")] + [phase["pipeline"] for phase in record.get("phases", [])] if p]


def plain_measurement(record):
    record = json.loads(json.dumps(record))
    del record["id"]
    for pipeline in pipelines(record):
        del pipeline["source_sha256"]
        pipeline.pop("hooks", None)
    return record


def figures(record):
    data = record["data"]
    compare = json.loads(json.dumps(data["compare"]))
    if compare:
        del compare["aa_floor"]
        compare.pop("clocks", None)
    same = {name: data[name] for name in ("experiment", "device", "hypothesis", "correct", "values", "template")}
    run = data["run"]
    return {**same, "compare": compare, "cases": data.get("cases"), "tags": record["tags"],
            "measurements": len(data["measurements"]), "cv": data["estimate"]["cv"], "run": run if isinstance(run, str) else run["id"]}


def floor(compare):
    return max(abs(math.log(compare["aa_ci_lo"])), abs(math.log(compare["aa_ci_hi"])))


def all_of(folder):
    measured, found = [], {}
    for name, record in records(folder):
        if record["schema"] == "measurement/1":
            measured.append(json.dumps([name, plain_measurement(record)]))
        elif record["schema"].startswith("finding/"):
            compare = record["data"]["compare"]
            if record["schema"] == "finding/2" and compare and "parts" not in compare:
                assert math.isclose(compare["aa_floor"], floor(compare), rel_tol=1e-9), record["id"]
            key = json.dumps([name, figures(record)], sort_keys=True)
            found.setdefault(key, set()).add(record["data"]["estimate"]["value"])
    return measured, found


before, after = all_of(sys.argv[1]), all_of(sys.argv[2])
if before[0] != after[0]:
    sys.exit("measurements differ")
if before[1].keys() != after[1].keys():
    sys.exit(f"findings without a partner: {next(iter(before[1].keys() ^ after[1].keys()))[:600]}")
for key, values in before[1].items():
    pairs = zip(sorted(values), sorted(after[1][key]), strict=True)
    if not all(math.isclose(a, b, rel_tol=1e-12) for a, b in pairs):
        sys.exit(f"other figures: {values} {after[1][key]} {key[:600]}")
print(f"{len(before[0])} measurements and {len(before[1])} findings have the same figures before and after")
