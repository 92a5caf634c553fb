"""The suites of scripts/peers: peers that a user could take instead of this project's kernels, measured side by side.

A suite is a module. It has the rows, the sides that take part in each row, and the table. The suites share
    command.py   the command line, and its refusals
    clocks.py    how sides are timed, in turns
    sides.py     ours and the peers, each as something that runs
    work.py      the attention that a row computes, its definition in double, and when two results agree
    pages.py     files of results, and tables
"""


class Refused(Exception):
    """One line: what is wrong, and what is allowed. The command prints it and ends with status 2."""
