"""Make the record. `parallel.ranks.train` starts all ways, so all pay for the same things beside their steps."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from experiments.lab import results
from mlpkit import data, engines, machine
from mlpkit.data import Split
from mlpkit.nn.models import MODELS
from mlpkit.parallel import ranks
from mlpkit.parallel.ring import Ring
from mlpkit.training.recipe import Recipe

RANKS = 2
VARIANTS = {"one core": (1, 1), "two cores": (1, 2), "two ranks": (2, 2)}  # ranks, and cores for all of them


@dataclass(frozen=True)
class Plan:
    """How much is measured. floats: sizes of the ring's vector. steps: of an epoch; the first epoch warms up."""

    floats: tuple[int, ...] = tuple(4**k for k in range(3, 11))
    trainings: tuple[tuple[str, str], ...] = (
        ("numpy_baseline", "mlp"),
        ("numba_step", "mlp"),
        ("numba_conv", "lenet5"),
    )
    batch_sizes: tuple[int, ...] = (128, 256)
    steps: int = 200
    epochs: int = 4
    rounds: int = 3


def measure(save=results.save_part, progress=print, plan=None):
    """Return the record. Raises `engines.EngineUnavailable` where two cores can't be given to processes by number."""
    if not hasattr(os, "sched_setaffinity") or machine.cores() < RANKS:
        raise engines.EngineUnavailable("ranks needs Linux, which gives a process its cores, and two cores.")
    plan = plan or Plan()
    return results.collect(results.new("ranks", plan=asdict(plan)), _runs(plan, progress), save)


def _runs(plan, progress) -> Iterator[dict[str, Any]]:
    progress("the ring alone")
    for floats, us in zip(plan.floats, _ring_us(plan.floats), strict=True):
        yield {"kind": "ring", "ranks": RANKS, "floats": floats, "us": us}
    dataset = data.load()
    for engine, model in plan.trainings:
        for turn in range(plan.rounds):
            for batch_size in plan.batch_sizes:
                for way in VARIANTS:
                    progress(f"{engine}, {model}, {batch_size} images, {way}, {turn + 1} of {plan.rounds}")
                    us = _step_us(plan, engine, model, batch_size, way, dataset)
                    yield dict(kind="step", engine=engine, model=model, batch_size=batch_size, way=way, us=us)


@contextmanager
def only(cores):
    """Have this process, and those that it starts, so many of its cores."""
    had = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(had)[:cores]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, had)


def _step_us(plan, engine, model, batch_size, way, dataset):
    """Return the us of a step, a mean over each epoch but the first: the ranks' start and its compiling are in that."""
    count, cores = VARIANTS[way]
    n, began = plan.steps * batch_size, []
    rows = np.arange(n) % len(dataset.train.y)
    few = Split(*(part[:10] for part in dataset.validation))
    part = dataset._replace(train=Split(*(part[rows] for part in dataset.train)), validation=few)
    recipe = Recipe(model=MODELS[model], lr=0.01, batch_size=batch_size, epochs=plan.epochs)
    with only(cores):
        ranks.train(recipe, part, engine, ranks=count, on_epoch=lambda history: began.append(time.perf_counter()))
    return (1e6 * np.diff(began) / plan.steps).round(2).tolist()


def _ring_us(sizes):
    """Return for each size samples of the us of one all-reduce between processes, as the first rank sees them."""
    context = get_context("spawn")
    memory, barrier = SharedMemory(create=True, size=RANKS * 4 * max(sizes)), context.Barrier(RANKS)
    ours, theirs = context.Pipe()
    processes = [
        context.Process(target=_ring, args=(rank, memory.name, barrier, sizes, theirs), daemon=True)
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            process.start()
        while not ours.poll(1):
            if any(process.exitcode for process in processes):
                raise RuntimeError("a rank has ended before its turn.")
        return ours.recv()
    finally:
        for process in processes:
            process.kill()
            process.join()
        memory.close()
        memory.unlink()


def _ring(rank, name, barrier, sizes, pipe):
    ring, found = Ring(rank, RANKS, name, barrier), []
    for size in sizes:
        vector, samples = np.zeros(size, np.float32), []
        times = 20 if size > 1 << 17 else 200
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(times):
                ring.sum(vector)
            samples.append(round(1e6 * (time.perf_counter() - start) / times, 2))
        found.append(samples[2:])
    if rank == 0:
        pipe.send(found)
    ring.close()
