"""Other people's training loops, each in a process of its own, given the same weights, batches and clock.

A peer is one of the workbook's engines, or a module with one function, `prepare(problem)`, which returns `steps(n)`:
take `n` training steps, be done with them on return, and return their losses (or their mean, where a library tells no
more). `measure` times one peer in this process; `compare` starts a process for one peer after another, in turns, so
that a busy moment of the machine meets all of them.
"""

import json
import time
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np
from threadpoolctl import threadpool_info

from mlpkit import engines
from mlpkit.data import epoch_order, load
from mlpkit.engines import BASELINE
from mlpkit.lab import machine, processes, results
from mlpkit.lab.bench import GATE_STEPS, RTOL, Stepper, Timing, brief, median_us, not_run
from mlpkit.training.recipe import Recipe

ADAM = Recipe(optimizer="adam", lr=1e-3)
RECIPES = (Recipe(), Recipe(batch_size=64, lr=0.05), ADAM, ADAM.but(batch_size=64))
GATE = GATE_STEPS, RTOL  # how many of the first losses are held to the baseline's, and how close


@dataclass(frozen=True)
class Field:
    """Who is compared, engines of the workbook and others, and how; experiment: the record's name."""

    experiment: str
    engines: tuple[str, ...]
    others: tuple[str, ...]
    libraries: tuple[str, ...]
    timing: Timing
    recipes: tuple[Recipe, ...] = RECIPES

    @property
    def names(self):
        """Everybody's names, the workbook's engines first."""
        return self.engines + self.others


CPU = Field(
    "peers",
    engines=(BASELINE, "numba_hybrid", "numba_step"),
    others=("plain_numpy", "pytorch", "pytorch_compiled", "scikit_learn"),
    libraries=("torch", "scikit-learn"),
    timing=Timing(rounds=7),
)
GPU = Field(
    "gpu_peers",
    engines=(BASELINE, *engines.ON_GPU),
    others=(
        "pytorch_cuda",
        "pytorch_cuda_compiled",
        "pytorch_cuda_graph",
        "pytorch_cuda_graph_tf32",
        "jax_step",
        "jax_epoch",
        "jax_epoch_default",
    ),
    libraries=("torch", "jax", "jaxlib", "cupy-cuda12x", "cupy-cuda13x"),
    timing=Timing(warmup=429, steps_a_sample=429, rounds=1),  # an epoch of full batches of 128
)


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
    X, y = load("mnist").train
    network = recipe.make_network()
    weights, biases = zip(*network.views(network.theta), strict=True)
    order = epoch_order(len(y), recipe.seed, 0)
    return Problem(X, y, order, list(weights), list(biases), recipe)


def measure(name, recipe, timing):
    """Return what is measured of the peer `name`, as JSON can hold it: of one process, and one recipe.

    first_losses; gate: how many of them to compare, and how closely; threads: of each library; start_seconds: what
    imports (the first time in a process), compiling and the first steps took; samples_us: microseconds a step.
    """
    task, start = problem(recipe), time.perf_counter()
    steps, gate = _prepare(name, task)
    losses = np.atleast_1d(steps(GATE_STEPS)).tolist()
    started = time.perf_counter() - start
    steps(timing.warmup)
    return {
        "first_losses": losses,
        "gate": gate,
        "threads": {library["prefix"]: library["num_threads"] for library in threadpool_info()},
        "start_seconds": [started],
        "samples_us": [_time(steps, timing) for _ in range(5)],
    }


def _prepare(name, problem):
    """Return the peer's steps(n), and how its first losses are held to the baseline's."""
    if name in engines.NAMES:
        engines.load(name)  # or its reason
        stepper = Stepper(name, problem.recipe, (problem.X, problem.y))
        return lambda n: stepper.take(n)[1], GATE
    peer = import_module(f"{__name__}.{name}")
    return peer.prepare(problem), getattr(peer, "GATE", GATE)


def _time(steps, timing):
    start = time.perf_counter()
    steps(timing.steps_a_sample)
    return (time.perf_counter() - start) / timing.steps_a_sample * 1e6


def compare(field=CPU, save=results.save, progress=print):
    """Measure the peers in turns, `timing.rounds` processes of each; return the record, with a run a recipe and peer.

    A peer that can't run here, or whose first losses are not the baseline's, has its reason instead of numbers.
    """
    names, recipes, timing = field.names, field.recipes, field.timing
    versions = {library: machine.version(library) for library in field.libraries}
    record = results.new(field.experiment, timing=asdict(timing), libraries=versions)
    record["runs"] = [
        {"engine": name, "recipe": recipe.to_dict(), "why_not": None, "samples_us": [], "start_seconds": []}
        for recipe in recipes
        for name in names
    ]
    train = load("mnist").train
    wanted = [Stepper(BASELINE, recipe, train).take(GATE_STEPS)[1] for recipe in recipes]
    for turn in range(timing.rounds):
        for name in names:
            runs = results.runs(record, engine=name)
            if not all(run["why_not"] for run in runs):
                progress(f"round {turn + 1} of {timing.rounds}: {name}")
                for run, answer, losses in zip(runs, measure_in_process(name, recipes, timing), wanted, strict=True):
                    _add(run, answer, losses)
                save(record)
    return record


def measure_in_process(name, recipes, timing):
    """Return what `measure` returns for each recipe, from a process of its own; `why_not`, where that one failed."""
    settings = json.dumps({"recipes": [recipe.to_dict() for recipe in recipes], "timing": asdict(timing)})
    try:
        return processes.ask(__name__, name, settings)
    except processes.Failed as error:
        return [{"why_not": str(error)} for _ in recipes]


def _add(run, measured, wanted):
    """Add a process's samples to the run, if its losses, or their mean where it has no more, are the wanted ones."""
    losses = measured.get("first_losses", [])
    if losses and not are_wanted(losses, wanted, *measured.get("gate", GATE)):
        measured = {"why_not": f"its first losses differ from the baseline's: {losses}"}
    if run["why_not"]:  # of an earlier round
        return
    for name in ("samples_us", "start_seconds"):
        run[name] += measured.pop(name, [])
    run.update(measured)


def are_wanted(losses, wanted, steps, rtol):
    """Say whether the losses, or their mean where there is no more, are finite and, for `steps` steps, the wanted ones.

    A peer whose products are less precise is held for few steps: at the rate of the first recipe, what differs by one
    part in ten thousand at step 4 differs by a tenth at step 17, whoever computes it.
    """
    if len(losses) == 1:
        wanted = wanted.mean(keepdims=True)
    return bool(np.isfinite(losses).all() and np.allclose(losses[:steps], wanted[:steps], rtol=rtol))


def table(record):
    """Return the record as a table for the terminal: microseconds a step, a column a recipe."""
    recipes: dict[str, None] = dict.fromkeys(_title(run["recipe"]) for run in record["runs"])
    rows: dict[str, list[str]] = {}
    for run in record["runs"]:
        rows.setdefault(run["engine"], []).append(brief(median_us(run)) if run["samples_us"] else "-")
    lines = [f"{'us a step':<24}" + "".join(f"{title:>14}" for title in recipes)]
    lines += [f"{name:<24}" + "".join(f"{time:>14}" for time in times) for name, times in rows.items()]
    return "\n".join([*lines, *not_run(record["runs"])])


def _title(recipe):
    return f"{recipe['optimizer']} {recipe['batch_size']}"
