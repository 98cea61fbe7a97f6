"""The trainings behind chapters 02 and 15: each of their experiments is a list of recipes that differ in one choice.

What has to follow from the choice differs too, such as the rate that suits an optimizer.
Every recipe is trained from several seeds, the same for all, and judged on the validation set. Only a recipe that was
chosen in this way, such as `BEST`, is ever shown the test set.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mlpkit.data import Split, load, one_hot
from mlpkit.engines import BASELINE
from mlpkit.nn.losses import OfClasses
from mlpkit.nn.model import Model
from mlpkit.training.fit import Diverged
from mlpkit.training.history import History
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

from . import results
from .bench import whole

USUAL_LOSS = repr(Model.loss)
LOSS_EVERY = 10  # steps: a record keeps the mean loss of so many at a time

# Student's limits by seeds: where two recipes are equally good, the mean of their differences over so many seeds is
# beyond so many of its standard errors one time in twenty (Student, 1908; two-sided, seeds - 1 degrees of freedom).
_LIMITS = 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14
STUDENT = dict(enumerate(_LIMITS, 2))

ADAM = Recipe(optimizer="adam", lr=2e-3, schedule="cosine", epochs=10)
BEST = Recipe(optimizer="adamw", lr=4e-3, schedule="cosine", warmup_epochs=2, weight_decay=0.2, epochs=30)


@dataclass(frozen=True)
class Plan:
    """What to train, from how many seeds, with which engine, on which data. tested: recipes that see the test set."""

    recipes: tuple[Recipe, ...]
    seeds: int = 3
    tested: tuple[Recipe, ...] = ()
    engine: str = BASELINE
    data: str = "mnist"


def measure(experiment, save=results.save_part, progress=print, plan=None, dataset=None):
    """Train all recipes of an experiment's plan from each seed, and return its record."""
    dataset = dataset or load(plan.data)
    settings = {"seeds": plan.seeds, "loss_every": LOSS_EVERY, "engine": plan.engine, "data": dataset.name}
    record = results.new(experiment, **settings)
    return results.collect(record, runs(plan, dataset, progress), save)


def runs(plan, dataset, progress):
    """Yield the plan's trainings as runs of a record, all recipes of a seed before the next seed."""
    trainings = [(seed, recipe) for seed in range(plan.seeds) for recipe in plan.recipes]
    for number, (seed, recipe) in enumerate(trainings, 1):
        progress(f"training {number} of {len(trainings)}")
        yield train(recipe.but(seed=seed), dataset, test=recipe in plan.tested, engine=plan.engine)


def train(recipe, dataset, test=False, engine=BASELINE):
    """Return one training as a run of a record: the recipe, the losses, each epoch's validation, and how it ended.

    A loss that compares with numbers gets 1 for an image's class and 0 for the others, and the largest output is the
    network's answer: of that there is the accuracy at the end alone.
    """
    run = {"recipe": recipe.to_dict(), "diverged": None, "test_accuracy": None}
    classes = isinstance(recipe.model.loss, OfClasses)
    try:
        network, history = recipe.train(dataset if classes else _with_numbers(dataset), engine)
        whole(history)
        if not classes:
            network = _of_classes(recipe, network)
        final = network.evaluate(*dataset.validation)["accuracy"]
        if test:
            run["test_accuracy"] = network.evaluate(*dataset.test)["accuracy"]
    except Diverged as error:
        history, run["diverged"] = error.history, str(error)
        final = None
    run |= _curves(history)
    return run if classes or final is None else run | {"validation_accuracy": [round(final, 6)]}


def _with_numbers(dataset):
    def split(name):
        X, y = getattr(dataset, name)
        return Split(X, one_hot(y, len(dataset.classes)))

    return dataset._replace(**{name: split(name) for name in ("train", "validation", "test")})


def _of_classes(recipe, network):
    judge = recipe.but(model=Model(recipe.model.input, recipe.model.layers)).make_network(network.engine)
    judge.set_theta(network.engine.to_numpy(network.theta))
    judge.set_statistics(network.engine.to_numpy(network.statistics))
    return judge


