"""The training runs behind chapter 02: each experiment is a list of recipes that differ in one thing.

Every recipe is trained with several seeds and judged on the validation set. Only `final` reads the test set, once.
"""

from . import results
from .recipe import Recipe

BASE = Recipe(optimizer="momentum", lr=0.05, epochs=10)
BEST = Recipe(optimizer="adamw", lr=2e-3, schedule="cosine", weight_decay=0.1, epochs=30)
SEEDS = (0, 1, 2, 3, 4)

ALL = {
    "optimizers": [
        BASE.but(optimizer=name, lr=lr)
        for name, lr in [("sgd", 0.2), ("momentum", 0.05), ("nesterov", 0.05), ("rmsprop", 1e-3), ("adam", 1e-3)]
    ],
    "final": [BEST],
}


def run(experiment, dataset, seeds=SEEDS, save=results.save, progress=print):
    """Train all recipes of an experiment with each seed, and return the record; saved after each training."""
    record = results.new(experiment, seeds=list(seeds))
    trainings = [recipe.but(seed=seed) for seed in seeds for recipe in ALL[experiment]]
    for number, recipe in enumerate(trainings, 1):
        progress(f"{experiment}: training {number} of {len(trainings)}")
        record["runs"].append(train(recipe, dataset, test=experiment == "final"))
        save(record)
    return record


def train(recipe, dataset, test=False):
    """Return one training as a run of a record: the recipe, the losses, and the validation after each epoch."""
    network, history = recipe.train(dataset)
    run = {"recipe": recipe.to_dict(), "loss": history.loss}
    for name in ("train_loss", "seconds", "validation_loss", "validation_accuracy"):
        run[name] = [getattr(epoch, name) for epoch in history.epochs]
    if test:
        run["test_accuracy"] = network.evaluate(*dataset.test)[1]
    return run


def table(record):
    return "..."
