"""The trainings behind chapters 02 and 15: each of their experiments is a list of recipes that differ in one choice.

What has to follow from the choice differs too, such as the rate that suits an optimizer.
Every recipe is trained from several seeds, the same for all, and judged on the validation set. Only a recipe that was
chosen in this way, such as `BEST`, is ever shown the test set.
"""

from dataclasses import dataclass

import numpy as np

from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.training.fit import Diverged
from mlpkit.training.history import History
from mlpkit.training.recipe import Recipe

from . import results
from .bench import whole

LOSS_EVERY = 10  # steps: a record keeps the mean loss of so many at a time

ADAM = Recipe(optimizer="adam", lr=2e-3, schedule="cosine", epochs=10)
BEST = Recipe(optimizer="adamw", lr=4e-3, schedule="cosine", warmup_epochs=2, weight_decay=0.2, epochs=30)


@dataclass(frozen=True)
class Plan:
    """What to train, from how many seeds, with which engine. tested: the one recipe that sees the test set, if any."""

    recipes: tuple[Recipe, ...]
    seeds: int = 3
    tested: Recipe | None = None
    engine: str = BASELINE


def measure(experiment, save=results.save_part, progress=print, plan=None, dataset=None):
    """Train all recipes of an experiment's plan from each seed, and return its record."""
    dataset = dataset or load()
    record = results.new(experiment, seeds=plan.seeds, loss_every=LOSS_EVERY, engine=plan.engine)
    return results.collect(record, runs(plan, dataset, progress), save)


def runs(plan, dataset, progress):
    """Yield the plan's trainings as runs of a record, all recipes of a seed before the next seed."""
    trainings = [(seed, recipe) for seed in range(plan.seeds) for recipe in plan.recipes]
    for number, (seed, recipe) in enumerate(trainings, 1):
        progress(f"training {number} of {len(trainings)}")
        yield train(recipe.but(seed=seed), dataset, test=recipe == plan.tested, engine=plan.engine)


def train(recipe, dataset, test=False, engine=BASELINE):
    """Return one training as a run of a record: the recipe, the losses, each epoch's validation, and how it ended."""
    run = {"recipe": recipe.to_dict(), "diverged": None, "test_accuracy": None}
    try:
        network, history = recipe.train(dataset, engine)
        whole(history)
        if test:
            run["test_accuracy"] = network.evaluate(*dataset.test)[1]
    except Diverged as error:
        history, run["diverged"] = error.history, str(error)
    return run | _curves(history)


def _curves(history: History):
    groups = range(0, len(history.loss), LOSS_EVERY)
    curves = {"loss": [round(float(np.mean(history.loss[i : i + LOSS_EVERY])), 5) for i in groups]}
    for name in ("train_loss", "seconds", "validation_loss", "validation_accuracy"):
        curves[name] = [round(getattr(epoch, name), 6) for epoch in history.epochs]
    return curves


# What a record of trainings says


def summary(record):
    """Return (recipe, final validation accuracies) for each recipe of a record; the recipe is a dict without the seed.

    The accuracies are a list with an entry a seed; a run that diverged counts as a guess, 0.1.
    """
    groups: dict[str, tuple[dict, list[float]]] = {}
    for run in record["runs"]:
        recipe = {name: value for name, value in run["recipe"].items() if name != "seed"}
        final = 0.1 if run["diverged"] else run["validation_accuracy"][-1]
        groups.setdefault(str(recipe), (recipe, []))[1].append(final)
    return list(groups.values())


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'recipe':<72}{'validation accuracy':>20}{'seeds':>7}"]
    for recipe, accuracies in summary(record):
        lines.append(_row(describe(recipe), accuracies))
    tested = [run["test_accuracy"] for run in record["runs"] if run["test_accuracy"] is not None]
    return "\n".join([*lines, _row("on the test set", tested)] if tested else lines)


def _row(label, accuracies):
    return f"{label:<72}{results.mean_and_spread(accuracies):>20}{len(accuracies):>7}"


def describe(recipe):
    """Return a recipe, given as a dict, in a few words."""
    words = [recipe["optimizer"], f"lr {recipe['lr']:g}", recipe["schedule"], f"batch {recipe['batch_size']}"]
    if recipe["warmup_epochs"]:
        words.insert(3, f"warm-up {recipe['warmup_epochs']:g}")
    if recipe["weight_decay"]:
        words.append(f"decay {recipe['weight_decay']:g}")
    layers, changes = recipe.get("model", {}).get("layers", ()), recipe.get("augment", {})
    words += dict.fromkeys(layer for layer in layers if layer.startswith("Dropout"))
    words += [f"{name} {value:g}" for name, value in changes.items() if value and name != "smoothness"]
    return ", ".join([*words, f"{recipe['epochs']} epochs"])
