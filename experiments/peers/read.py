"""What the records of peers say: microseconds a step, of everybody with each recipe."""

from experiments.lab import results
from experiments.lab.results import brief, median_us


@results.reads
def table(record):
    """Return the record as a table for the terminal: microseconds a step, a column a recipe."""
    recipes: dict[str, None] = dict.fromkeys(_title(run["recipe"]) for run in record["runs"])
    rows: dict[str, list[str]] = {}
    for run in record["runs"]:
        rows.setdefault(run["engine"], []).append(brief(median_us(run)) if run["samples_us"] else "-")
    wide = max(14, *(len(title) + 2 for title in recipes)) if recipes else 14
    lines = [f"{'us a step':<24}" + "".join(f"{title:>{wide}}" for title in recipes)]
    lines += [f"{name:<24}" + "".join(f"{time:>{wide}}" for time in times) for name, times in rows.items()]
    return "\n".join([*lines, *results.not_run(record["runs"])])


def _title(recipe):
    models = results.models()
    model = recipe.get("model", models["mlp"])  # the first edition had no other
    of = "" if model == models["mlp"] else next((f"{name} " for name, one in models.items() if one == model), "? ")
    return f"{of}{recipe['optimizer']} {recipe['batch_size']}"
