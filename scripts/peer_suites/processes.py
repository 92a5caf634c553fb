"""Pools the results of several processes that ran one suite. Memory, clocks and compiled kernels vary more between
processes than within one process."""

import math
import statistics

# The 97.5 % quantiles of Student's t distribution with 1 to 9 degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MOST = len(T) + 1


def is_ratio(key):
    return key in ("ratio", "cost") or key.endswith("_ratio")


def expected(ratios):
    """Returns [ratio, low, high] for the ratios that several processes found. `ratio` is the geometric mean. The ratio
    of another process is expected between low and high (95 %), by Student's t for the logarithms of the ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    reach = T[len(logs) - 2] * statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return [math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)]


def pooled_row(rows):
    """Pools the rows that several processes measured for one case. The pooled row has no figures of a side that any
    process left out."""
    row = {}
    for key, first in rows[0].items():
        values = [each[key] for each in rows if key in each]
        if len(values) < len(rows):
            continue
        if key == "agree":
            row[key] = all(values)
        elif key == "turns":
            row[key] = sum(values)
        elif is_ratio(key):
            row[key] = expected([value[0] if isinstance(value, list) else value for value in values])
        elif key.endswith("_error"):
            row[key] = max(values)
        elif key == "max_abs":
            row[key] = {name: max(value.get(name, 0.0) for value in values) for name in first}
        elif isinstance(first, float):
            row[key] = statistics.median(values)
        else:
            row[key] = first
    return row


def case_of(row):
    """Returns the fields of a row that say what the row is about. These fields are texts, whole numbers and truth
    values; figures are floats, lists or dicts."""
    return frozenset((key, value) for key, value in row.items()
                     if isinstance(value, (str, int)) and key not in ("agree", "turns"))


def pooled(results):
    """Pools the results of several processes. The pooled result has the cases that all processes have."""
    about = {**results[0]["about"], "processes": len(results)}
    by_case = [{case_of(row): row for row in result["rows"]} for result in results]
    return {"about": about, "rows": [pooled_row([rows[case] for rows in by_case]) for case in by_case[0]
                                     if all(case in rows for rows in by_case)]}
