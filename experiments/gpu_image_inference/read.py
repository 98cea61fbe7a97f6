"""What the record "gpu_image_inference" says: microseconds a batch, of everybody's fastest way. No GPU is needed."""

import numpy as np

from experiments.lab import results

# The most that an output differs, as a part of the largest one; whoever is more exact may take part, too.
MOST = {"float32": 1e-5, "tf32": 3e-3, "fp16": 1e-2, "bf16": 5e-2}


def too_far(run):
    """Return None, or in a clause why a run's outputs are none of its precision."""
    if run["difference"] <= MOST[run["precision"]]:
        return None
    return (
        f"its outputs differ from float64's by {run['difference']:.2g} of the largest, too much for {run['precision']}"
    )


def why_not(run):
    """Return why a run does not count, or None. Who says float32, and multiplies TF32, is found here."""
    return run["why_not"] or too_far(run)


def us(record, engine, precision, model, n, clock="device_us"):
    """Return a peer's microseconds for a batch of n, its fastest way's median, or None where there is none.

    clock: "device_us", the GPU's time for a batch that lies there; or "waited_us", from the host and back to it.
    """
    found = [
        float(np.median(run[clock]))
        for run in record["runs"]
        if (run["engine"], run["precision"], run["model"], run["n"]) == (engine, precision, model, n)
        and not why_not(run)
        and run[clock]
    ]
    return min(found, default=None)


def fastest(record, ours, precision, model, n, clock="device_us"):
    """Return the fewest microseconds for a batch of n, of our engines or of the peers, and whose they are.

    precision: of whoever may take part: so, or more exact. clock: as for `us`. (None, None) where nobody is.
    """
    allowed, found = list(MOST)[: list(MOST).index(precision) + 1], []
    for who, own_precision in dict.fromkeys((run["engine"], run["precision"]) for run in record["runs"]):
        if who.startswith("engine:") == ours and own_precision in allowed:
            found.append(
                (us(record, who, own_precision, model, n, clock), f"{who.removeprefix('engine:')}, {own_precision}")
            )
    return min(((us, who) for us, who in found if us is not None), default=(None, None))


@results.reads
def table(record):
    """Return the record as a table for the terminal: for each model and clock a line a peer, a column a size."""
    sizes, lines = record["settings"]["sizes"], []
    who = dict.fromkeys((run["engine"], run["precision"]) for run in record["runs"])
    for model in dict.fromkeys(run["model"] for run in record["runs"]):
        for clock, title in (("device_us", "us on the GPU"), ("waited_us", "us to wait")):
            lines.append(f"{f'{model}, {title}':<38}" + "".join(f"{n:>9,}" for n in sizes))
            for engine, precision in who:
                found = [us(record, engine, precision, model, n, clock) for n in sizes]
                name = f"{engine.removeprefix('engine:')}, {precision}"
                lines.append(f"{name:<38}" + "".join(f"{'-' if t is None else f'{t:,.1f}':>9}" for t in found))
    refused = [run | {"why_not": why_not(run)} for run in record["runs"] if why_not(run)]
    return "\n".join([*lines, *results.not_run(refused)])
