"""What the record "engines" says: a row an engine, with its speed-up over the baseline."""

from experiments.lab import results
from experiments.lab.results import brief, median_us
from mlpkit.engines import BASELINE


@results.reads
def table(record):
    """Return the record as a table for the terminal; below it why some engines are missing."""
    baseline = results.runs(record, engine=BASELINE)
    baseline_us = median_us(baseline[0]) if baseline else None
    lines = [f"{'engine':<18}{'us a step':>12}{'speed-up':>12}  {'test accuracy':<16}"]
    lines += [_row(run, baseline_us) for run in record["runs"] if run["samples_us"] and not run["why_not"]]
    return "\n".join([*lines, *results.not_run(record["runs"])])


def _row(run, baseline_us):
    time_us = median_us(run)
    speed = f"{baseline_us / time_us:.3g}x" if baseline_us else "-"
    return f"{run['engine']:<18}{brief(time_us):>12}{speed:>12}  {_learned(run)}"


def _learned(run):
    if "test_accuracy" not in run:
        return "-"  # not trained, or interrupted before
    if run["test_accuracy"] is None:
        return f"({_duration(run['training_seconds'])} to train)"
    return f"{run['test_accuracy']:.2%}"


def _duration(seconds):
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
