"""What a worker does: a function without memory, so whoever does it, and however often, the result is the same.

A training that is looked at on its way is several calls: each takes the checkpoints that the one before it returned,
goes on as if it had never stopped, and returns the next ones. They stay with the worker; the client asks for the value.
"""

import math
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mlpkit import executors
from mlpkit.data import Split, epoch_order, load
from mlpkit.engines import load as load_engine
from mlpkit.training.fit import Diverged, fit


def train_to(study, choices, epochs, before=None):
    """Train a trial's networks to the end of so many epochs; return (value, their checkpoints).

    before: what this returned for fewer epochs. value: the mean of the validation's goal over the seeds; a training
    that diverged counts as badly as can be. Raises what `Recipe` and `fit` raise.
    """
    recipes = [study.recipe_of(choices, number) for number in range(study.seeds)]
    parts = _parts(study.data, study.images)
    if hasattr(executors.of(load_engine(study.engine)), "Together"):
        values, checkpoints = _together(recipes, study, parts, epochs), None
    else:
        earlier = before[1] if before else [b""] * len(recipes)
        done = [_one(*each, study, parts, epochs) for each in zip(recipes, earlier, strict=True)]
        values, checkpoints = zip(*done, strict=True)
    return float(np.mean(values)), checkpoints


@lru_cache(1)
def _parts(name, images):
    train, validation = load(name)[1:3]
    return Split(*(array[:images] for array in train)), validation


def _one(recipe, earlier, study, parts, epochs):
    """Return a training's value after so many epochs, and its checkpoint, bytes: none where it ends there."""
    network = recipe.make_network(study.engine)
    optimizer = recipe.make_optimizer(network, len(parts[0].y))
    options = dict(batch_size=recipe.batch_size, seed=recipe.seed, epochs=epochs)
    with TemporaryDirectory() as folder:
        last = Path(folder, "last.npz")
        if earlier:
            last.write_bytes(earlier)
        if epochs < recipe.epochs or earlier:
            options |= dict(checkpoints=folder, resume=bool(earlier))
        try:
            history = fit(network, optimizer, *parts, **options)
        except Diverged:
            return (0.0 if study.goal == "accuracy" else math.inf), earlier
        return history.validation[study.goal][-1], last.read_bytes() if epochs < recipe.epochs else b""


def _together(recipes, study, parts, epochs):
    """Return the values of trainings that an engine does all at once, in one kernel, from the first epoch on."""
    engine = load_engine(study.engine)
    (X, y), validation = (tuple(map(engine.asarray, part)) for part in parts)
    networks = [recipe.make_network(study.engine) for recipe in recipes]
    optimizers = [recipe.make_optimizer(network, len(y)) for recipe, network in zip(recipes, networks, strict=True)]
    trainer = executors.of(engine).Together(networks, optimizers, X, y, recipes[0].batch_size)
    for epoch in range(epochs):
        trainer.epoch(engine.asarray(np.stack([epoch_order(len(y), recipe.seed, epoch) for recipe in recipes])))
    found = np.array([network.evaluate(*validation)[study.goal] for network in networks])
    trainer.close()
    return np.nan_to_num(found, nan=0.0 if study.goal == "accuracy" else math.inf)
