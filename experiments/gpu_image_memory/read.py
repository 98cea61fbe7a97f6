"""What the record "gpu_image_memory" says: mebibytes of each training, and the plan of each step. No GPU is needed."""

from experiments.lab import results


def run_of(record, name, model, batch_size):
    """Return the run of an engine, a model by its name in `results.models`, and a batch size; None without one."""
    for run in results.runs(record, engine=name):
        recipe = run["recipe"]
        if recipe["batch_size"] == batch_size and recipe["model"] == results.models()[model]:
            return run
    return None


def mib(record, name, model, batch_size):
    """Return the mebibytes of a training, or None where they were not measured."""
    run = run_of(record, name, model, batch_size)
    return run["bytes"] / 2**20 if run and not run["why_not"] else None


def intervals(record, name, model, batch_size):
    """Return the arrays of a step, in the order in which they are made: (bytes, start, end, place)."""
    run = run_of(record, name, model, batch_size)
    return [tuple(each) for each in run["intervals"]] if run and not run["why_not"] else []


@results.reads
def table(record):
    """Return the record as a table for the terminal: MiB, a column a model and batch."""
    cases = {(_model(run["recipe"]), run["recipe"]["batch_size"]): None for run in record["runs"]}
    names = dict.fromkeys(run["engine"] for run in record["runs"])
    lines = [f"{'MiB':<22}" + "".join(f"{f'{model} {n}':>17}" for model, n in cases)]
    for name in names:
        found = [mib(record, name, *case) for case in cases]
        lines.append(f"{name:<22}" + "".join(f"{'-' if each is None else f'{each:,.1f}':>17}" for each in found))
    return "\n".join([*lines, *results.not_run([run for run in record["runs"] if run["why_not"]])])


def _model(recipe):
    return next((name for name, model in results.models().items() if model == recipe["model"]), "?")
