"""What do error bars cost? Fifteen networks from fifteen seeds, trained in one launch, each on eight multiprocessors.

The record "seeds" holds the time of an epoch for several numbers of networks at once (`cuda_cluster`), that of fifteen
of them one after another (`cuda_persistent`, the engine that is fastest for a single one), what a block does in a step
by the GPU's timer, and the test accuracies of fifteen seeds.
"""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from mlpkit import engines, kernels
from mlpkit.data import epoch_order, load
from mlpkit.lab import results
from mlpkit.training.recipe import Recipe

from .launches import device_us
from .persistence import stage_lines, stage_ns

TOGETHER, ALONE = "cuda_cluster", "cuda_persistent"
RECIPE = Recipe(optimizer="adam", lr=2e-3, schedule="cosine")  # of the accuracies
MARKS = 16  # that a step has room for, in cluster.cu
# What a block's first thread is about to do where `cluster.cu` calls mark(step, 0), mark(step, 1), ...
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


def run(dataset=None, save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record. dataset: MNIST with its pixels as bytes, where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load(TOGETHER)  # or why it can't run
    dataset = dataset or load(scaled=False)
    record = results.new("seeds", plan=asdict(plan), recipe=RECIPE.to_dict())
    parts = (_epochs, _stages, _accuracies)
    return results.collect(record, chain.from_iterable(part(dataset, plan, progress) for part in parts), save)


class Together:
    """Networks from seeds 0, 1, ..., with an optimizer each, that are trained in one launch an epoch."""

    def __init__(self, count, recipe, train):
        self.engine: Any = engines.load(TOGETHER)
        self.X, self.y = map(self.engine.asarray, train)
        self.recipe, self.epochs = recipe, 0
        self.networks = [recipe.but(seed=seed).make_network(TOGETHER) for seed in range(count)]
        self.optimizers = [recipe.make_optimizer(network, len(self.y)) for network in self.networks]

    def orders(self):
        """Return each network's own order of the examples in the next epoch."""
        seeds = range(len(self.networks))
        return self.engine.asarray(np.stack([epoch_order(len(self.y), seed, self.epochs) for seed in seeds]))

    def epoch(self, orders):
        """Train each network on the examples in its row of `orders`, and return the losses, (networks, steps)."""
        self.epochs += 1
        batch_size = self.recipe.batch_size
        return self.engine.train_together(self.networks, self.optimizers, self.X, self.y, orders, batch_size)


# Times


def _epochs(dataset, plan, progress):
    for optimizer, batch_size in plan.cases:
        recipe = Recipe(optimizer=optimizer, lr=1e-3, batch_size=batch_size)
        case = {"kind": "epoch", "optimizer": optimizer, "batch_size": batch_size}
        case["steps"] = recipe.steps_an_epoch(len(dataset.train.y))
        for count in plan.networks:
            progress(f"{count} at once, {optimizer}, batch {batch_size}")
            together = Together(count, recipe, dataset.train)
            samples = _samples(partial(together.epoch, together.orders()), plan)
            yield case | {"engine": TOGETHER, "networks": count, "samples_us": samples}
        progress(f"{plan.seeds} one by one, {optimizer}, batch {batch_size}")
        samples = _samples(one_by_one(plan.seeds, recipe, dataset.train), plan)
        yield case | {"engine": ALONE, "networks": plan.seeds, "samples_us": samples}


def _samples(call, plan):
    for _ in range(2):
        call()  # compiles, fills the pool
    return [round(device_us(call), 2) for _ in range(plan.samples)]


def one_by_one(count, recipe, train):
    """Return a function that trains so many networks for an epoch, one after another, a launch each."""
    engine: Any = engines.load(ALONE)
    X, y = map(engine.asarray, train)
    networks = [recipe.but(seed=seed).make_network(ALONE) for seed in range(count)]
    optimizers = [recipe.make_optimizer(network, len(y)) for network in networks]
    orders = [engine.asarray(epoch_order(len(y), seed, 0)) for seed in range(count)]

    def epochs():
        for network, optimizer, order in zip(networks, optimizers, orders, strict=True):
            engine.train_epoch(network, optimizer, X, y, order, recipe.batch_size)

    return epochs


# Stages


def _stages(dataset, plan, progress):
    for count in plan.marked_networks:
        progress(f"stages of a step, {count} at once")
        ns = stages(count, Recipe(lr=1e-3), dataset.train, plan.marked)
        yield {"kind": "stages", "networks": count, "names": STAGES, "ns": ns}


def stages(count, recipe, train, steps):
    """Return the `persistence.stage_ns` of a step in the first network's blocks."""
    import cupy as cp

    together = Together(count, recipe, train)
    with together.engine.marked(steps):
        macros = together.engine.macros_of(recipe.sizes, together.optimizers[0], recipe.batch_size)
        together.epoch(together.orders())
    place = kernels.load("cluster", **macros).get_global("marks")
    marks = cp.ndarray((together.engine.BLOCKS, steps, MARKS), np.int64, place).get()[..., : len(STAGES)]
    return stage_ns(marks)


# Accuracies


def _accuracies(dataset, plan, progress):
    progress(f"{plan.seeds} seeds, {plan.epochs} epochs")
    together = Together(plan.seeds, RECIPE.but(epochs=plan.epochs), dataset.train)
    losses = [together.epoch(together.orders()) for _ in range(plan.epochs)]
    tested = [network.evaluate(*map(together.engine.asarray, dataset.test))[1] for network in together.networks]
    last = together.engine.to_numpy(losses[-1]).mean(axis=1)
    yield {"kind": "accuracy", "epochs": plan.epochs, "test_accuracy": tested, "train_loss": last.tolist()}


# The record as a table


def median_ms(run):
    """Return the median time of an epoch of all of a run's networks, in milliseconds."""
    return results.median(run) / 1e3


def table(record):
    """Return the record as text for the terminal."""
    lines = [f"{'an epoch of':<16}{'':<18}{'optimizer':<12}{'batch':>6}{'ms':>10}{'us a step':>12}"]
    for run in results.runs(record, kind="epoch"):
        how = "at once" if run["engine"] == TOGETHER else "one by one"
        what = f"{run['networks']:>3} networks    {how:<18}{run['optimizer']:<12}{run['batch_size']:>6}"
        lines.append(f"{what}{median_ms(run):>10.2f}{median_ms(run) * 1e3 / run['steps']:>12.2f}")
    for run in results.runs(record, kind="stages"):
        lines += ["", f"{run['networks']} at once: a step's stages"]
        lines += stage_lines(run)
    for run in results.runs(record, kind="accuracy"):
        tested = run["test_accuracy"]
        lines += ["", f"test accuracy after {run['epochs']} epochs, {len(tested)} seeds: "]
        lines[-1] += f"{results.mean_and_spread(tested)}, from {min(tested):.2%} to {max(tested):.2%}"
    return "\n".join(lines)
