"""Functions that read records, for the programs that make pages from records."""

import collections
import errno
import fractions
import gc
import gzip
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))  # the programs import command_line and peer_suites from there
RECORDED, POOLED, CLAIMS = "findings/recorded", "findings/pooled.jsonl", "findings/claims.jsonl"
COMPRESSED = ".jsonl.gz"  # the end of the name of a recorded run
GZIP = b"\x1f\x8b"
# Runs that were measured again in place of an earlier run, each with the earlier run's time. in_order() takes this
# time, so that pages keep their order.
IN_PLACE_OF = {"447603ce7887843f": "2026-11-23T01:38:19Z"}
PUBLISHED = "findings/published/*.json"
STATES = ("supported", "refuted", "inconclusive")
MOST_SPREAD = 10  # an interval from less than a tenth of its figure to more than ten times its figure says nothing
BUDGET_SPENT = "budget spent"  # the reason in the record of a case that a run's budget did not reach


def modifiers():
    """Returns the axes of the modifiers of attention (proto7_variants), each with the value that turns it off, from the lists
    of which modifier_axes() consists."""
    rows = (ROOT / "common/attention/options.def").read_text(encoding="utf-8")
    others = (ROOT / "common/cases/modifier_axes.cpp").read_text(encoding="utf-8").split("& modifier_axes() {")[1]
    axes = dict(re.findall(r"^ATTN_(?:SCORE_|MASK_)?MODIFIER\(\w+, (\w+), (-?\d+)", rows, re.MULTILINE))
    axes |= dict.fromkeys(re.findall(r'^ATTN_SWITCHED_TABLE\((?:\s*"[^"]*")+,\s*\w+,\s*(\w+)', rows, re.MULTILINE), "0")
    axes |= dict(re.findall(r'\{\{"(\w+)",.*?\},\s+(?:int64_t\{|std::string\(")(-?\w+)', others, re.DOTALL))
    return {axis: int(off) if off.lstrip("-").isdigit() else off for axis, off in axes.items()}


MODIFIERS = modifiers()


def modifiers_on(case):
    return {axis: case[axis] for axis, off in MODIFIERS.items() if case.get(axis, off) != off}


def lines_of(path):
    """Returns the lines of a file of records, plain or gzip, as bytes without line ends. Raises OSError, also for damaged
    gzip."""
    data = path.read_bytes()
    if data.startswith(GZIP) or path.suffix == ".gz":
        try:
            if not data.startswith(GZIP):
                raise EOFError("it does not begin as gzip does")
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise OSError(errno.EIO, f"damaged: {error}", str(path)) from None
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def run_of(record):
    """Returns the id, experiment and device of a record's run, and the time of the record."""
    if record["schema"] == "samples/1":
        return record["run"], record["experiment"], "", ""
    if record["schema"] == "run/1":
        return record["run"]["id"], record["experiment"], record["run"]["device"], record["run"]["ts"]
    if record["schema"].startswith("finding/"):
        data = record["data"]
        run = data["run"] if isinstance(data["run"], dict) else {"id": data["run"], "ts": ""}  # join_runs() adds ts
        return run["id"], data["experiment"], data["device"], run["ts"]
    return record["run_id"], record["experiment"], record["device"], record["run"]["ts"]


def join_runs(findings, headers):
    """Gives each finding the fields `run` and `env` of the header (run/1) of its run. `headers` has the headers by the ids
    of their runs."""
    for finding in findings:
        header = headers.get(finding["data"]["run"]) if isinstance(finding["data"]["run"], str) else None
        if header:
            finding["data"]["run"], finding["data"]["env"] = header["run"], header["env"]


def when(path):
    """Returns the time and the device of the first record of a recorded run. Both are "" if the first line is no
    record. A run in IN_PLACE_OF gets the time of the earlier run."""
    try:
        with gzip.open(path) as lines:
            run, _, device, time = run_of(json.loads(lines.readline()))
        return IN_PLACE_OF.get(run, time), device
    except (ValueError, KeyError, TypeError, EOFError, OSError, zlib.error):
        return "", ""  # load() says what is wrong with the file


def in_order(paths):
    """Returns the files, folder by folder, with the folders in the order of their first paths. In a folder, recorded
    runs stand last, in the order of the times of their first records."""
    paths = list(map(pathlib.Path, paths))
    folders = {folder: place for place, folder in reversed(list(enumerate(path.parent for path in paths)))}
    return sorted(paths, key=lambda path: (folders[path.parent],
                                           (*when(path), path.name) if path.name.endswith(COMPRESSED) else ("", "", "")))


