"""Other people's training loops, each in a process of its own, given the same weights, batches and clock.

A peer is one of the workbook's engines, or a module with one function, `prepare(problem)`, which returns `steps(n)`:
take `n` training steps, be done with them on return, and return their losses (or their mean, where a library tells no
more). `prepared` measures one peer in this process, `waiting` in one of its own.
"""

import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np
from threadpoolctl import threadpool_info

from experiments.lab import processes
from experiments.lab.bench import GATE_STEPS, RTOL, Stepper
from experiments.lab.clock import seconds_of
from mlpkit import engines
from mlpkit.data import epoch_order, load
from mlpkit.engines import BASELINE
from mlpkit.training.recipe import Recipe

SAMPLES = 3  # of a process
GATE = GATE_STEPS, RTOL  # how many of the first losses are held to the baseline's, and how close
# Where roundings grow within these steps, because of the network or of its rate: few closely, and all less so.
GATES = (5, 4e-5), (GATE_STEPS, 1e-2)


@dataclass(frozen=True)
class Problem:
    """The task that every peer gets: training set, order of the examples, first weights, and the recipe.

    X (n, *the model's input) float32, y (n,) int64, order (n,) of the first epoch; parameters: the first ones, by
    name, such as "0.W", those of the first layer first.
    """

    X: np.ndarray
    y: np.ndarray
    order: np.ndarray
    parameters: dict[str, np.ndarray]
    recipe: Recipe

    @property
    def weights(self):
        """The weights of the layers that have them."""
        return [array for name, array in self.parameters.items() if name.endswith(".W")]

    @property
    def biases(self):
        """Their biases."""
        return [array for name, array in self.parameters.items() if name.endswith(".b")]

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
    X, network = X.reshape(len(X), *recipe.model.input), recipe.make_network()
    return Problem(X, y, epoch_order(len(y), recipe.seed, 0), network.views(network.theta), recipe)


def prepared(name, recipe, timing):
    """Return a function that measures the peer `name`: what takes long is done, the first steps, too.

    It returns, as JSON can hold it, first_losses; gate: how many of them to compare, and how closely; threads: of each
    library; start_seconds: what imports, compiling and the first steps took; samples_us: microseconds a step.
    """
    task, start = problem(recipe), time.perf_counter()
    steps, gate = _prepare(name, task)
    losses = np.atleast_1d(steps(GATE_STEPS)).tolist()
    started, n = time.perf_counter() - start, timing.steps_a_sample
    steps(n)  # as many as a sample has: of some peers each number of steps is a program, which is compiled

    def measure():
        for _ in range(-(-timing.warmup // n)):
            steps(n)
        return {
            "first_losses": losses,
            "gate": gate,
            "threads": {library["prefix"]: library["num_threads"] for library in threadpool_info()},
            "start_seconds": [started],
            "samples_us": [seconds_of(steps, n) / n * 1e6 for _ in range(SAMPLES)],
        }

    return measure


def _prepare(name, problem):
    """Return the peer's steps(n), and how its first losses are held to the baseline's."""
    if name in engines.names():
        engine = engines.load(name)  # or its reason
        stepper = Stepper(name, problem.recipe, (problem.X, problem.y))
        return lambda n: stepper.take(n)[1], getattr(engine, "GATE", GATE)
    peer = import_module(f"{__name__}.{name}")
    return peer.prepare(problem), getattr(peer, "GATE", GATE)


def waiting(name, recipe, timing, env=None, seconds=None):
    """Return a process that prepares the peer, and measures it when asked, a `processes.Waiting`; the rest as there."""
    settings = json.dumps({"recipe": recipe.to_dict(), "timing": asdict(timing)})
    return processes.Waiting(__name__, name, settings, env=env, seconds=seconds)


def in_turns(start, names):
    """Yield (name, answer) of processes that prepare side by side, on all cores but one, and are asked in turns.

    start: returns the `Waiting` process of a name. Who fails beside others is asked once more, alone: together they may
    have wanted more memory than there is. The answer of one that failed has a `why_not` and nothing else.
    """
    at_once = max(1, (os.cpu_count() or 1) - 1)
    for first in range(0, len(names), at_once):
        several, alone = names[first : first + at_once], []
        for name, answer in _side_by_side(start, several):
            if len(several) > 1 and isinstance(answer, dict) and answer.keys() == {"why_not"}:
                alone.append(name)
            else:
                yield name, answer
        for name in alone:
            yield from _side_by_side(start, [name])


def _side_by_side(start, names):
    with ExitStack() as running:
        there, failed = {name: running.enter_context(start(name)) for name in names}, {}
        for name, process in there.items():
            try:
                process.ready()
            except processes.Failed as error:
                failed[name] = str(error)
        for name, process in there.items():
            with process:  # and ends it: it would take cores, and the GPU, from the one that is asked next
                try:
                    answer = {"why_not": failed[name]} if name in failed else process.answer()
                except processes.Failed as error:
                    answer = {"why_not": str(error)}
            yield name, answer


def first_losses(recipe, train):
    """Return the baseline's first losses in float64, from weights of float32: what others round differs from these.

    In float32 NumPy rounds, too, and where roundings grow that may be most of what two of them differ by.
    """
    X, y = train
    X = X if X.dtype == np.uint8 else X.astype(np.float64)
    stepper = Stepper(BASELINE, recipe.but(dtype="float64"), (X, y))
    stepper.network.set_theta(recipe.make_network().theta.astype(np.float64))
    return stepper.take(GATE_STEPS)[1]


def missed(losses, wanted, gate, gates=(GATE,)):
    """Return the gate, (steps, rtol), that first losses miss, or None.

    gate: of whoever has computed them. Who computes less precisely than `GATE` asks for is held to that, and to the
    last one's closeness of `gates` if that is less; everybody else to one of the gates after another.
    """
    steps, rtol = gate
    if (steps, rtol) != GATE:
        gates = ((steps, max(rtol, gates[-1][1])),)
    return next((gate for gate in gates if not are_wanted(losses, wanted, *gate)), None)


def are_wanted(losses, wanted, steps, rtol):
    """Say whether the losses, or their mean where there is no more, are finite and, for `steps` steps, the wanted ones.

    A peer whose products are less precise is held for few steps: at the rate of the first recipe, what differs by one
    part in ten thousand at step 4 differs by a tenth at step 17, whoever computes it.
    """
    if len(losses) == 1:
        wanted = wanted.mean(keepdims=True)
    return bool(np.isfinite(losses).all() and np.allclose(losses[:steps], wanted[:steps], rtol=rtol))
