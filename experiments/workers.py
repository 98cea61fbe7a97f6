"""How much faster are two workers than one, on two cores, where trials take seconds and not a second?

The searches of `search`, whose trials take less than a second, are over before their workers have begun. Here a trial
trains for forty epochs. One worker and two, in turns, each with one thread, on two cores.
"""

import os
from dataclasses import asdict

from experiments import search
from experiments.lab import results
from experiments.search.measure import ONE_THREAD, Plan, timed

PLAN = Plan(timed=20, pairs=3)  # its engine and images, and how often
EPOCHS = 40


def measure(save=results.save_part, progress=print, plan=PLAN, epochs=EPOCHS):
    """Return the record. Raises ImportError where Optuna or Dask is not installed."""
    import distributed
    import optuna

    versions = {"optuna": optuna.__version__, "distributed": distributed.__version__}
    record = results.new("workers", plan=asdict(plan), epochs=epochs, libraries=versions)
    os.environ |= ONE_THREAD  # for the processes that follow
    return results.collect(record, _runs(plan, epochs, progress), save)


def _runs(plan, epochs, progress):
    for pair in range(plan.pairs):
        for count in (1, 2):
            progress(f"{count} of 2 workers, for the time number {pair}")
            yield {"kind": "workers", "workers": count} | timed(plan, count, epochs)


@results.reads
def table(record):
    """Return the seconds of each search as text, and how many times as fast two workers are."""
    lines = [f"workers: {run['workers']} {run['seconds']:7.1f} s" for run in record["runs"]]
    times = search.speedup(record)
    told = ", ".join(f"{each:.2f}" for each in times)
    return "\n".join([*lines, f"two workers: {told} times as fast as one, from begin to end"])
