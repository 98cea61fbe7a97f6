"""What the records "compile" and "gpu_compile" say: how long a reader waits, and what the cache saves."""

import numpy as np

from experiments.lab import results

CACHES = ("empty", "filled")
WAIT = ("import", "prepare", "first")  # what a reader waits for, one after the other


def median_s(record, engine, cache, what="first"):
    """Return the median over the processes, in seconds. what: "import", "prepare", "first" or "later"."""
    (case,) = results.runs(record, engine=engine, cache=cache)
    return float(np.median([sample[what] for sample in case["samples_s"]]))


def wait_s(record, engine, cache):
    """Return the seconds until the first step is done: the median over the processes, Python's own start not counted.

    A record of an older version has no time of preparing.
    """
    (case,) = results.runs(record, engine=engine, cache=cache)
    return float(np.median([sum(sample.get(what, 0.0) for what in WAIT) for sample in case["samples_s"]]))


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'seconds of the first step':<28}{'cache empty':>12}{'filled':>10}{'later step':>12}"]
    for case in results.runs(record, cache=CACHES[0]):
        name = case["engine"]
        if case["samples_s"]:
            times = [median_s(record, name, cache) for cache in CACHES]
            later = median_s(record, name, CACHES[1], "later")
            lines += [f"{name:<28}{times[0]:>12.2f}{times[1]:>10.3f}{later:>12.5f}"]
    absent = [run | {"samples_us": []} for run in results.runs(record, cache=CACHES[0]) if run.get("why_not")]
    return "\n".join([*lines, *results.not_run(absent)])
