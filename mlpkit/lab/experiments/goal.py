"""How long until the network is good? Seconds of training to 97 % and to 98 % of the test images, with each engine.

A step's time is not yet what a user waits for. So each goal has one recipe, the same for all engines, and each engine
trains it whole, from several seeds. The recipes were chosen on the validation set: of the candidates below, all with
the batch and the rates of chapter 02, the one of fewest epochs whose worst seed makes at most four fifths of the errors
that the goal allows. The record "goal_recipes" holds that choice, the record "goal" the seconds. The test set is read
once, when a run is over.

Seconds are those of the steps: the data are on the device already, and validation is not counted. What an engine needs
to record a graph of steps is. An engine that would take too long is not trained: its seconds are its time of a step,
times the number of steps, and are called an estimate wherever they are shown.
"""

import math

import numpy as np

from mlpkit import engines
from mlpkit.engines import BASELINE
from mlpkit.lab import machine, results
from mlpkit.lab.bench import GATE_ROWS, RTOL, Stepper
from mlpkit.training.recipe import Recipe

from . import trainings as experiments

SEEDS = 3
PATIENCE = 10.0  # seconds that one training may take
SHARE = 0.8  # of a goal's errors: the test images are harder than the validation images (record "agreement")
SGD, ADAM = (Recipe(optimizer=name, lr=lr, schedule="cosine") for name, lr in (("sgd", 0.3), ("adam", 2e-3)))
ADAMW = Recipe(optimizer="adamw", lr=4e-3, schedule="cosine", warmup_epochs=1, weight_decay=0.2)
CANDIDATES = (
    *(SGD.but(epochs=epochs) for epochs in (1, 2, 3, 4)),
    *(ADAM.but(epochs=epochs) for epochs in (1, 2, 3, 8, 10)),
    *(ADAMW.but(epochs=epochs) for epochs in (6, 8, 10, 12)),
)
CHOICE_SEEDS = 5
GOALS = {97: ADAM.but(epochs=3), 98: ADAMW.but(epochs=10)}  # percent, and what `cheapest` finds


def choose(dataset, candidates=CANDIDATES, seeds=CHOICE_SEEDS, save=results.save, progress=print):
    """Train each candidate from each seed with the baseline, and return the record "goal_recipes"."""
    record = results.new("goal_recipes", seeds=seeds, share=SHARE)
    for seed in range(seeds):
        for number, recipe in enumerate(candidates, 1):
            progress(f"seed {seed + 1} of {seeds}, candidate {number} of {len(candidates)}")
            record["runs"].append(experiments.train(recipe.but(seed=seed), dataset) | {"loss": []})
            save(record)
    return record


def cheapest(record, goal):
    """Return, as a dict, the recipe of fewest epochs whose worst seed is `required` for `goal` percent.

    Of two with equally many epochs, that of the better worst seed. Raises ValueError where none is good enough.
    """
    least = required(goal, record["settings"]["share"])
    good = [(recipe["epochs"], -min(found), recipe) for recipe, found in experiments.summary(record)]
    good = sorted((entry for entry in good if -entry[1] >= least), key=lambda entry: entry[:2])
    if not good:
        raise ValueError(f"no candidate reaches {least:.2%} from every seed: add one that trains for more epochs.")
    return good[0][2]


def required(goal, share=SHARE):
    """Return the validation accuracy, a fraction, that a recipe for `goal` percent of the test images must have."""
    return 1 - share * (1 - goal / 100)


def run(dataset, names=engines.NAMES, goals=None, seeds=SEEDS, patience=PATIENCE, save=results.save, progress=print):
    """Train each goal's recipe with each engine from each seed, in turns, and return the record "goal".

    goals: a dict of recipes by percent. patience: seconds that a training may take. save: is called with the record
    whenever something was added. progress: is called with what is being done, a text.
    """
    goals = goals or GOALS
    record = results.new(
        "goal", seeds=seeds, patience=patience, recipes={goal: recipe.to_dict() for goal, recipe in goals.items()}
    )
    for goal, recipe in goals.items():
        wanted = Stepper(BASELINE, recipe, dataset.train).take(1)[1]
        for name in names:
            progress(f"{goal} %: a few steps with {name}")
            record["runs"].append(rehearse(name, goal, recipe, dataset.train, wanted))
            save(record)
    for seed in range(seeds):
        for case in record["runs"]:
            if not case["why_not"] and case["steps"] * min(case["samples_us"]) / 1e6 <= patience:
                progress(f"seed {seed + 1} of {seeds}, {case['goal']} %: {case['engine']}")
                train(case, goals[case["goal"]].but(seed=seed), dataset)
                save(record)
    return record


def rehearse(name, goal, recipe, train, wanted):
    """Return a new run of a record: the engine compiles, its first loss is compared, a few of its steps are timed."""
    case = {
        "engine": name,
        "goal": goal,
        "steps": recipe.epochs * recipe.steps_an_epoch(len(train[1])),
        "why_not": None,
        "samples_us": [],
        "seconds": [],
        "validation_accuracy": [],
        "test_accuracy": [],
    }
    try:
        engines.load(name)
        Stepper(name, recipe.but(batch_size=GATE_ROWS), train).take(1)  # compiles
        stepper = Stepper(name, recipe, train)
        seconds, losses = stepper.take(1)
        np.testing.assert_allclose(losses, wanted, rtol=RTOL)
    except (engines.EngineUnavailable, ValueError, AssertionError) as error:
        return case | {"why_not": " ".join(str(error).split())}
    return case | {"samples_us": [1e6 * sample for sample in _samples(stepper, seconds)]}


def _samples(stepper, once):
    """Return some samples, in seconds a step. once: what the first step took; if that is long, it is the sample."""
    if once > 0.5:
        return [once]
    machine.settle(stepper.take_one)
    return [stepper.take(10)[0] for _ in range(3)]


def train(case, recipe, dataset):
    """Add one training to the run of a record."""
    machine.rest()
    network, history = recipe.train(dataset, case["engine"])
    case["seconds"].append(sum(history.seconds))
    case["validation_accuracy"].append(history.accuracy[-1])
    case["test_accuracy"].append(network.evaluate(*dataset.test)[1])


def estimate_s(case):
    """Return how many seconds the steps of a training take, by the median of the few that were timed."""
    return case["steps"] * results.median(case) / 1e6


def is_estimate(case):
    """Say whether the run's seconds are an estimate: there was no time for a training."""
    return not case["seconds"]


def seconds(case):
    """Return the median of the trainings' seconds, or the estimate; NaN for an engine that can't run."""
    if case["why_not"]:
        return math.nan
    return estimate_s(case) if is_estimate(case) else results.median(case, "seconds")


def table(record):
    """Return the record "goal" as a table for the terminal: ~ marks an estimate."""
    lines = [f"{'engine':<24}{'goal':>6}{'seconds':>12}{'worst test accuracy':>22}{'runs':>6}"]
    for case in record["runs"]:
        lines.append(f"{case['engine']:<24}{case['goal']:>4} %" + (_not_run(case) or _row(case)))
    return "\n".join(lines)


def _not_run(case):
    return case["why_not"] and f"  not run: {case['why_not']}"


def _row(case):
    mark = "~" if is_estimate(case) else ""
    worst = f"{min(case['test_accuracy']):.2%}" if case["test_accuracy"] else "-"
    return f"{f'{mark}{seconds(case):,.3g}':>12}{worst:>22}{len(case['seconds']):>6}"
