"""What the record says: the ring by its size, and steps by who takes them."""

from statistics import median

import numpy as np

from experiments.lab import results


def ring(record):
    """Return the sizes of the ring's vector in floats, and its medians in us: two arrays, by rising size."""
    runs = sorted(results.runs(record, kind="ring"), key=lambda run: run["floats"])
    return np.array([run["floats"] for run in runs]), np.array([median(run["us"]) for run in runs])


def step_us(record, engine, batch_size, way):
    """Return the median us of a step over all rounds. way: "one core", "two cores" or "two ranks"."""
    runs = results.runs(record, kind="step", engine=engine, batch_size=batch_size, way=way)
    return median([us for run in runs for us in run["us"]])


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    lines = [f"{floats:>12,} floats: {us:10.1f} us, ring" for floats, us in zip(*ring(record), strict=True)]
    steps = {(run["engine"], run["model"], run["batch_size"], run["way"]) for run in results.runs(record, kind="step")}
    for engine, model, batch_size, way in sorted(steps):
        us = step_us(record, engine, batch_size, way)
        lines.append(f"{engine:16}{model:8}{batch_size:>5} images  {way:10} {us:10.1f} us")
    return "\n".join(lines)
