"""What the record says: how long a step's kernels ran, and what they are called. No GPU is needed."""

import re
from collections import Counter

from experiments.lab.results import median, reads


def busy_us(run):
    """Return for how many microseconds a run's kernels ran, added up, by CUPTI: where two overlap, both count."""
    return sum(us for _, _, us, *_ in run["kernels"])


def span_us(run):
    """Return the microseconds from the first kernel's begin to the last one's end."""
    return max(begin + us for _, begin, us, *_ in run["kernels"])


def short(name):
    """Return what a reader needs of a kernel's name: cuBLAS's names tell the whole history of their templates."""
    product = re.search(r"\w*(?:gemm|gemv|split[kK])\w*", name)
    if product:
        return product[0]
    return re.sub(r"^void | ?[<(].*", "", name).rpartition("::")[2] or name


def added(kernels, step_us, beside=()):
    """Return (short name, us that it adds to a step, us before it in which nothing runs) of kernels, by their ends.

    Where a kernel begins before those ahead of it have ended, and waits inside, its own time says little. What it adds
    is the time from the last end before to its own; all together are step_us, the time of a step. beside: the names of
    kernels that run beside the others.
    """
    ends = sorted((begin + us, begin, short(name)) for name, begin, us, *_ in kernels if name not in beside)
    before = ends[-1][0] - step_us  # when the step before has ended
    found = []
    for end, begin, name in ends:
        found.append((name, end - before, max(0.0, begin - before)))
        before = end
    return found


def counts(run):
    """Return how often each kernel occurs in a run's step, by its short name, the most frequent first."""
    return Counter(short(name) for name, *_ in run["kernels"])


@reads
def table(record):
    """Return the record as a table for the terminal."""
    columns = ("host asks", "GPU alone", "together", "kernels", "busy")
    lines = [f"{'us a step':<20}" + "".join(f"{column:>12}" for column in columns)]
    return "\n".join([*lines, *map(_row, record["runs"])])


def _row(run):
    times = [f"{median(run, name):z,.1f}" for name in ("host_us", "device_us", "step_us")]
    found = [f"{run['kernels_a_step']:.4g}", f"{busy_us(run):,.1f}"] if run.get("kernels") else ["-", "-"]
    return f"{run['engine']:<20}" + "".join(f"{text:>12}" for text in times + found)
