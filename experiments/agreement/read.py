"""What the records "agreement" and "gpu_agreement" say: each engine's accuracy over the seeds."""

from experiments.lab import results


def accuracies(record):
    """Return the test accuracies of each engine, a list with an entry a seed."""
    found: dict[str, list[float]] = {}
    for run in record["runs"]:
        found.setdefault(run["engine"], []).append(run["test_accuracy"])
    return found


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'engine':<18}{'test accuracy':>20}{'seeds':>7}{'largest error of a loss':>25}"]
    for name, found in accuracies(record).items():
        error = max(run["max_loss_error"] for run in results.runs(record, engine=name))
        lines.append(f"{name:<18}{results.mean_and_spread(found):>20}{len(found):>7}{error:>25.1e}")
    return "\n".join(lines)
