"""What a training step consists of, in a network of any layers: which layer calls which operation, at which cost."""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from experiments.lab import operations
from experiments.lab.bench import Stepper
from experiments.lab.operations import watched
from mlpkit.engines import numpy_baseline
from mlpkit.executors import plain


@dataclass(frozen=True)
class Part:
    """One call of an engine's operation in a training step.

    path: the layer's number, and those of the layers around it, such as "3.0"; "" where no layer calls. layer: as it is
    written, or only its name, if it is made of others. phase: "batch", "forward", "loss", "backward" or "update".
    flops: additions and multiplications of the direct way; an exponential, a root or a comparison counts as one, too.
    bytes: of the inputs, each read once, and of the outputs, each written once. None where nobody counted.
    """

    path: str
    layer: str
    operation: str
    phase: str
    flops: int | None
    bytes: int | None


def parts(recipe, train):
    """Return the parts of a training step on `train`, in their order. They are the same for every engine."""
    calls: list[Any] = []

    def count(path, name, function, *arguments, **settings):
        cost = COSTS[name](*arguments, **settings) if name in COSTS else (None, None)
        calls.append((path, name, *cost))
        return function(*arguments, **settings)

    stepper = stepper_of(count, numpy_baseline, recipe, train)
    stepper.take_one()
    layers = {path: type(one).__name__ if one.branches() else repr(one) for path, one, *_ in recipe.model.walk}
    phases = _phases(calls, recipe.model.loss.operations[0])
    return [
        Part(".".join(map(str, path)), layers.get(path, ""), name, phase, *cost)
        for (path, name, *cost), phase in zip(calls, phases, strict=True)
    ]


def stepper_of(watch, engine, recipe, train):
    """Return a Stepper that takes a step an operation at a time, and leaves each to watch(path, name, function, ...).

    engine: a module. path: of the layer that calls, () where it is none: each layer sees an engine of its own.
    """
    names = [name for name in {**COSTS, **dict.fromkeys(recipe.model.operations)} if hasattr(engine, name)]

    def seen_from(path):
        proxy = watched(partial(watch, path), engine, names)
        vars(proxy)["executor"] = plain  # the engine's own way to take a step is without these calls
        return proxy

    stepper = Stepper(seen_from(()), recipe, train)
    for at in _all(stepper.network.layers):
        at.engine = seen_from(at.path)
    stepper.network.at_loss.engine = seen_from(())
    return stepper


def _all(layers):
    for at in layers:
        yield at
        for branch in at.branches:
            yield from _all(branch)


def _phases(calls, loss):
    """Return the phase of each call: whose name may not tell, as that of `add` does not."""
    middle = [name for _, name, *_ in calls].index(loss)
    before = ["forward" if path else "batch" for path, *_ in calls[:middle]]
    return [*before, "loss", *("backward" if path else "update" for path, *_ in calls[middle + 1 :])]


# What the operations on images cost, from the arguments of a call: (flops, bytes)


def _conv(x, W, b, stride, padding):
    z = len(x) * len(W) * prod((length + 2 * padding - W.shape[-1]) // stride + 1 for length in x.shape[2:])
    return z * (2 * W[0].size + (b is not None)), _nbytes(x, W, b) + z * x.itemsize


def _conv_backward_weights(x, dz, dW, db, stride, padding):
    return dz.size * (2 * dW[0].size + (db is not None)), _nbytes(x, dz, dW, db)


def _conv_backward_input(dz, W, shape, stride, padding):
    return 2 * dz.size * W[0].size, _nbytes(dz, W) + prod(shape) * dz.itemsize


def _pool(x, size, stride, index_bytes):
    """Each number of a window costs an operation. An index needs a byte, whatever an engine gives it."""
    windows = [(length - size) // stride + 1 for length in x.shape[2:]]
    reached = prod((count - 1) * min(size, stride) + size for count in windows)
    planes, places = prod(x.shape[:2]), prod(windows)
    return planes * places * size**2, planes * ((reached + places) * x.itemsize + places * index_bytes)


def _batch_norm(x, gamma, beta, mean, variance, momentum, eps):
    """Mean, variance, normalizing, scale and shift: 1 + 3 + 2 + 2. Those of a channel, once each, are not counted."""
    return 8 * x.size, 3 * x.nbytes + 7 * gamma.nbytes


def _batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    """Two sums, of a product and of dy: 2 + 1; then a difference, a product, a difference and a product."""
    return 7 * dy.size, 3 * dy.nbytes + 4 * gamma.nbytes


def _nbytes(*arrays):
    return sum(array.nbytes for array in arrays if array is not None)


COSTS: dict[str, Any] = operations.COSTS | {
    "conv": _conv,
    "conv_backward_weights": _conv_backward_weights,
    "conv_backward_input": _conv_backward_input,
    "max_pool": partial(_pool, index_bytes=1),
    "max_pool_backward": lambda dy, index, shape, *_: (dy.size, dy.nbytes + dy.size + prod(shape) * dy.itemsize),
    "avg_pool": partial(_pool, index_bytes=0),
    "avg_pool_backward": lambda dy, shape, size, stride: (dy.size * size**2, dy.nbytes + prod(shape) * dy.itemsize),
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "add": lambda x, y: (x.size, 3 * x.nbytes),
    "multiply": lambda x, y: (x.size, 3 * x.nbytes),
    "dropout": lambda x, rate, key, step: (x.size, 2 * x.nbytes),  # the numbers are drawn with integers
}
