"""What the record "fit" says."""

from experiments.lab import results

VARIANTS = ("trainer", "fit", "validated", "train", "new_seed")


def added(run, variant):
    """Return what a variant adds to the trainer's own time, as a part of it, by the medians."""
    return results.median(run, f"{variant}_us") / results.median(run, "trainer_us") - 1


@results.reads
def table(record):
    """Return the record as a table for the terminal: microseconds a step, and what each variant adds."""
    lines = [f"{'us a step':<20}{'recipe':<12}" + "".join(f"{variant:>18}" for variant in VARIANTS)]
    for run in record["runs"]:
        recipe = f"{run['recipe']['optimizer']} {run['recipe']['batch_size']}"
        cells = (f"{results.median(run, f'{variant}_us'):.2f} ({added(run, variant):+.1%})" for variant in VARIANTS)
        lines.append(f"{run['engine']:<20}{recipe:<12}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)
