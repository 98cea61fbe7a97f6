"""Other people's training loops, each in a process of its own, given the same weights, batches and clock.

A peer is a module with one function, `prepare(problem)`, which returns `steps(n)`: take `n` training steps, be done
with them on return, and return their losses (or their mean, where a library tells no more). `measure` times one peer
in this process; `compare` starts a process for one peer after another, in turns, so that a busy moment of the machine
meets all of them.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np
from threadpoolctl import threadpool_info

from .. import machine, results
from ..bench import GATE_STEPS, RTOL, USUAL, Stepper
from ..data import epoch_order, load
from ..recipe import Recipe

NAMES = ("mlpkit_numpy", "plain_numpy", "pytorch", "pytorch_compiled", "scikit_learn")
LIBRARIES = ("torch", "scikit-learn")


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

    def batches(self):
        """Yield the indices of one batch after another: the first epoch's full batches, again and again."""
        n = self.recipe.batch_size
        while True:
            for start in range(0, len(self.order) - n + 1, n):
                yield self.order[start : start + n]


def problem(recipe):
    """Return the workbook's problem on MNIST: a batch size, a constant rate and plain SGD are what peers look at."""
    X, y = load("mnist").train
    network = recipe.make_network()
    weights, biases = zip(*network.views(network.theta), strict=True)
    order = epoch_order(len(y), recipe.seed, 0)
    return Problem(X, y, order, list(weights), list(biases), recipe)


def measure(name, recipe, timing):
    """Return the first losses, the threads of each library, and samples of microseconds a step, of the peer `name`."""
    steps = import_module(f"{__name__}.{name}").prepare(problem(recipe))
    losses = np.atleast_1d(steps(GATE_STEPS)).tolist()
    steps(timing.warmup)
    threads = {library["prefix"]: library["num_threads"] for library in threadpool_info()}
    return {"first_losses": losses, "threads": threads, "samples_us": [_time(steps, timing) for _ in range(5)]}


def _time(steps, timing):
    start = time.perf_counter()
    steps(timing.steps_a_sample)
    return (time.perf_counter() - start) / timing.steps_a_sample * 1e6


def compare(recipe, timing=USUAL, names=NAMES, save=results.save, progress=print):
    """Measure the peers in turns, `timing.rounds` processes of each, and return the record.

    A peer that can't run here, or whose first losses are not the baseline's, has its reason instead of numbers.
    """
    versions = {library: machine.version(library) for library in LIBRARIES}
    record = results.new("peers", recipe=recipe.to_dict(), timing=asdict(timing), libraries=versions)
    record["runs"] = [{"engine": name, "why_not": None, "samples_us": []} for name in names]
    train = load("mnist").train
    wanted = Stepper("numpy_baseline", recipe, train).take(GATE_STEPS)[1]
    for turn in range(timing.rounds):
        for run in record["runs"]:
            if not run["why_not"]:
                progress(f"round {turn + 1} of {timing.rounds}: {run['engine']}")
                _add(run, measure_in_process(run["engine"], recipe, timing), wanted)
                save(record)
    return record


def measure_in_process(name, recipe, timing):
    """Return what `measure` returns, from a process of its own; `why_not`, its last line, where that one failed."""
    settings = json.dumps({"recipe": recipe.to_dict(), "timing": asdict(timing)})
    command = [sys.executable, "-m", __name__, name, settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"why_not": done.stderr.strip().rpartition("\n")[2]}
    return json.loads(done.stdout)


def _add(run, measured, wanted):
    """Add a process's samples to the run, if its losses, or their mean where it has no more, are the wanted ones."""
    losses = measured.get("first_losses", [])
    if len(losses) == 1:
        wanted = wanted.mean(keepdims=True)
    if losses and not np.allclose(losses, wanted, rtol=RTOL):
        measured = {"why_not": f"its first losses differ from the baseline's: {losses}"}
    run["samples_us"] += measured.pop("samples_us", [])
    run.update(measured)
