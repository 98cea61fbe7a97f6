"""What the record says, as text. No GPU is needed."""

from experiments.lab import results
from mlpkit.words import counted

from ..persistence.read import stage_lines

TOGETHER, ALONE, OTHER = "cuda_cluster", "cuda_persistent", "jax_networks"  # the last one is a peer
HOW = {TOGETHER: "at once", ALONE: "one by one", OTHER: "at once, JAX"}


def median_ms(run):
    """Return the median time of an epoch of all of a run's networks, in milliseconds."""
    return results.median(run) / 1e3


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    lines = [f"{'networks':<16}{'':<18}{'optimizer':<12}{'batch':>6}{'ms an epoch':>13}{'us a step':>12}"]
    for run in results.runs(record, kind="epoch"):
        if run.get("why_not"):
            continue
        what = f"{run['networks']:>8}{'':<8}{HOW[run['engine']]:<18}{run['optimizer']:<12}{run['batch_size']:>6}"
        lines.append(f"{what}{median_ms(run):>13.2f}{median_ms(run) * 1e3 / run['steps']:>12.2f}")
    for run in results.runs(record, kind="stages"):
        lines += ["", f"{run['networks']} at once: a step's stages", *stage_lines(run)]
    for run in results.runs(record, kind="accuracy"):
        tested = run["test_accuracy"]
        lines += ["", f"test accuracy after {counted(run['epochs'], 'epoch')}, {counted(len(tested), 'seed')}: "]
        lines[-1] += f"{results.mean_and_spread(tested)}, from {min(tested):.2%} to {max(tested):.2%}"
    return "\n".join(lines)
