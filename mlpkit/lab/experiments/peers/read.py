"""What the records "peers" and "gpu_peers" say: microseconds a step, of everybody with each recipe."""

from mlpkit.lab import results
from mlpkit.lab.results import brief, median_us


@results.reads
def table(record):
    """Return the record as a table for the terminal: microseconds a step, a column a recipe."""
    recipes: dict[str, None] = dict.fromkeys(_title(run["recipe"]) for run in record["runs"])
    rows: dict[str, list[str]] = {}
    for run in record["runs"]:
        rows.setdefault(run["engine"], []).append(brief(median_us(run)) if run["samples_us"] else "-")
    lines = [f"{'us a step':<24}" + "".join(f"{title:>14}" for title in recipes)]
    lines += [f"{name:<24}" + "".join(f"{time:>14}" for time in times) for name, times in rows.items()]
    return "\n".join([*lines, *results.not_run(record["runs"])])


def _title(recipe):
    return f"{recipe['optimizer']} {recipe['batch_size']}"
