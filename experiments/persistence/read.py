"""What the record says, as text. No GPU is needed."""

from experiments.lab import results


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'a barrier; a number there and back':<36}{'blocks':>8}{'us':>10}"]
    for run in results.runs(record, kind="wait"):
        lines.append(f"{run['name']:<36}{run['blocks']:>8}{results.median(run):>10.3f}")
    plan = record["settings"]["plan"]
    sizes = "".join(f"{size:>8}" for size in plan["batch_sizes"])
    lines += ["", f"{'us a step, by batch size':<26}{'optimizer':<10}{sizes}"]
    for name in dict.fromkeys(run["engine"] for run in results.runs(record, kind="step")):
        for optimizer in plan["optimizers"]:
            runs = results.runs(record, kind="step", engine=name, optimizer=optimizer)
            lines.append(f"{name:<26}{optimizer:<10}" + "".join(f"{results.median(run):>8.2f}" for run in runs))
    for run in results.runs(record, kind="stages"):
        lines += ["", f"{run['block']} blocks, batch {run['batch_size']}", *stage_lines(run)]
    return "\n".join(lines)


def stage_lines(run):
    """Return a line for each stage of a run of the kind "stages"."""
    return [f"    {name:<40}{ns:>8,.0f} ns" for name, ns in zip(run["names"], run["ns"], strict=True)]