def load(paths):
    """Returns the findings, the measurements, and a message for each line that is no record. Reads the files in the
    order of in_order(). A record that occurs twice counts once. A finding whose run has no header is left out; a message
    says so."""
    findings, measurements, headers, problems = {}, {}, {}, []
    kinds = {"finding/2": findings, "measurement/1": measurements, "run/1": headers}
    for path in in_order(paths):
        for number, line in enumerate(lines_of(path), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8", "replace"))
                schema = record["schema"]
                if schema != "note/1":
                    record["file"] = path.name
                    kinds[schema][record["id"]] = record
            except (ValueError, KeyError, TypeError, RecursionError):  # RecursionError: very many nested brackets
                problems.append(f"{path} line {number}: no record")
        gc.freeze()  # keeps Python from searching the records for reference cycles; there are none
    join_runs(findings.values(), {header["run"]["id"]: header for header in headers.values()})
    whole, alone = [], collections.Counter()
    for finding in findings.values():
        run = finding["data"]["run"]
        if isinstance(run, str):  # join_runs() found no header
            alone[finding["file"], run] += 1
        else:
            whole.append(finding)
    problems += [f"{file}: {count} findings of run {run} are left out, because no file has the run's header (run/1)"
                 for (file, run), count in alone.items()]
    return whole, list(measurements.values()), problems


UNSOUND = (KeyError, TypeError, IndexError, AttributeError)  # the errors that a record without a field causes


def unsound(error):
    """Returns the message for an error of UNSOUND that a record caused."""
    return f"a record is not as findings/record.schema.json says ({error!r}); kb check FILE names the record"


def recorded():
    """Returns the files of the project's own runs, in order."""
    return in_order(sorted((ROOT / RECORDED).glob("*/*" + COMPRESSED)))


def kb(*words):
    """Returns the output of the program kb with the arguments `words`."""
    program = os.environ.get("KB", str(ROOT / "build/release/bin/kb"))
    if not pathlib.Path(program).exists():
        sys.exit(f"there is no {program}; scripts/build kb makes it")
    run = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f"kb {words[0]} finds problems in the records")
    return run.stdout


def published():
    """Returns the studies that others have published. Each study has device, setting, citation, and numbered claims."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob(PUBLISHED))]


def latest(records, key):
    """Returns the latest record of each key, by the time in the record; of records with equal times, the last one. The
    order of the runs does not decide: a run may have paused while other runs measured."""
    found = {}
    for record in records:
        known = found.setdefault(key(record), record)
        if run_of(record)[-1] >= run_of(known)[-1]:
            found[key(record)] = record
    return found


def latest_findings(findings):
    """Returns the latest finding of each claim, in the order of the first finding of each claim."""
    def claim(finding):  # not the claim_key, which also has the figure's definition
        data = finding["data"]
        return data["experiment"], data["hypothesis"]["id"], data["device"], data["subject"]

    return list(latest(findings, claim).values())


def with_one_unit(text):
    """Returns the text of a page with "1 unit" in place of "1 units", which records have in the names of devices."""
    return re.sub(r"\b1 units\b", "1 unit", text)


def pooled(findings):
    """Yields the latest finding of each claim. The finding gets title, verdict, estimate, advice and confidence from
    findings/pooled.jsonl, where they follow from all runs of the claim. `advised` says whether an advice may be given;
    an advice that may not be given is empty. `runs` has the ids of the pooled runs. A finding that pooled.jsonl does
    not have gets only `runs`, with its own run."""
    claims = {claim["latest"]: claim for claim in map(json.loads, (ROOT / POOLED).read_text(encoding="utf-8").splitlines())}
    run_ids = {finding["id"]: run_of(finding)[0] for finding in findings}
    for finding in latest_findings(findings):
        claim = claims.get(finding["id"])
        finding = finding | {"runs": {run_ids[each] for each in (claim["findings"] if claim else [finding["id"]])}}
        if claim:
            finding |= {"title": claim["title"], "confidence": claim["confidence"], "advised": claim["advised"]}
            finding["data"] = finding["data"] | {"verdict": claim["verdict"], "estimate": claim["estimate"],
                                                 "advice": claim["advice"] if claim["advised"] else ""}
        yield finding


def latest_measurements(measurements, case=lambda record: (record["experiment"], record["device"], case_key(record["case"]))):
    """Returns the latest measurement of each case. `case` is the key of a case, by default configuration and device.
    Records that say only that a run's budget did not reach the case are left out."""
    return list(latest([record for record in measurements if record["reason"] != BUDGET_SPENT], case).values())


def case_key(case, without=()):
    return " ".join(f"{axis}={value}" for axis, value in sorted(case.items()) if axis not in without)


def time_of(record, scopes=("device_hot", "device_cold", "host")):
    """Returns the time in the first scope of `scopes` that was timed, or None if no scope was timed."""
    for scope in scopes:
        for time in record["time"]:
            if time["scope"] == scope:
                return time
    return None


def scopes_of(record):
    """Returns the scopes for time_of(), the preferred scope first. For a memory-bound case this is the scope with cold
    caches."""
    hot, cold = "device_hot", "device_cold"
    memory = (record["work"] or {}).get("bound") == "memory"
    return (cold, hot, "host") if memory else (hot, cold, "host")


def rate(record, scopes=("device_hot", "device_cold")):
    """Returns the rate in TFLOPS by device time, with its interval: (value, lo, hi). Returns None for a record without
    a device time or without work."""
    time, work = time_of(record, scopes), record["work"]
    if record["status"] != "ok" or not time or not work or not work["flops"]:
        return None
    return tuple(work["flops"] / time[key] / 1e12 for key in ("median_s", "ci_hi_s", "ci_lo_s"))


