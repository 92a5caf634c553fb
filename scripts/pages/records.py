"""Functions that read records, for the programs that make pages from records."""

import collections
import errno
import functools
import gc
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))  # the programs import command_line and peer_suites from there
# The build folder, which has kb and the pooled claims.
BUILD = pathlib.Path(os.environ.get("ATTN_BUILD", ROOT / "build/release"))
RECORDED, CLAIMS = "findings/recorded", "findings/claims.jsonl"
# The claims of the recorded runs, and the tables of decisions; scripts/build pooled makes them.
POOLED, DECISIONS = BUILD / "findings/pooled.jsonl", BUILD / "findings/decisions.jsonl"
COMPRESSED, SAMPLES = ".jsonl.gz", ".samples.gz"  # the ends of the names of a recorded run and of its samples
GZIP = b"\x1f\x8b"
PUBLISHED = "findings/published/*.json"
STATES = ("supported", "refuted", "inconclusive")
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
        known = record["env"].get("device") or {}
        device = f"{known['name']}, {known['units']} units" if known.get("name") else record["run"]["device"]
        return record["run"]["id"], record["experiment"], device, record["run"]["ts"]
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
    record."""
    try:
        with gzip.open(path) as lines:
            _, _, device, time = run_of(json.loads(lines.readline()))
        return time, device
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
    """Returns the findings, the measurements (`loaded`: other programs used the machine), and a message for each line that
    is no record. Reads the files in the
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
    loaded = {header["run"]["id"] for header in headers.values() if header.get("session", {}).get("loaded")}
    for measurement in measurements.values():
        measurement["loaded"] = measurement["run_id"] in loaded  # so no page prints its figures
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


def said(error):
    """Returns the message for an error that a file or a record caused."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, UNSOUND):
        return f"a record is not as findings/record.schema.json says ({error!r}); kb check FILE names the record"
    return str(error)


def put(texts, check, program):
    """Writes texts to files, by their paths, or with `check` only names the files that are not up to date. Returns the exit
    status."""
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.name}: not up to date; run {program}", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path], encoding="utf-8")
    return int(check and bool(stale))


def recorded():
    """Returns the files of the project's own runs, in order."""
    return in_order(sorted((ROOT / RECORDED).glob("*/*" + COMPRESSED)))


def devices():
    """Returns the names of each recorded device, by its folder; the latest name comes last."""
    names = collections.defaultdict(dict)
    for path in recorded():
        names[path.parent.name][when(path)[1]] = None
    return {folder: list(own) for folder, own in names.items() if folder != "devices"}


def kb(*words, given=None, quiet=False):
    """Returns the output of the program kb with the arguments `words`, and with the text `given` as its input. With `quiet`
    its errors are not shown, and a file with bad lines is no error."""
    program = BUILD / "bin/kb"
    if not program.exists():
        sys.exit(f"there is no {program}; scripts/build kb makes it")
    run = subprocess.run([program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if quiet else None,
                         text=True, input=given)
    if run.returncode and not quiet:
        sys.exit(f"kb {' '.join(words[:2])} finds problems in the records")
    return run.stdout


def lines_of_kb(command, made, files):
    """Returns the objects that a command of kb prints about files of records. Without files, these are the objects of the
    recorded runs, from the file `made`."""
    if not files and not made.exists():
        sys.exit(f"there is no {made}; scripts/build pooled makes it")
    text = kb(*command, *files, quiet=True) if files else made.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def claims_of(files=()):
    """Returns the claims of files of records, or of the recorded runs, as kb pool prints them."""
    return lines_of_kb(["pool"], POOLED, files)


def decisions(files=()):
    """Returns the tables of decisions (common/records/decisions.h) of files of records, or of the recorded runs, by
    device."""
    tables = collections.defaultdict(list)
    for table in lines_of_kb(["--json", "decisions"], DECISIONS, files):
        tables[table["device"]].append(table)
    return dict(tables)


def left_out(tables):
    """Returns the sentence that says how many measurements the tables leave out, or ""."""
    count = sum(table["left_out"] for table in tables)
    return f"{count} measurements are left out: other programs used the machine, or the samples scatter." if count else ""


@functools.cache
def older():
    """Returns the ids of the recorded runs that measured a kernel whose source code has changed since."""
    return {run for tables in decisions().values() for table in tables for run in table["older"]}


def kernels_of(claims):
    """Returns "kernels of DATE" if some of these pooled claims are of other kernels than today's, else ""."""
    days = [claim["ts"][:10] for claim in claims if not claim.get("today", True)]
    return f"kernels of {span_of_days(days)}" if days else ""


def span_of_days(days):
    first, last = min(days), max(days)
    return first if first == last else f"{first} to {last}"


def published():
    """Returns the studies that others have published. Each study has device, setting, citation, claims (its statements),
    and the name of its file."""
    return [{"name": path.stem} | json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob(PUBLISHED))]


