"""How good are networks that see, trained on a GPU with all digits and with fewer? Five seeds of each.

The residual network's recipe is chapter 15's. The garments' is that chapter's with smaller batches, a lower rate and
more decay: of fifteen that were tried, the best on the validation images after five epochs, by three seeds. What an
engine adds here is its arithmetic: three classes of precision, in which the same training must come as far.
"""

from dataclasses import dataclass

from experiments.lab import results, trainings
from mlpkit import engines
from mlpkit.data import load
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

from .fashion import FIVE
from .residual import THREE

GARMENTS = FIVE.but(batch_size=32, lr=1.5e-3, weight_decay=0.05)


FULL, FEWER, FEWEST = "cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16"


@dataclass(frozen=True)
class Plan:
    """Which recipes are trained, on which data, with which engines, from how many seeds.

    The residual network with all digits is in the record "residual"; here it has the fewest.
    """

    cases: tuple[tuple[Recipe, str, tuple[str, ...]], ...] = (
        (GARMENTS, "fashion-mnist", (FULL, FEWER, FEWEST)),
        (THREE, "mnist", (FEWEST,)),
    )
    seeds: int = 5


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Train each recipe with each engine from each seed, and return the record.

    Raises `engines.EngineUnavailable` without a GPU, FileNotFoundError where a data set is not on this machine.
    """
    for _, _, names in plan.cases:
        for name in names:
            engines.load(name)  # or why there is none
    data = {name: load(name) for _, name, _ in plan.cases}
    record = results.new("gpu_image_accuracy", seeds=plan.seeds, loss_every=trainings.LOSS_EVERY)
    return results.collect(record, _runs(plan, data, progress), save)


def _runs(plan, data, progress):
    for recipe, name, names in plan.cases:
        for engine in names:
            for seed in range(plan.seeds):
                progress(f"{name}, {counted(recipe.epochs, 'epoch')}, {engine}, seed {seed}")
                run = trainings.train(recipe.but(seed=seed), data[name], test=True, engine=engine)
                yield {"engine": engine, "data": name} | run


def accuracies(record, engine, data, epochs, of="validation"):
    """Return the accuracies at the end, one a seed, on the "validation" or the "test" images; empty without runs."""
    runs = [run for run in record["runs"] if (run["engine"], run["data"]) == (engine, data)]
    runs = [run for run in runs if run["recipe"]["epochs"] == epochs]
    return [run["test_accuracy"] if of == "test" else run["validation_accuracy"][-1] for run in runs]


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'data':15}{'epochs':>7}  {'engine':22}{'validation':>17}{'test':>17}{'seconds':>8}"]
    for data, epochs, engine in dict.fromkeys(map(_of, record["runs"])):
        parts = (results.mean_and_spread(accuracies(record, engine, data, epochs, of)) for of in ("validation", "test"))
        seconds = sorted(sum(run["seconds"]) for run in record["runs"] if _of(run) == (data, epochs, engine))
        row = "".join(f"{part:>17}" for part in parts)
        lines.append(f"{data:15}{epochs:7}  {engine:22}{row}{seconds[len(seconds) // 2]:8.2f}")
    return "\n".join(lines)


def _of(run):
    return run["data"], run["recipe"]["epochs"], run["engine"]
