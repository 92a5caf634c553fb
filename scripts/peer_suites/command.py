"""The command line of scripts/peers."""

import ast
import datetime
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from command_line import Parser, number

from . import Refused, pages, processes

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs/peers.md"
LIBRARIES = "ATTENTION_PROTO_LIBRARIES"
MOST_SECONDS = 10 ** 6
CPU, GPU = r"cpu(:threads=\d+)?", r"cuda(:\d+)?"  # what --device may name
SUITES = ("cpu", "codegen", "variants_cpu", "gpu", "paged", "linear", "variants", "codegen_gpu")
METHOD = """
All sides take turns on the same values. The order is reversed every other turn. A ratio is computed for each turn.
Several processes, one after the other, each measure all rows. A ratio has the interval in which the ratio of another
process is expected. A side that is not installed, or cannot compute a row, is left out, and one line says why. With
--from the script measures nothing and needs no device.

Exit status: 0 done; 1 results differ; 2 refused, with one line that says why."""


def on_cpu(suite):
    return suite.DEVICE.startswith("cpu")


def devices(suite):
    return "cpu or cpu:threads=N" if on_cpu(suite) else "cuda:N"


def libraries(device):
    """Returns the folder of this project's libraries for a call without --libraries."""
    return pathlib.Path(os.environ.get(LIBRARIES) or ROOT / "build" / ("gpu" if device.startswith("cuda") else "release")
                        / "bin")


def parser_of(name, suite):
    parser = Parser(prog=f"scripts/peers {name}", description=suite.__doc__ + METHOD)
    parser.add_argument("--device", default=suite.DEVICE, help=f"{devices(suite)}; {suite.DEVICE} if none is named")
    parser.add_argument("--seconds", type=number(float, 0, MOST_SECONDS), default=suite.SECONDS,
                        help=f"time for {'a side in a round' if name == 'cpu' else 'all turns of a row'}; "
                             f"{suite.SECONDS:g} if not named; the processes share it")
    parser.add_argument("--processes", type=number(int, 1, processes.MOST), default=3,
                        help=f"how many processes measure, one after the other: 1 to {processes.MOST}; 3 if not named")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--from", dest="source", type=pathlib.Path, metavar="FILE", help="read rows that --out wrote")
    parser.add_argument("--page", nargs="?", const=PAGE, type=pathlib.Path, metavar="FILE",
                        help="write the table into FILE, or docs/peers.md if none is named, and do not print it")
    parser.add_argument("--libraries", type=pathlib.Path, metavar="FOLDER",
                        help=f"folder of this project's libraries; if not named, ${LIBRARIES} or a build of this tree")
    if name == "cpu":
        parser.add_argument("--quick", action="store_true",
                            help="n = 1024 only, 3 rounds of at most 0.3 s for each side; not allowed with --page")
    if name == "gpu":
        parser.add_argument("--old", type=pathlib.Path, metavar="LIBRARY",
                            help="only compare an old libattn.so with today's; status 1 if a time or a result differs")
        parser.add_argument("--old-source", type=pathlib.Path, metavar="FOLDER",
                            help="the kernels of the old library; if not named, the tree that it was built from")
        parser.add_argument("--new", type=pathlib.Path, metavar="LIBRARY",
                            help="the library to compare with the old library; if not named, the library in the folder "
                                 "of --libraries")
    return parser


def check(name, suite, options):
    """Raises Refused for options that do not go together, before anything is measured."""
    old = getattr(options, "old", None)
    allowed = [CPU] if on_cpu(suite) else [GPU, CPU] if old else [GPU]
    if not any(re.fullmatch(device, options.device) for device in allowed):
        raise Refused(f"--device {options.device} is not allowed; {devices(suite)} is")
    if old and (options.source or options.page):
        raise Refused("--old takes neither --from nor --page: its rows are not recorded")
    if name == "gpu" and not old and (options.new or options.old_source):
        raise Refused("--new and --old-source are allowed only with --old")
    if getattr(options, "quick", False) and options.page:
        raise Refused("--quick and --page do not go together: a page has all rows")
    if options.libraries and not (options.libraries / "libattn.so").exists():
        raise Refused(f"--libraries {options.libraries}: the folder has no libattn.so")
    if options.out and not options.out.parent.is_dir():
        raise Refused(f"--out {options.out}: there is no folder {options.out.parent}")
    if options.page:
        pages.split(options.page, suite.MARK)


def machine_of(suite, options):
    from . import clocks

    return (clocks.Cpu if on_cpu(suite) else clocks.Gpu)(options.device)


