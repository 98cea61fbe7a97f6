"""Other people's training loops, each in a process of its own, given the same weights, batches and clock.

A peer is one of the workbook's engines, or a module with one function, `prepare(problem)`, which returns `steps(n)`:
take `n` training steps, be done with them on return, and return their losses (or their mean, where a library tells no
more). `measure` times one peer in this process, `measure_in_process` in one of its own.
"""

import json
import time
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np
from threadpoolctl import threadpool_info

from mlpkit import engines
from mlpkit.data import epoch_order, load
from mlpkit.lab import processes
from mlpkit.lab.bench import GATE_STEPS, RTOL, Stepper
from mlpkit.lab.clock import seconds_of
from mlpkit.training.recipe import Recipe

GATE = GATE_STEPS, RTOL  # how many of the first losses are held to the baseline's, and how close


@dataclass(frozen=True)
class Problem:
    """The task that every peer gets: training set, order of the examples, first weights, and the recipe.

    X (n, 784) float32, y (n,) int64, order (n,) of the first epoch; weights and biases: one array a layer.
    """

    X: np.ndarray
    y: np.ndarray
    order: np.ndarray
    weights: list[np.ndarray]
    biases: list[np.ndarray]
    recipe: Recipe

    def rows(self):
        """Return the indices of the first epoch's full batches, one a row: (steps, batch size) int64."""
        n = self.recipe.batch_size
        return self.order[: len(self.order) // n * n].reshape(-1, n)

    def batches(self):
        """Yield the indices of one batch after another: the first epoch's full batches, again and again."""
        while True:
            yield from self.rows()


def problem(recipe):
    """Return the workbook's problem on MNIST: batch size, a constant rate, SGD or Adam are what peers look at."""
    X, y = load("mnist", scaled=True).train
    network = recipe.make_network()
    views = network.views(network.theta)
    weights, biases = ([view for name, view in views.items() if name.endswith(end)] for end in (".W", ".b"))
    return Problem(X, y, epoch_order(len(y), recipe.seed, 0), weights, biases, recipe)


def measure(name, recipe, timing):
    """Return what is measured of the peer `name`, as JSON can hold it: of one process, and one recipe.

    first_losses; gate: how many of them to compare, and how closely; threads: of each library; start_seconds: what
    imports (the first time in a process), compiling and the first steps took; samples_us: microseconds a step.
    """
    task, start, n = problem(recipe), time.perf_counter(), timing.steps_a_sample
    steps, gate = _prepare(name, task)
    losses = np.atleast_1d(steps(GATE_STEPS)).tolist()
    started = time.perf_counter() - start
    steps(timing.warmup)
    return {
        "first_losses": losses,
        "gate": gate,
        "threads": {library["prefix"]: library["num_threads"] for library in threadpool_info()},
        "start_seconds": [started],
        "samples_us": [seconds_of(steps, n) / n * 1e6 for _ in range(5)],
    }


def _prepare(name, problem):
    """Return the peer's steps(n), and how its first losses are held to the baseline's."""
    if name in engines.names():
        engines.load(name)  # or its reason
        stepper = Stepper(name, problem.recipe, (problem.X, problem.y))
        return lambda n: stepper.take(n)[1], GATE
    peer = import_module(f"{__name__}.{name}")
    return peer.prepare(problem), getattr(peer, "GATE", GATE)


def measure_in_process(name, recipes, timing):
    """Return what `measure` returns for each recipe, from a process of its own; `why_not`, where that one failed."""
    settings = json.dumps({"recipes": [recipe.to_dict() for recipe in recipes], "timing": asdict(timing)})
    try:
        return processes.ask(__name__, name, settings)
    except processes.Failed as error:
        return [{"why_not": str(error)} for _ in recipes]


def are_wanted(losses, wanted, steps, rtol):
    """Say whether the losses, or their mean where there is no more, are finite and, for `steps` steps, the wanted ones.

    A peer whose products are less precise is held for few steps: at the rate of the first recipe, what differs by one
    part in ten thousand at step 4 differs by a tenth at step 17, whoever computes it.
    """
    if len(losses) == 1:
        wanted = wanted.mean(keepdims=True)
    return bool(np.isfinite(losses).all() and np.allclose(losses[:steps], wanted[:steps], rtol=rtol))
