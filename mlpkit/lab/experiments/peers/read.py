"""What the records of peers say: microseconds a step, of everybody with each recipe."""

import numpy as np

from mlpkit.lab import results
from mlpkit.lab.results import brief, median_us
from mlpkit.nn.models import MLP, MODELS


@results.reads
def counted(record, plan):
    """Return the record as the plan's gates count it: a run that misses one has a reason, and no samples.

    One that was made with these gates stays as it is. An older one has the losses of `plan.needs` to hold others to, of
    the same recipe and in float32; without them nobody counts.
    """
    if list(map(list, record["settings"].get("gates", ()))) == list(map(list, plan.gates)):
        return record
    timed = [run for run in record["runs"] if run["samples_us"]]
    wanted = {str(run["recipe"]): np.array(run["first_losses"]) for run in timed if run["engine"] == plan.needs}
    return record | {"runs": [_counted(run, wanted.get(str(run["recipe"])), plan) for run in record["runs"]]}


def _counted(run, wanted, plan):
    if not run["samples_us"]:
        return run
    if wanted is None:
        reason = f"there are no first losses of {plan.needs} to hold its own to"
    elif missed := plan.missed(run["first_losses"], wanted, tuple(run["gate"])):
        reason = "its first losses differ from {}'s within {} steps by more than {:.0e}".format(plan.needs, *missed)
    else:
        return run
    return run | {"why_not": reason, "samples_us": []}


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
    model = recipe.get("model", MLP.to_dict())  # the first edition had no other
    of = "" if model == MLP.to_dict() else next((f"{n} " for n, one in MODELS.items() if one.to_dict() == model), "? ")
    return f"{of}{recipe['optimizer']} {recipe['batch_size']}"
