"""What the scripts that read records share."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDED = "findings/recorded/*/*.jsonl"


def load(paths):
    """Findings, measurements and what could not be read, each as it came; a record that comes twice counts once."""
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
    """The files that the project's own runs left."""
    return sorted(ROOT.glob(RECORDED))


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
    """The first of these scopes that was timed; None where none was."""
    for scope in scopes:
        for time in record["time"]:
            if time["scope"] == scope:
                return time
    return None


def rate(record):
    """TFLOPS with its interval by device time: (value, lo, hi); None where there is none."""
    time, work = time_of(record, ("device_hot", "device_cold")), record["work"]
    if record["status"] != "ok" or not time or not work or not work["flops"]:
        return None
    return tuple(work["flops"] / time[key] / 1e12 for key in ("median_s", "ci_hi_s", "ci_lo_s"))


def environments(findings):
    """Of each device what its last run said of it. Findings from the records of two devices are of none."""
    return {finding["data"]["device"]: finding["data"]["env"] for finding in findings if finding["data"]["env"].get("device")}
