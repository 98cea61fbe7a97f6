"""What the record "int8" says: times of a call, and ratios between peers, sample by sample of the same round."""

import numpy as np

from experiments.lab import results
from mlpkit.words import counted


def ratios(record, model, threads, isa, one, other, n):
    """Return how many times as long as `other` one peer took in each round, (rounds,); None where one has no times."""
    runs = [_run(record, model, threads, isa, peer) for peer in (one, other)]
    if not all(run and "seconds" in run for run in runs):
        return None
    above, below = (np.array(run["seconds"][str(n)]) for run in runs)
    return above / below


def _run(record, *about):
    names = "model", "threads", "isa", "peer"
    return next((run for run in record["runs"] if tuple(run[name] for name in names) == about), None)


@results.reads
def table(record):
    """Return the record as text: of each peer the median time of a call, in microseconds, and what its answers are."""
    sizes = record["settings"]["sizes"]
    lines = [f"{'':60}" + "".join(f"{n:>10}" for n in sizes) + "   answers changed, right"]
    for run in record["runs"]:
        name = f"{run['model']:14}{counted(run['threads'], 'thread'):10}{run['isa']:9} {run['peer']}"
        if "why_not" in run:
            lines.append(f"{name:60} {run['why_not']}")
            continue
        times = "".join(f"{1e6 * float(np.median(run['seconds'][str(n)])):10.1f}" for n in sizes)
        lines.append(f"{name:60}{times}   {run['changed']:>5} of {run['of']:,}, {run['right']:,}")
    return "\n".join(lines)
