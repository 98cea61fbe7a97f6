"""The trainings behind chapter 02: each experiment is a list of recipes that differ in one choice.

What has to follow from the choice differs too, such as the rate that suits an optimizer.
Every recipe is trained from several seeds, the same for all, and judged on the validation set. Only the recipe that was
chosen in this way, `BEST`, is ever shown the test set.
"""

import numpy as np

from mlpkit.lab import results
from mlpkit.training.fit import Diverged
from mlpkit.training.history import History
from mlpkit.training.recipe import Recipe

LOSS_EVERY = 10  # steps: a record keeps the mean loss of so many at a time

ADAM = Recipe(optimizer="adam", lr=2e-3, schedule="cosine", epochs=10)
BEST = Recipe(optimizer="adamw", lr=4e-3, schedule="cosine", warmup_epochs=2, weight_decay=0.2, epochs=30)

OPTIMIZERS = {"sgd": 0.3, "momentum": 0.05, "nesterov": 0.05, "rmsprop": 5e-4, "adam": 1e-3}  # a good rate for each
AROUND = (0.5, 1, 2)  # times that rate, so that each can be judged at its best of three
SGD_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ADAM_RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
BATCH_RATES = {32: 1e-3, 64: 2e-3, 128: 2e-3, 256: 2e-3, 512: 5e-3, 1024: 8e-3}  # a good rate for each
DECOUPLED = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
L2 = (1e-5, 1e-4, 3e-4, 1e-3)  # the penalty's factor, for Adam without the W
SCHEDULES = (("constant", 0), ("step", 0), ("exponential", 0), ("cosine", 0), ("cosine", 2))

ALL = {
    "optimizers": [
        Recipe(optimizer=name, lr=factor * lr, epochs=10) for name, lr in OPTIMIZERS.items() for factor in AROUND
    ],
    "learning_rates": [Recipe(optimizer="sgd", lr=lr, epochs=5) for lr in SGD_RATES]
    + [Recipe(optimizer="adam", lr=lr, epochs=5) for lr in ADAM_RATES],
    "batch_sizes": [ADAM.but(batch_size=size, lr=lr) for size, lr in BATCH_RATES.items()],
    "schedules": [BEST.but(schedule=name, warmup_epochs=epochs) for name, epochs in SCHEDULES]
    + [BEST.but(schedule="constant", warmup_epochs=0, lr=1e-3)],
    "weight_decay": [BEST.but(weight_decay=factor) for factor in DECOUPLED]
    + [BEST.but(optimizer="adam", weight_decay=factor) for factor in L2],
    "best": [BEST],
}
SEEDS = {"optimizers": 5, "learning_rates": 3, "batch_sizes": 3, "schedules": 3, "weight_decay": 3, "best": 5}


def run(experiment, dataset, save=results.save, progress=print):
    """Train all recipes of an experiment from each of its seeds, and return the record; saved after each training."""
    record = results.new(experiment, seeds=SEEDS[experiment], loss_every=LOSS_EVERY)
    trainings = [recipe.but(seed=seed) for seed in range(SEEDS[experiment]) for recipe in ALL[experiment]]
    for number, recipe in enumerate(trainings, 1):
        progress(f"{experiment}: training {number} of {len(trainings)}")
        record["runs"].append(train(recipe, dataset, test=recipe.but(seed=0) == BEST and experiment == "best"))
        save(record)
    return record


def train(recipe, dataset, test=False):
    """Return one training as a run of a record: the recipe, the losses, each epoch's validation, and how it ended."""
    run = {"recipe": recipe.to_dict(), "diverged": None, "test_accuracy": None}
    try:
        network, history = recipe.train(dataset)
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


def table(record):
    """Return the record of an experiment as a table for the terminal."""
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
    return ", ".join([*words, f"{recipe['epochs']} epochs"])