def _curves(history: History):
    groups = range(0, len(history.loss), LOSS_EVERY)
    curves: dict[str, list] = {"loss": [round(float(np.mean(history.loss[i : i + LOSS_EVERY])), 5) for i in groups]}
    for name in ("train_loss", "seconds"):
        curves[name] = [round(getattr(epoch, name), 6) for epoch in history.epochs]
    for name, found in ({"loss": [], "accuracy": []} | history.validation).items():  # of no epoch, too
        curves[f"validation_{name}"] = [round(number, 6) for number in found]
    return curves


# What a record of trainings says


def summary(record):
    """Return (recipe, final validation accuracies) for each recipe of a record; the recipe is a dict without the seed.

    The accuracies are a list with an entry a seed; a run that diverged counts as a guess, 0.1.
    """
    return _by_recipe((run, 0.1 if run["diverged"] else run["validation_accuracy"][-1]) for run in record["runs"])


def tested(record):
    """Return (recipe, test accuracies), as `summary` does, for each recipe that saw the test set."""
    return _by_recipe((run, run["test_accuracy"]) for run in record["runs"] if run["test_accuracy"] is not None)


class Difference(NamedTuple):
    """What lies between two recipes over seeds, in pairs: the mean, its standard error, and how far chance takes it."""

    mean: float
    error: float
    limit: float

    @property
    def resolved(self):
        """Is it a finding? The book's one rule: beyond the limit, which chance alone passes one time in twenty."""
        return abs(self.mean) > self.limit


def difference(these, those):
    """Return the Difference of accuracies `these - those`, both (seeds,), from the same 2 to 15 seeds in one order."""
    apart = np.asarray(these) - np.asarray(those)
    error = apart.std(ddof=1) / np.sqrt(len(apart))
    return Difference(apart.mean(), error, STUDENT[len(apart)] * error)


def _by_recipe(found):
    groups: dict[str, tuple[dict, list[float]]] = {}
    for run, accuracy in found:
        recipe = {name: value for name, value in run["recipe"].items() if name != "seed"}
        groups.setdefault(str(recipe), (recipe, []))[1].append(accuracy)
    return list(groups.values())


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    rows = [(describe(recipe), accuracies) for recipe, accuracies in summary(record)]
    chosen = tested(record)
    alone = len(chosen) == 1
    rows += [("on the test set" + ("" if alone else f": {describe(each)}"), found) for each, found in chosen]
    width = max((len(label) for label, _ in rows), default=0)
    lines = [f"{'recipe':<{width}}{'validation accuracy':>21}{'seeds':>7}"]
    lines += [f"{label:<{width}}{results.mean_and_spread(found):>21}{len(found):>7}" for label, found in rows]
    return "\n".join(lines)


def describe(recipe):
    """Return a recipe, given as a dict, in a few words."""
    words = [recipe["optimizer"], f"lr {recipe['lr']:g}", recipe["schedule"], f"batch {recipe['batch_size']}"]
    if recipe["warmup_epochs"]:
        words.insert(3, f"warm-up {recipe['warmup_epochs']:g}")
    if recipe["weight_decay"]:
        words.append(f"decay {recipe['weight_decay']:g}")
    model, changes = recipe.get("model", {}), recipe.get("augment") or {}
    words += _of_the_model(model.get("layers", ()), model.get("loss", USUAL_LOSS))
    words += [f"{name} {value:g}" for name, value in changes.items() if value and name != "smoothness"]
    return ", ".join([*words, counted(recipe["epochs"], "epoch")])


def _of_the_model(layers, loss):
    """Return what tells models apart that this lab trains: layers, as they are written, and a loss."""
    text = " ".join(layers)
    words = list(dict.fromkeys(re.findall(r"Dropout\([^)]*\)", text)))
    words += [kind for kind in ("Sigmoid", "Tanh", "LeakyReLU", "BatchNorm", "Residual") if kind in text]
    return [*words, *([loss.removesuffix("()")] if loss != USUAL_LOSS else ())]
