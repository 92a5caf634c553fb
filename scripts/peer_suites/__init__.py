"""The suites of scripts/peers: peers that a user could take instead of this project's kernels, measured side by side.

A suite is a module. It has rows (the computations to time), sides (the programs that compute a row), and a table. The
suites share
    command.py   the command line, and the errors that it reports
    clocks.py    how sides are timed, in turns
    sides.py     the sides: this project's kernels ("ours"), and the peers
    work.py      the attention that a row computes, its definition in double, and the test whether two results agree
    pages.py     files of results, and tables
"""


class Refused(Exception):
    """An error of the user or of the machine. Its text is one line, which the command prints before it ends with status
    2."""
