"""How the record "fit" is made: five ways to the same network, in turns."""

from dataclasses import dataclass
from functools import partial
from itertools import count

from experiments.lab import quiet, results
from experiments.lab.bench import whole
from experiments.lab.clock import in_turns, seconds_until_done
from mlpkit import engines
from mlpkit.data import epoch_order, load
from mlpkit.executors import trainer_of
from mlpkit.training.fit import fit
from mlpkit.training.recipe import Recipe

ADAM = Recipe(optimizer="adam", lr=1e-3, schedule="cosine", epochs=10)


@dataclass(frozen=True)
class Plan:
    """How much to measure: so many trainings of each recipe in each variant, with each engine."""

    engines: tuple[str, ...] = ("cuda_persistent",)
    recipes: tuple[Recipe, ...] = (
        Recipe(epochs=10),
        Recipe(batch_size=64, lr=0.1, epochs=10),
        ADAM,
        ADAM.but(batch_size=64),
    )
    samples: int = 15


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, dataset=None):
    """Measure everything, and return the record. dataset: MNIST as bytes, where None is given."""
    dataset = dataset or load()
    record = results.new("fit", engines=plan.engines, samples=plan.samples)
    return results.collect(record, _runs(dataset, plan, progress), save)


def _runs(dataset, plan, progress):
    for engine in plan.engines:
        for recipe in plan.recipes:
            progress(f"trainings with {engine}, {recipe.optimizer}, batch {recipe.batch_size}")
            variants, steps = _variants(engine, recipe, dataset)
            for variant in variants.values():
                variant()  # compiles
            found = in_turns(variants, plan.samples, settle=lambda name: quiet.rest())
            us = {
                f"{name}_us": [round(1e6 * sample / steps, 4) for sample in samples] for name, samples in found.items()
            }
            yield {"engine": engine, "recipe": recipe.to_dict(), "steps": steps} | us


def _variants(engine, recipe, dataset):
    """Return {name: function that trains once and returns its seconds}, and the number of a training's steps."""
    network = recipe.make_network(engine)
    asarray, n = network.engine.asarray, len(dataset.train.y)
    parts = {name: tuple(map(asarray, getattr(dataset, name))) for name in ("train", "validation", "test")}
    there = dataset._replace(**{name: type(dataset.train)(*part) for name, part in parts.items()})
    X, y = there.train
    trainer = trainer_of(network, recipe.make_optimizer(network, n), X, y, recipe.batch_size)
    orders = [epoch_order(n, recipe.seed, epoch) for epoch in range(recipe.epochs)]
    variants = {
        "trainer": partial(_epochs, network.engine, trainer, orders),
        "fit": partial(_fit, engine, recipe, there, validation=None),
        "validated": partial(_fit, engine, recipe, there, validation=there.validation),
        "train": partial(_train, engine, recipe, there),
        "new_seed": partial(_train, engine, recipe, there, seeds=count(1)),
    }
    return variants, recipe.epochs * recipe.steps_an_epoch(n)


def _epochs(engine, trainer, orders):
    begin = engine.now()
    for order in orders:
        trainer.epoch(order)
    end = engine.now()
    engine.synchronize()
    return engine.elapsed(begin, end)


def _train(engine, recipe, dataset, seeds=None):
    recipe = recipe if seeds is None else recipe.but(seed=next(seeds))
    seconds, (_, history) = seconds_until_done(engines.load(engine), partial(recipe.train, dataset, engine))
    whole(history)
    return seconds


def _fit(engine, recipe, dataset, validation):
    network = recipe.make_network(engine)
    optimizer = recipe.make_optimizer(network, len(dataset.train.y))
    settings = {name: getattr(recipe, name) for name in ("epochs", "batch_size", "seed")}
    call = partial(fit, network, optimizer, dataset.train, validation, **settings)
    seconds, history = seconds_until_done(network.engine, call)
    whole(history)
    return seconds
