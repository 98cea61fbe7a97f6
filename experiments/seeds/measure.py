"""How the record "seeds" is made: epochs of many networks at once and one by one, stages of a step, and accuracies."""

import json
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from experiments.lab import peers, processes, results
from experiments.lab.clock import device_us
from mlpkit import data, engines, executors
from mlpkit.data import epoch_order
from mlpkit.executors import trainer_of
from mlpkit.training.recipe import Recipe

from ..persistence.stages import stage_ns, written
from .read import ALONE, OTHER, TOGETHER

RECIPE = Recipe(optimizer="adam", lr=2e-3, schedule="cosine")  # of the accuracies
# What a block's first thread is about to do where `cluster.cu` calls stamp(step, 0), stamp(step, 1), ...
STAGES = (
    "first layer's products",
    "wait for the new weights, a1",
    "wait for the others' a1",
    "take the examples' a1",
    "second layer",
    "third layer",
    "last layer and loss",
    "back through the third",
    "back through the second",
    "wait for the others' gradients",
    "update W1",
    "ask for images and gradients",
    "update W3",
    "update W2 and W4",
    "wait for the images",
)


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. networks: so many at once. cases: optimizers and batch sizes.
    seeds: of the accuracies, after so many epochs, and so many networks are trained one after another. marked: steps
    whose stages are written down, once for each of the numbers `marked_networks` of networks at once.
    """

    samples: int = 9
    networks: tuple[int, ...] = (1, 2, 4, 8, 15, 16, 32)
    cases: tuple[tuple[str, int], ...] = (("sgd", 128), ("sgd", 64), ("adam", 128))
    seeds: int = 15
    epochs: int = 5
    marked: int = 64
    marked_networks: tuple[int, ...] = (1, 15)


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, dataset=None):
    """Measure everything, and return the record. dataset: MNIST with its pixels as bytes, where None is given.

    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load(TOGETHER)  # or why it can't run
    dataset = dataset or data.load()
    record = results.new("seeds", plan=asdict(plan), recipe=RECIPE.to_dict())
    parts = (_epochs, _others, _stages, _accuracies)
    return results.collect(record, chain.from_iterable(part(dataset, plan, progress) for part in parts), save)


class Seeds:
    """Networks from seeds 0, 1, ..., and what trains each on its own order of the examples, in one launch an epoch.

    options: of the engine's `Together`.
    """

    def __init__(self, count, recipe, train, **options):
        engine: Any = engines.load(TOGETHER)
        self.engine, self.n, self.epochs = engine, len(train[1]), 0
        self.networks = [recipe.but(seed=seed).make_network(TOGETHER) for seed in range(count)]
        optimizers = [recipe.make_optimizer(network, self.n) for network in self.networks]
        arrays = map(engine.asarray, train)
        self.trainer = executors.of(engine).Together(self.networks, optimizers, *arrays, recipe.batch_size, **options)

    def orders(self):
        """Return each network's own order of the examples in the next epoch."""
        seeds = range(len(self.networks))
        return self.engine.asarray(np.stack([epoch_order(self.n, seed, self.epochs) for seed in seeds]))

    def epoch(self):
        """Train each network for an epoch, and return the losses, (networks, steps)."""
        losses = self.trainer.epoch(self.orders())
        self.epochs += 1
        return losses


def _epochs(dataset, plan, progress):
    for optimizer, batch_size in plan.cases:
        recipe = _recipe(optimizer, batch_size)
        case = {"kind": "epoch", "optimizer": optimizer, "batch_size": batch_size}
        case["steps"] = recipe.steps_an_epoch(len(dataset.train.y))
        for count in plan.networks:
            progress(f"{count} at once, {optimizer}, batch {batch_size}")
            seeds = Seeds(count, recipe, dataset.train)
            samples = _samples(partial(seeds.trainer.epoch, seeds.orders()), plan)
            yield case | {"engine": TOGETHER, "networks": count, "samples_us": samples}
        progress(f"{plan.seeds} one by one, {optimizer}, batch {batch_size}")
        samples = _samples(one_by_one(plan.seeds, recipe, dataset.train), plan)
        yield case | {"engine": ALONE, "networks": plan.seeds, "samples_us": samples}


def _others(dataset, plan, progress):
    """Yield the epochs of JAX's networks, each case in a process of its own, by the host's clock."""

    def start(case):
        settings = {"recipe": _recipe(*case).to_dict(), "networks": plan.seeds, "samples": plan.samples}
        return processes.Waiting(f"experiments.lab.peers.{OTHER}", json.dumps(settings))

    for case, answer in peers.in_turns(start, plan.cases):
        optimizer, batch_size = case
        progress(f"{plan.seeds} at once with JAX, {optimizer}, batch {batch_size}")
        for seed, losses in enumerate(answer.pop("first_losses", [])):
            wanted = peers.first_losses(_recipe(*case).but(seed=seed), dataset.train)
            if peers.missed(losses, wanted, peers.GATE, peers.GATES):
                answer = {"why_not": f"the first losses of seed {seed} differ from the baseline's: {losses}"}
        run = {"kind": "epoch", "optimizer": optimizer, "batch_size": batch_size, "steps": 0, "samples_us": []}
        yield run | {"engine": OTHER, "networks": plan.seeds} | answer


def _recipe(optimizer, batch_size):
    return Recipe(optimizer=optimizer, lr=1e-3, batch_size=batch_size)


def _samples(call, plan):
    for _ in range(2):
        call()  # compiles, fills the pool
    return [round(device_us(call), 2) for _ in range(plan.samples)]


def one_by_one(count, recipe, train):
    """Return a function that trains so many networks for an epoch, one after another, a launch each."""
    X, y = map(engines.load(ALONE).asarray, train)
    orders = [engines.load(ALONE).asarray(epoch_order(len(y), seed, 0)) for seed in range(count)]
    networks = [recipe.but(seed=seed).make_network(ALONE) for seed in range(count)]
    trainers = [trainer_of(each, recipe.make_optimizer(each, len(y)), X, y, recipe.batch_size) for each in networks]

    def epochs():
        for trainer, order in zip(trainers, orders, strict=True):
            trainer.epoch(order)

    return epochs


def _stages(dataset, plan, progress):
    for count in plan.marked_networks:
        progress(f"stages of a step, {count} at once")
        ns = stages(count, Recipe(lr=1e-3), dataset.train, plan.marked)
        yield {"kind": "stages", "networks": count, "names": STAGES, "ns": ns}


def stages(count, recipe, train, steps):
    """Return the `persistence.stage_ns` of a step in the first network's blocks."""
    seeds = Seeds(count, recipe, train, STAMPED_STEPS=steps)
    seeds.epoch()
    return stage_ns(written("cluster", seeds.trainer, blocks=8)[..., : len(STAGES)])


def _accuracies(dataset, plan, progress):
    progress(f"{plan.seeds} seeds, {plan.epochs} epochs")
    seeds = Seeds(plan.seeds, RECIPE.but(epochs=plan.epochs), dataset.train)
    losses = [seeds.epoch() for _ in range(plan.epochs)]
    tested = [network.evaluate(*map(seeds.engine.asarray, dataset.test))["accuracy"] for network in seeds.networks]
    last = seeds.engine.to_numpy(losses[-1]).mean(axis=1)
    yield {"kind": "accuracy", "epochs": plan.epochs, "test_accuracy": tested, "train_loss": last.tolist()}