def latest(records, key, time=lambda record: run_of(record)[-1]):
    """Returns the latest record of each key, by the time in the record; of records with equal times, the last one. The
    order of the runs does not decide: a run may have paused while other runs measured."""
    found = {}
    for record in records:
        known = found.setdefault(key(record), record)
        if time(record) >= time(known):
            found[key(record)] = record
    return found


def latest_claims(claims):
    """Returns the pooled claims. If a claim's definition changed, only the latest definition counts."""
    return list(latest(claims, lambda claim: tuple(claim[key] for key in ("experiment", "hypothesis", "device", "subject")),
                       lambda claim: claim["ts"]).values())


def latest_findings(findings):
    """Returns the latest finding of each claim, in the order of the first finding of each claim."""
    def claim(finding):  # not the claim_key, which also has the figure's definition
        data = finding["data"]
        return data["experiment"], data["hypothesis"]["id"], data["device"], data["subject"]

    return list(latest(findings, claim).values())


def with_one_unit(text):
    """Returns the text of a page with "1 unit" in place of "1 units", which records have in the names of devices."""
    return re.sub(r"\b1 units\b", "1 unit", text)


def pooled(findings, claims):
    """Yields the latest finding of each claim, with the title, verdict, estimate and `wrong` of the pooled claim of which it is
    the latest finding. `runs` has the ids of the pooled runs. Another finding gets only `runs`, with its own run."""
    by_latest = {claim["latest"]: claim for claim in claims}
    run_ids = {finding["id"]: run_of(finding)[0] for finding in findings}
    for finding in latest_findings(findings):
        claim = by_latest.get(finding["id"])
        finding = finding | {"runs": {run_ids[each] for each in (claim["findings"] if claim else [finding["id"]])}}
        if claim:
            finding |= {"title": claim["title"], "wrong": claim["wrong"]}
            finding["data"] = finding["data"] | {"verdict": claim["verdict"], "estimate": claim["estimate"]}
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


def varying(cases, without=()):
    """Returns the axes with more than one value in these cases."""
    values = collections.defaultdict(set)
    for case in cases:
        for axis, value in case.items():
            values[axis].add(value)
    return [axis for axis in values if len(values[axis]) > 1 and axis not in without]


def digits(value):
    """Returns a number as a text with three significant digits. A number from 1000 on is rounded to an integer."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def span(values):
    """Returns the lowest and the highest value as a text, such as "1.31 to 2.1"."""
    first, last = digits(min(values)), digits(max(values))
    return first if first == last else f"{first} to {last}"


def figure_text(estimates):
    """Returns the lowest and the highest figure, and in brackets the interval in which the next run's figures are
    expected."""
    exact = all(estimate["scale"] == "exact" for estimate in estimates)
    return f"{span([estimate['value'] for estimate in estimates])} [{'exact' if exact else next_text(*estimates)}]"


def next_text(*estimates):
    """Returns the interval in which the next run's figures are expected, which covers the intervals of all estimates."""
    return f"{digits(min(each['next_lo'] for each in estimates))} to {digits(max(each['next_hi'] for each in estimates))}"


def holds_if(claim):
    """Returns when a claim holds, such as "<= 1.05", from a hypothesis."""
    return f"{claim['op']} {claim['threshold']:g}"


def table(heads, rows):
    """Returns the lines of a table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
