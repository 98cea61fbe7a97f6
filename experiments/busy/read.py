"""What the record "busy" says: a mean step alone, beside a busy program, and how many times longer that is."""

import numpy as np

from experiments.lab import results
from experiments.lab.results import brief


def mean_us(record, engine, way, others):
    """Return the mean microseconds of a step, None where it has no time: a stall now and then counts in full.

    way: "all" threads always, a "crew" that is chosen, or a peer's "own". others: how many busy programs there were.
    """
    found = results.runs(record, engine=engine, way=way, others=others, why_not=None)
    return float(np.mean(found[0]["samples_us"])) if found and found[0]["samples_us"] else None


def slower(record, engine, way):
    """Return how many times as long a step takes beside a busy program as alone, None where it has no times."""
    alone, beside = (mean_us(record, engine, way, others) for others in (0, 1))
    return beside / alone if alone and beside else None


@results.reads
def table(record):
    """Return the record as text for the terminal: a row an engine and way."""
    rows = list(dict.fromkeys((run["engine"], run["way"]) for run in record["runs"] if run["samples_us"]))
    lines = [f"{'mean us a step':<24}{'threads':<9}{'alone':>10}{'beside':>10}{'times':>8}"]
    for engine, way in rows:
        times = [mean_us(record, engine, way, others) for others in (0, 1)]
        cells = "".join(f"{brief(us) if us else '-':>10}" for us in times)
        ratio = slower(record, engine, way)
        lines.append(f"{engine:<24}{way:<9}{cells}{f'{ratio:.3g}' if ratio else '-':>8}")
    return "\n".join([*lines, *results.not_run(record["runs"])])