def environments(findings):
    """Returns for each device the environment in the device's latest finding. A finding that compares two devices
    belongs to no device."""
    own = [finding for finding in findings if finding["data"]["env"].get("device")]
    return {device: finding["data"]["env"] for device, finding in latest(own, lambda each: each["data"]["device"]).items()}


def published_value(claim):
    return f"{claim['value']} {claim['unit']}".strip()


def by_claim(findings):
    """Returns the findings of each claim by (experiment, hypothesis), in the order of the first finding of each
    claim."""
    claims = {}
    for finding in findings:
        claims.setdefault((finding["data"]["experiment"], finding["data"]["hypothesis"]["id"]), []).append(finding)
    return claims


def states(findings):
    """Returns a text that says how often each verdict occurs, such as "supported 3, refuted 1". If all findings have
    the same verdict, the text is the verdict alone."""
    found = [finding["data"]["verdict"]["state"] for finding in findings]
    count = {state: found.count(state) for state in STATES if state in found}
    return next(iter(count)) if len(count) == 1 else ", ".join(f"{state} {n}" for state, n in count.items())


def digits(value):
    """Returns a number as a text with three significant digits. A number from 1000 on is rounded to an integer."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def span(values):
    """Returns the lowest and the highest value as a text, such as "1.31 to 2.1"."""
    first, last = digits(min(values)), digits(max(values))
    return first if first == last else f"{first} to {last}"


def figures(findings):
    return span([finding["data"]["estimate"]["value"] for finding in findings])


def measured_by(finding):
    """Returns a value that findings of an experiment share if they judge the same cases of the same run. measured_by()
    of common/records/finding.h has the same rule."""
    data = finding["data"]
    cases = [json.dumps(case, sort_keys=True) for case in data.get("cases", ())]
    return data["experiment"], run_of(finding)[0], *sorted(set(cases or data["measurements"]))


def doubts(findings):
    """Returns, for each verdict that is decided and not exact, the value 1 - confidence. The values are in lists, by
    measured_by() of the findings. They are fractions: a sum of floats depends on the version of Python, and so would a
    printed sum that lies halfway between two tenths."""
    found = collections.defaultdict(list)
    for finding in findings:
        if finding["data"]["verdict"]["state"] != "inconclusive" and not is_exact(finding):
            found[measured_by(finding)].append(1 - fractions.Fraction(repr(finding["confidence"])))
    return found


def expected_wrong(findings):
    """Returns the expected number of wrong verdicts, where each measurement counts once. A measurement adds the mean
    doubt of the verdicts that judge it."""
    return sum(map(statistics.mean, doubts(findings).values()))


def expected_wrong_text(findings):
    return f"{float(round(expected_wrong(findings), 1)):.1f}"  # a fraction cannot be formatted before Python 3.12


def wrong_text(findings):
    """Returns the line with expected_wrong() for a page."""
    found = doubts(findings)
    if not found:
        return "No verdict is decided."
    return (f"{sum(map(len, found.values()))} verdicts, from {len(found)} measurements, are decided; of these verdicts, "
            f"{expected_wrong_text(findings)} are expected to be wrong in the next run.")


def is_exact(finding):
    """Returns whether the finding has a verdict about an exact figure, such as a count."""
    data = finding["data"]
    return data["estimate"]["scale"] == "exact" and data["verdict"]["state"] != "inconclusive"


def confidence_text(finding):
    return "exact" if is_exact(finding) else f"{finding['confidence']:.2g}"


def next_text(*estimates):
    """Returns the interval in which the next run's figures are expected, which covers the intervals of all estimates.
    Leaves out an interval in logarithms that says nothing about its figure, because it reaches both below the
    MOST_SPREADth part and above MOST_SPREAD times the figure. The text then says for how many estimates it holds, or is
    "unknown"."""
    told = []
    for estimate in estimates:
        low, high = (estimate[f"next_{end}"] for end in ("lo", "hi"))
        value, in_logarithms = estimate["value"], estimate["scale"] == "log"
        if not (in_logarithms and low < value / MOST_SPREAD <= value * MOST_SPREAD < high):
            told.append((low, high))
    if not told:
        return "unknown"
    count = "" if len(told) == len(estimates) else f" for {len(told)} of {len(estimates)}"
    return f"{digits(min(low for low, _ in told))} to {digits(max(high for _, high in told))}{count}"


def holds_if(finding):
    return f"{finding['data']['hypothesis']['op']} {finding['data']['hypothesis']['threshold']:g}"


def differing(findings):
    """Returns the axes in which the subjects of findings differ."""
    values = {}
    for finding in findings:
        for word in finding["data"]["subject"].split():
            axis, _, value = word.partition("=")
            values.setdefault(axis, set()).add(value)
    return [axis for axis in values if len(values[axis]) > 1]


def subject(finding, axes):
    """Returns the part of a finding's subject that has these axes."""
    words = dict(word.split("=", 1) for word in finding["data"]["subject"].split() if "=" in word)
    return " ".join(f"{axis}={words[axis]}" for axis in axes if axis in words)


def table(heads, rows):
    """Returns the lines of a table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
