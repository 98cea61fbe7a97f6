"""Whole trainings by other people's libraries: rates that change, an order for each epoch, its short batch included.

A module here has the name of a peer, and a class `Trainer(problem, rates)`, which compiles; rates (epochs, steps) are
those of the recipe. `start(problem)` puts first weights on the device; `train(orders)`, which
alone is timed, takes an epoch for each order, is done on return, and returns the losses; `parameters()` returns weights
and bias of each layer in turn, as NumPy arrays.
"""

import json
import time
from importlib import import_module

import numpy as np

from experiments.lab.bench import GATE_STEPS
from experiments.lab.peers import GATE, problem
from experiments.lab.processes import Waiting
from mlpkit.data import epoch_order, load


def waiting(name, recipe, seeds):
    """Return a process that compiles a peer's training, and trains from so many seeds when asked."""
    return Waiting(__name__, name, json.dumps({"recipe": recipe.to_dict(), "seeds": seeds}))


def prepared(name, recipe):
    """Return a function of a number of seeds that trains the peer from each; it has trained once before, and compiled.

    It returns first_losses and their gate, see `peers`, and by seed the seconds, and the accuracies on the validation
    and test images, of the workbook's network with these parameters.
    """
    dataset, peer = load("mnist", scaled=True), import_module(f"{__package__}.{name}")
    task = problem(recipe)
    trainer = peer.Trainer(task, rates_of(recipe, len(task.y)))
    first_losses = _train(trainer, task)[1][:GATE_STEPS].tolist()

    def train(seeds):
        found: dict = {"seconds": [], "validation_accuracy": [], "test_accuracy": []}
        for seed in range(seeds):
            task = problem(recipe.but(seed=seed))
            found["seconds"].append(_train(trainer, task)[0])
            network = recipe.make_network()
            for view, array in zip(network.views(network.theta).values(), trainer.parameters(), strict=True):
                view[:] = array
            for name in ("validation", "test"):
                found[f"{name}_accuracy"].append(network.evaluate(*getattr(dataset, name))["accuracy"])
        return {"first_losses": first_losses, "gate": getattr(peer, "GATE", GATE)} | found

    return train


def rates_of(recipe, n):
    """Return the rates of all steps of a training on n examples, (epochs, steps of one) float64."""
    steps = recipe.steps_an_epoch(n)
    return recipe.make_optimizer(recipe.make_network(), n).advance(recipe.epochs * steps).reshape(-1, steps)


def _train(trainer, task):
    """Return the seconds of one training and its losses. The orders are drawn before, as an engine's may be."""
    orders = [epoch_order(len(task.y), task.recipe.seed, epoch) for epoch in range(task.recipe.epochs)]
    trainer.start(task)
    begin = time.perf_counter()
    losses = trainer.train(orders)
    return time.perf_counter() - begin, np.asarray(losses)
