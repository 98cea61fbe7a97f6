"""How the record "persistence" is made: waits, steps of the engines that do whole epochs, and stages of a step."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np

from experiments.lab import results
from experiments.lab.clock import device_us
from mlpkit import data, engines, executors
from mlpkit.data import epoch_order
from mlpkit.executors import trainer_of
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

from .stages import STAGES, stage_ns, written
from .waits import clock_rates, handovers, node_us, round_us, waits

ENGINES = ("cuda_graph", "cuda_graph_epoch", "cuda_three_kernels", "cuda_persistent")


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. rounds: barriers or handovers in a sample, and half as many in
    another, whose difference leaves out the launch. blocks, clusters: numbers of blocks that wait at a grid's barrier,
    and at a cluster's. nodes: of a graph of empty kernels, whose shapes are blocks, threads of one, and bytes of shared
    memory. pairs, places: of multiprocessors, and of memory, for packets, so many rounds each. clocks_ms: for which the
    multiprocessors' clocks are compared. batch_sizes, optimizers: of the engines' steps. marked: steps whose stages are
    written down.
    """

    samples: int = 15
    rounds: int = 2000
    blocks: tuple[int, ...] = (2, 16, 64, 128)
    clusters: tuple[int, ...] = (2, 8, 16)
    nodes: int = 1000
    shapes: tuple[tuple[int, int, int], ...] = ((1, 32, 0), (128, 512, 0), (128, 512, 100_000))
    pairs: int = 32
    places: int = 32
    clocks_ms: float = 20.0
    batch_sizes: tuple[int, ...] = (32, 64, 128, 256)
    optimizers: tuple[str, ...] = ("sgd", "adam")
    marked: int = 64
    engines: tuple[str, ...] = ENGINES


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Measure everything, and return the record. train: (X, y), X uint8 pixels; MNIST's where None is given.

    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load("cupy_naive")  # or why there is none
    train = train or data.load().train
    record = results.new("persistence", plan=asdict(plan))
    parts = (_waits, _clocks, _steps, _stages)
    return results.collect(record, chain.from_iterable(part(train, plan, progress) for part in parts), save)


def _waits(train, plan, progress):
    for name, blocks, call in waits(plan):
        progress(f"{name}, {counted(blocks, 'block')}")
        samples = round_us(call, plan.rounds, plan.samples)
        yield {"kind": "wait", "name": name, "blocks": blocks, "samples_us": samples}
    for shape in plan.shapes:
        facts = dict(zip(("blocks", "threads", "shared_bytes"), shape, strict=True))
        progress(f"a graph's empty kernels: {facts}")
        samples = node_us(plan.nodes, plan.samples, *shape)
        yield {"kind": "wait", "name": "graph node"} | facts | {"samples_us": samples}
    progress("packets between other blocks, at other places")
    found = handovers(plan.pairs, plan.places, plan.rounds // 2)
    pairs, times = zip(*found, strict=True)
    yield {"kind": "handovers", "multiprocessors": pairs, "round_us": times}


def _clocks(train, plan, progress):
    for busy in (False, True):
        progress(f"clocks of multiprocessors that are {'busy' if busy else 'idle'}")
        numbers, rates = clock_rates(plan.clocks_ms, busy)
        yield {"kind": "clocks", "busy": busy, "multiprocessors": numbers, "clocks_a_ns": rates}


def _steps(train, plan, progress):
    for optimizer, batch_size, name in product(plan.optimizers, plan.batch_sizes, plan.engines):
        progress(f"steps of {name}, {optimizer}, batch {batch_size}")
        case = {"kind": "step", "engine": name, "optimizer": optimizer, "batch_size": batch_size}
        yield case | {"samples_us": step_us(name, optimizer, batch_size, train, plan.samples)}


def step_us(name, optimizer, batch_size, train, samples):
    """Return samples of the GPU's microseconds for a step: the mean over a whole epoch, short batch included."""
    epoch, steps = epoch_of(name, optimizer, batch_size, train)
    for _ in range(2):
        epoch()  # compiles, records, warms up
    return [round(device_us(epoch) / steps, 4) for _ in range(samples)]


def epoch_of(name, optimizer, batch_size, train):
    """Return a function that trains for an epoch, and the number of its steps."""
    trainer, order = _trainer(trainer_of, name, optimizer, batch_size, train)
    return partial(trainer.epoch, order), -(-len(order) // batch_size)


def _trainer(make, name, optimizer, batch_size, train):
    """Return what `make` makes of a network of an engine's, its optimizer and the data, and an epoch's order."""
    recipe = Recipe(optimizer=optimizer, lr=1e-3, batch_size=batch_size)
    network = recipe.make_network(name)
    X, y, order = map(network.engine.asarray, (*train, epoch_order(len(train[1]), 0, 0)))
    return make(network, recipe.make_optimizer(network, len(y)), X, y, batch_size), order


def _stages(train, plan, progress):
    for batch_size in plan.batch_sizes:
        progress(f"stages of a step, batch {batch_size}")
        yield from stages(batch_size, train, plan.marked)


def stages(batch_size, train, steps):
    """Yield a run of the record for each kind of block: the `stage_ns` of a step, and where the blocks were.

    clocks: of each block's multiprocessor, by its own clock, a step.
    """
    executor: Any = executors.of(engines.load("cuda_persistent"))
    make = partial(executor.Trainer, STAMPED_STEPS=steps)
    trainer, order = _trainer(make, "cuda_persistent", "sgd", batch_size, train)
    trainer.epoch(order)
    stamps = written("persistent", trainer, trainer.blocks)
    places, clocks = np.moveaxis(written("persistent", trainer, trainer.blocks, "clocks", 2), 2, 0)
    for kind, rows in zip(STAGES, np.split(np.arange(len(stamps)), [executor.COLUMN_BLOCKS]), strict=True):
        yield {
            "kind": "stages",
            "block": kind,
            "batch_size": batch_size,
            "names": STAGES[kind],
            "ns": stage_ns(stamps[rows, :, : len(STAGES[kind])]),
            "multiprocessors": places[rows, 0].tolist(),
            "clocks": ((clocks[rows, -1] - clocks[rows, 0]) / (steps - 1)).round(1).tolist(),
        }