def measured(suite, options):
    """Measures the rows of the suite. Writes the file of --out after each row."""
    from . import clocks

    machine = machine_of(suite, options)
    result = {"about": {**machine.about(), **suite.about(), **today()}, "rows": []}
    for row in suite.rows(machine, options):
        result["rows"].append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
        if not on_cpu(suite):
            clocks.torch.cuda.empty_cache()
    return result


def today():
    found = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                           capture_output=True, text=True)
    return {"commit": found.stdout.strip() or "unknown",
            "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"}


def measured_by_processes(name, options):
    """Measures all rows in each of --processes processes, one after the other. Returns the pooled result."""
    results = []
    same = ["--device", options.device, "--libraries", os.environ[LIBRARIES], "--seconds",
            str(options.seconds / options.processes), *(["--quick"] if getattr(options, "quick", False) else [])]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.processes):
            file = pathlib.Path(folder) / f"{number}.json"
            words = [sys.executable, "-m", __package__, name, *same, "--processes", "1", "--out", str(file)]
            status = subprocess.run(words, stdout=subprocess.DEVNULL).returncode
            if status not in (0, 1) or not file.exists():
                raise Refused(f"process {number + 1} of {options.processes} ended with status {status}")
            results.append(pages.read(file))
            pooled = processes.pooled(results) if number else results[0]
            if options.out:
                options.out.write_text(json.dumps(pooled, indent=1) + "\n")
    return pooled


def parse(name, arguments):
    """Returns a suite, and the options of a call. Raises Refused for a call that is not allowed."""
    if name not in SUITES:
        raise Refused(f"no suite '{name}'; allowed are {pages.listed(list(SUITES))}")
    suite = importlib.import_module(f"{__package__}.{name}")
    options = parser_of(name, suite).parse_args(arguments)
    check(name, suite, options)
    return suite, options


def run(name, arguments):
    suite, options = parse(name, arguments)
    os.environ[LIBRARIES] = str((options.libraries or libraries(options.device)).resolve())
    if getattr(options, "old", None):
        from . import old
        return old.compare(options, suite.SHAPES)
    if options.source:
        result = pages.read(options.source)
    elif options.processes > 1:
        machine_of(suite, options)  # refuses a machine that lacks something before a process starts
        result = measured_by_processes(name, options)
    else:
        result = measured(suite, options)
    try:
        text = suite.table(result["rows"], result["about"])
        agree = all(row["agree"] for row in result["rows"])
    except (KeyError, TypeError, ValueError) as error:
        if not options.source:
            raise
        raise Refused(f"{options.source} has no rows of the suite {name}: {type(error).__name__} {error}") from None
    if options.source and options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.page:
        before, after = pages.split(options.page, suite.MARK)
        options.page.write_text(before + text + after)
    else:
        print(text, end="")
    return 0 if agree else 1


def recorded(name):
    """Returns the file of a suite's latest recorded rows. Files without a date count as the oldest."""
    files = sorted(ROOT.glob(f"findings/recorded/*/peers_{name}.json"))
    if not files:
        raise Refused(f"findings/recorded has no file peers_{name}.json")
    return max(files, key=lambda file: pages.read(file)["about"].get("date", ""))


def page_of_records(write):
    """Says which tables of docs/peers.md differ from the recorded rows, or writes them. Returns the exit status."""
    status = 0
    for name in SUITES:
        suite = importlib.import_module(f"{__package__}.{name}")
        result = pages.read(recorded(name))
        before, after = pages.split(PAGE, suite.MARK)
        text = before + suite.table(result["rows"], result["about"]) + after
        if write:
            PAGE.write_text(text)
        elif text != PAGE.read_text():
            print(f"peers: {PAGE.name}: the table of {name} is not up to date; run scripts/peers --write", file=sys.stderr)
            status = 1
    return status


def listed():
    """Returns the help of scripts/peers. Parses the suites instead of importing them, because PyTorch takes long to
    load."""
    lines = {name: ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())).splitlines()[0] for name in SUITES}
    return "\n".join(["scripts/peers SUITE [OPTION ...]; SUITE --help lists its options. scripts/peers --write "
                      "writes all recorded rows into docs/peers.md, --check fails if the page differs. The suites:",
                      *(f"  {name:13} {line}" for name, line in lines.items())])


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(listed(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        if arguments in (["--check"], ["--write"]):
            return page_of_records(write=arguments == ["--write"])
        if arguments[0] == "--only-parse" and len(arguments) > 1:
            parse(arguments[1], arguments[2:])
            return 0
        return run(arguments[0], arguments[1:])
    except Refused as refused:
        print(f"peers: {refused}", file=sys.stderr)
        return 2
