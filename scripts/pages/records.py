"""Functions that read records, for the programs that make pages from records."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDED = "findings/recorded/*/*.jsonl"
PUBLISHED = "findings/published/*.json"
STATES = ("supported", "refuted", "inconclusive")


# Modifiers of attention (proto7_variants), each with the value that turns it off.
MODIFIERS = {"alibi": 0, "soft_cap": 0, "bias": "none", "sinks": 0, "window_left": -1, "window_right": -1, "prefix": 0,
             "documents": 0, "lengths": 0, "global_tokens": 0, "block_sparse": 0, "window_by": "range", "lists": 1,
             "score_by": "constant", "rope": "none", "score_function": "none", "mask_function": "none"}


def modifiers_on(case):
    return {axis: case[axis] for axis, off in MODIFIERS.items() if case.get(axis, off) != off}


def load(paths):
    """Findings, measurements, and a message for each line that is no record, in the order of the files. A record that
    occurs twice counts once."""
    findings, measurements, problems = {}, {}, []
    kinds = {"finding/1": findings, "measurement/1": measurements}
    for path in map(pathlib.Path, paths):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    schema = record["schema"]
                    if schema != "note/1":
                        record["file"] = path.name
                        kinds[schema][record["id"]] = record
                except (ValueError, KeyError, TypeError):
                    problems.append(f"{path} line {number}: no record")
    return list(findings.values()), list(measurements.values()), problems


def recorded():
    """The files of records that the project's own runs wrote."""
    return sorted(ROOT.glob(RECORDED))


def published():
    """The studies that others have published. Each has device, setting, citation, and numbered claims."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob(PUBLISHED))]


def latest_findings(findings):
    """The last finding of each claim, in the order in which claims were first made."""
    claims = {}
    for finding in findings:
        claims[finding["claim_key"]] = finding
    return list(claims.values())


def latest_measurements(measurements):
    """The last measurement of each configuration on each device."""
    latest = {}
    for record in measurements:
        latest[record["experiment"], record["device"], case_key(record["case"])] = record
    return list(latest.values())


def case_key(case, without=()):
    return " ".join(f"{axis}={value}" for axis, value in sorted(case.items()) if axis not in without)


def time_of(record, scopes=("device_hot", "device_cold", "host")):
    """The time in the first of these scopes that was timed; None if no scope was timed."""
    for scope in scopes:
        for time in record["time"]:
            if time["scope"] == scope:
                return time
    return None


def scopes_of(record):
    """Scopes; the first of them that was timed gives the case's time. Cold caches come first if memory limits the case."""
    hot, cold = "device_hot", "device_cold"
    memory = (record["work"] or {}).get("bound") == "memory"
    return (cold, hot, "host") if memory else (hot, cold, "host")


def rate(record):
    """TFLOPS by device time, with the interval: (value, lo, hi); None without such a time or without work."""
    time, work = time_of(record, ("device_hot", "device_cold")), record["work"]
    if record["status"] != "ok" or not time or not work or not work["flops"]:
        return None
    return tuple(work["flops"] / time[key] / 1e12 for key in ("median_s", "ci_hi_s", "ci_lo_s"))


def environments(findings):
    """By device, the environment in its last run. Findings that compare two devices belong to no device."""
    return {finding["data"]["device"]: finding["data"]["env"] for finding in findings
            if finding["data"]["env"].get("device")}


def published_value(claim):
    return f"{claim['value']} {claim['unit']}".strip()


def by_claim(findings):
    """Findings by (experiment, hypothesis), in the order of their first findings."""
    claims = {}
    for finding in findings:
        claims.setdefault((finding["data"]["experiment"], finding["data"]["hypothesis"]["id"]), []).append(finding)
    return claims


def states(findings):
    """How often each verdict occurs: "supported 3, refuted 1", or the verdict alone if all findings have it."""
    found = [finding["data"]["verdict"]["state"] for finding in findings]
    count = {state: found.count(state) for state in STATES if state in found}
    return next(iter(count)) if len(count) == 1 else ", ".join(f"{state} {n}" for state, n in count.items())


def digits(value):
    """A number with three digits; from 1000 on, with all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def span(values):
    """The lowest and the highest value: "1.31 to 2.1"."""
    first, last = digits(min(values)), digits(max(values))
    return first if first == last else f"{first} to {last}"


def figures(findings):
    return span([finding["data"]["estimate"]["value"] for finding in findings])


def expected_wrong(findings):
    """The number of wrong verdicts to expect among decided findings: the sum of 1 - confidence; an exact finding has no
    confidence and no doubt."""
    return sum(1 - finding["confidence"] for finding in findings
               if finding["data"]["verdict"]["state"] != "inconclusive" and finding["confidence"] is not None)


def holds_if(finding):
    return f"{finding['data']['hypothesis']['op']} {finding['data']['hypothesis']['threshold']:g}"


def differing(findings):
    """The axes in which the subjects of findings differ."""
    values = {}
    for finding in findings:
        for word in finding["data"]["subject"].split():
            axis, _, value = word.partition("=")
            values.setdefault(axis, set()).add(value)
    return [axis for axis in values if len(values[axis]) > 1]


def subject(finding, axes):
    """The part of a finding's subject that these axes give."""
    words = dict(word.split("=", 1) for word in finding["data"]["subject"].split() if "=" in word)
    return " ".join(f"{axis}={words[axis]}" for axis in axes if axis in words)


def table(heads, rows):
    """The lines of a table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
