"""What a training step consists of: each call of the engine, with its arithmetic, its bytes and its time.

The calls are watched where they happen: `watched` makes an engine of another one's functions, and hands some of them
to whoever wants to count or to time them.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from mlpkit.engines import numpy_baseline

from .bench import Stepper


@dataclass(frozen=True)
class Operation:
    """One call of an engine function in a step.

    flops: its floating-point operations, where a comparison, a root and an exponential count as one each.
    bytes: of its inputs, each read once, and its outputs, each written once. source: the bytes of the memory that it
    picks its inputs from, which are more than it reads where it gathers.
    """

    name: str
    function: str
    flops: int
    bytes: int
    source: int
    arguments: tuple = field(repr=False, default=())
    settings: dict = field(repr=False, default_factory=dict)

    def make(self):
        """Return a call without arguments that does this operation again, on the same arrays."""
        return partial(getattr(numpy_baseline, self.function), *self.arguments, **self.settings)


def operations(recipe, train):
    """Return the operations of one training step on `train`, in their order, each with its cost."""
    calls: list[Any] = []

    def write_down(name, function, *arguments, **settings):
        calls.append((name, arguments, settings))
        return function(*arguments, **settings)

    Stepper(watched(write_down), recipe, train).take(1)
    labels = _labels([name for name, *_ in calls])
    return [Operation(label, call[0], *_cost(*call), *call[1:]) for label, call in zip(labels, calls, strict=True)]


def watched(watch, engine=numpy_baseline, names=None):
    """Return an engine that does what `engine` does, but leaves some functions to watch(name, function, ...).

    names: of these functions; those of COSTS, where None is given.
    """
    functions = vars(engine)
    return SimpleNamespace(**functions | {name: partial(watch, name, functions[name]) for name in names or COSTS})


def profile(recipe, train, steps):
    """Return seconds (steps, operations) of each operation in so many steps, after some steps to warm up."""
    return Recorder(numpy_baseline, recipe, train).durations(steps)


class Recorder:
    """Takes training steps and writes down when each of the engine's functions in them begins and ends.

    engine, names: as for `watched`.
    """

    def __init__(self, engine, recipe, train, names=None, warmup=3):
        self.marks: list[tuple[str, float, float]] = []
        self.stepper = Stepper(watched(self.watch, engine, names), recipe, train)
        self.stepper.take(warmup)

    def watch(self, name, function, *arguments, **settings):
        """Do what `function` does, and write down when."""
        begin = time.perf_counter()
        result = function(*arguments, **settings)
        self.marks.append((name, begin, time.perf_counter()))
        return result

    def take(self, steps):
        """Return (names, moments) of the parts: moments (steps, 2 names + 1), in seconds since each step's begin.

        A row has the begin and the end of each part, and last the step's own end.
        """
        timestamps = []
        for _ in range(steps):
            self.marks.clear()
            begin = time.perf_counter()
            self.stepper.take_one()
            end = time.perf_counter()
            timestamps.append([timestamp - begin for _, *span in self.marks for timestamp in span] + [end - begin])
        return [name for name, *_ in self.marks], np.array(timestamps)

    def durations(self, steps):
        """Return seconds (steps, parts): how long each part took in each step."""
        timestamps = self.take(steps)[1]
        return timestamps[:, 1::2] - timestamps[:, :-1:2]


def _labels(names):
    """Return the names with the number of the layer, which the backward pass counts down; gathers are X, then y."""
    total, seen, labels = Counter(names), Counter[str](), []
    for name in names:
        seen[name] += 1
        forward = name.partition("_backward")[0]
        layer = seen[name] if name == forward else total[forward] + 1 - seen[name]
        labels.append(f"{name} {'Xy'[layer - 1] if name == 'gather' else layer}" if total[forward] > 1 else name)
    return labels


def _cost(name, arguments, settings):
    """Return (flops, bytes, source) of a call."""
    flops, moved = COSTS[name](*arguments, **settings)
    inputs = [a.nbytes for a in (*arguments, *settings.values()) if isinstance(a, np.ndarray)]
    return int(flops), int(moved), int(max(moved, *inputs))


def _gather(X, index):
    return 0, 2 * len(index) * X[:1].nbytes + index.nbytes


def _linear(x, W, b):
    n, (n_in, n_out) = len(x), W.shape
    return 2 * n * n_in * n_out + n * n_out, x.nbytes + W.nbytes + b.nbytes + n * b.nbytes


def _linear_backward_weights(x, dz, dW, db):
    return 2 * len(x) * dW.size + dz.size, x.nbytes + dz.nbytes + dW.nbytes + db.nbytes


def _linear_backward_input(dz, W):
    return 2 * len(dz) * W.size, dz.nbytes + W.nbytes + len(dz) * W[:, 0].nbytes


COSTS: dict[str, Any] = {  # from a call's arguments: (flops, bytes); the factors count the baseline's formulas
    "gather": _gather,
    "linear": _linear,
    "linear_backward_weights": _linear_backward_weights,
    "linear_backward_input": _linear_backward_input,
    "relu": lambda z: (z.size, 2 * z.nbytes),
    "relu_backward": lambda a, da: (2 * a.size, 3 * a.nbytes),
    "softmax_cross_entropy": lambda z, labels: (6 * z.size + 4 * len(z), 2 * z.nbytes + labels.nbytes),
    "axpy": lambda alpha, x, y: (2 * x.size, 3 * x.nbytes),
    "sgd_update": lambda theta, grad, lr: (2 * theta.size, 3 * theta.nbytes),
    "momentum_update": lambda theta, grad, **settings: (4 * theta.size, 5 * theta.nbytes),
    "nesterov_update": lambda theta, grad, **settings: (6 * theta.size, 5 * theta.nbytes),
    "rmsprop_update": lambda theta, grad, **settings: (9 * theta.size, 5 * theta.nbytes),
    "adam_update": lambda theta, grad, **settings: (14 * theta.size, 7 * theta.nbytes),
}
