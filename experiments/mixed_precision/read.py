"""What the record says: accuracies over seeds, and microseconds a step. No GPU is needed."""

from experiments.lab import results
from mlpkit.words import counted


def accuracies(record, way):
    """Return the test accuracies of a way's networks, one a seed, and their mean loss in the last epoch."""
    (run,) = results.runs(record, kind="accuracy", way=way)
    return run["test_accuracy"], run["train_loss"]


def step_us(record, way, width):
    """Return a way's microseconds a step at a width, the median of the samples."""
    (run,) = results.runs(record, kind="step", way=way, width=width)
    return results.median(run)


@results.reads
def table(record):
    """Return the record as text for the terminal: the accuracies of each way, and its times."""
    lines = []
    for run in results.runs(record, kind="accuracy"):
        found = results.mean_and_spread(run["test_accuracy"])
        lines.append(f"{run['way']:<24}{found} of the test images after {counted(run['epochs'], 'epoch')}")
    for run in results.runs(record, kind="step"):
        us = results.brief(results.median(run))
        lines.append(f"{run['way']:<24}width {run['width']:>5}, batch {run['batch_size']:>5}: {us:>8} us a step")
    return "\n".join(lines)
